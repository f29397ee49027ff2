"""The services as the kernel starts them: turns manifests (`proto.manifest`) and settings into child specs."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec import structs

from kernel.configure import manifests
from kernel.configure.config import REST_AFTER_S, ClusterSettings, ConfigError, Placed, SourceSettings
from kernel.configure.spec import Restart, ServiceSpec, ZygoteSpec
from proto.host import extras
from proto.host.machine import usable_cores
from proto.json_types import Layer
from proto.manifest import MAX_WORKERS, THREADS_A_CORE, TORCH, Manifest, Roots, Supervised, Zygote
from proto.names import module
from proto.suggestions import nearest
from proto.wire.cluster import Resources
from proto.wire.front import SERVICE as FRONT
from proto.wire.launch import HEAPS

DISK_LIMIT = "disk_limit_bytes"
"""Setting that every service has: overrides its disk limit; 0 means no limit."""

GROWS_AFTER_S = 1.0
"""How long calls wait before a pool with bounds starts another process. Starting one on a node takes as long."""

_RUNTIME = module("services.runtime.main")
"""Module that every zygote loads."""

_LONG_PAUSE = 5
"""A costly zygote rests after this many times `rest_after_s` without its services: by default half an hour in total."""


class ServiceEntry(msgspec.Struct, frozen=True):
    """A process of a service, with its manifest."""

    spec: ServiceSpec
    manifest: Manifest
    preload: tuple[str, ...] = ()
    """Modules that the torch zygote loads for it."""
    ops_modules: tuple[str, ...] = ()
    """Modules with operations outside `proto.ops`."""
    folders: tuple[Path, ...] = ()
    """Folders of an external package, which it may read. No zygote loads it, since that may fail."""
    follows: tuple[str, ...] = ()
    """Real paths of folders outside the roots that it follows. It may read them, as may the watcher, and it does not
    rest."""
    mount: str = ""
    """Name of the mounted server that it runs, if any."""
    table: Layer | None = None
    """Settings of a service that was made from the settings."""

    @property
    def service(self) -> str:
        """Name of the service whose operations and settings it has, for all processes of a pool."""
        return self.manifest.name

    @property
    def zygote(self) -> Zygote | None:
        if self.spec.zygote is None:
            return None
        return TORCH if self.spec.zygote == TORCH.name else self.manifest.zygote

    @property
    def uses_roots(self) -> bool:
        """Whether it may access any folder that others write."""
        return self.manifest.roots is not Roots.NONE or bool(self.follows)


def gpu_usable() -> bool:
    """Return whether there is a GPU and torch to use it; whether CUDA works is found out when a model is loaded."""
    return extras.gpu_present() and extras.is_installed(extras.TORCH)


def entry(found: manifests.PackagedManifest) -> ServiceEntry:
    """Return a service as described by its manifest, before settings are applied."""
    manifest = found.manifest
    (module,) = found.modules([manifest.module])
    modes = tuple(mode for mode in manifest.modes if mode != "cuda" or gpu_usable())
    env = {HEAPS: str(usable_cores() + 1)} if manifest.heap_per_core else {}
    threads = manifest.threads + THREADS_A_CORE * (os.cpu_count() or 1)
    same = {name: getattr(manifest, name) for name in Supervised.__struct_fields__}
    if "cuda" in modes and manifest.torch is not None:
        same["memory_limit_bytes"] = max(manifest.memory_limit_bytes, manifest.torch.memory_limit_with_gpu_bytes)
    return ServiceEntry(
        ServiceSpec(
            module=module,
            zygote=manifest.zygote.name,
            modes=modes,
            env=env,
            thread_limit=threads,
            restart=Restart(manifest.restart),
            **same,
        ),
        manifest,
        preload=() if manifest.torch is None else (module, *found.modules(manifest.torch.preload)),
        ops_modules=found.modules(manifest.ops_modules),
        folders=found.folders,
    )


ENTRIES = tuple(map(entry, manifests.built_in()))
"""The built-in services, in start order."""


def served(packages: Iterable[str]) -> tuple[ServiceEntry, ...]:
    """Return the built-in services and those of external packages. Raises ConfigError."""
    return (*ENTRIES, *map(entry, manifests.served(packages)[len(manifests.built_in()) :]))


def pools(
    entries: tuple[ServiceEntry, ...],
    settings: Mapping[str, Mapping[str, object]],
    *,
    rest_after_s: float,
    standbys: bool,
    only_essential: bool = False,
    environment: Mapping[str, str] = os.environ,
    cluster: ClusterSettings | None = None,
    sources: SourceSettings | None = None,
) -> dict[str, tuple[ServiceEntry, ...]]:
    """Return the processes of each served service, by its name; `settings` holds their tables. Raises ConfigError.

    `only_essential`: leave out the services that mounted servers do not need.
    """
    known = [entry.service for entry in entries]
    for name in settings:
        if name not in known:
            raise ConfigError(f"settings: there is no service {name!r}{nearest(name, known)}")
    follows = {each.service: _followed(each.manifest, settings.get(each.service, {}), environment) for each in entries}
    every = tuple(dict.fromkeys(itertools.chain.from_iterable(follows.values())))
    found = {}
    for entry in entries:
        own = settings.get(entry.service, {})
        is_off = entry.manifest.optional and own.get("enabled") is False
        is_off = is_off or bool(entry.manifest.needs_setting and not own.get(entry.manifest.needs_setting))
        if not is_off and (entry.manifest.essential or not only_essential):
            followed = every if entry.manifest.watches else follows[entry.service]
            given = configured(entry, own, rest_after_s=rest_after_s, standbys=standbys, follows=followed)
            if sources is not None and sources.store != "local" and any(s.movable for s in entry.manifest.stores):
                # Its process holds the data, or waits to take them over.
                given = structs.replace(given, spec=structs.replace(given.spec, rests_after_s=None))
            on_cluster = cluster.services.get(entry.service) if cluster is not None else None
            if on_cluster is not None and (on_cluster.min is not None or on_cluster.max is not None):
                found[entry.service] = elastic(given, on_cluster, own, rest_after_s or REST_AFTER_S)
            else:
                found[entry.service] = pool(given, workers(entry, own))
    return found


def placed(
    pools: Mapping[str, tuple[ServiceEntry, ...]],
    cluster: ClusterSettings,
    settings: Mapping[str, Mapping[str, object]],
) -> dict[str, Resources]:
    """Return what each process that runs on the cluster reserves there, by its name. Raises ConfigError."""
    found: dict[str, Resources] = {}
    able = [name for name, pool in pools.items() if pool[0].manifest.stateless]
    for name, resources in cluster.services.items():
        where = f"settings: cluster.services.{name}"
        if name not in pools:
            raise ConfigError(f"{where}: there is no service {name!r}{nearest(name, able)}")
        if name not in able:
            raise ConfigError(f"{where}: this service must run on this machine; others can be: {', '.join(able)}")
        own = settings.get(name, {})
        for setting in pools[name][0].manifest.reads_files:
            if own.get(setting):
                raise ConfigError(
                    f"{where}: services.{name}.{setting} names a file, which the nodes do not have; use an "
                    "environment variable instead, or remove the table"
                )
        found |= {entry.spec.name: resources.reserved for entry in pools[name]}
    return found


def configured(
    entry: ServiceEntry,
    own: Mapping[str, object],
    *,
    rest_after_s: float,
    standbys: bool = True,
    follows: tuple[str, ...] = (),
) -> ServiceEntry:
    """Apply settings to an entry; `own` is the table of its service.

    The service gives up its standby, and its process if it may rest, when it has not been called for `rest_after_s`
    (0: never). Raises ConfigError.
    """
    spec, manifest = entry.spec, entry.manifest
    limit = own.get(DISK_LIMIT, spec.disk_limit_bytes or 0)
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
        what = f"services.{entry.service}.{DISK_LIMIT} is {limit!r}"
        raise ConfigError(f"settings: {what}; it must be a number of bytes, or 0 for no limit")
    given = own.get(manifest.rests_by)
    stated = max(0.0, given) if isinstance(given, int | float) else None
    by_torch = (
        manifest.torch is not None
        and extras.is_installed(extras.TORCH)
        and manifest.torch.is_needed(own, extras.gpu_present())
    )
    spec = structs.replace(
        spec,
        zygote=TORCH.name if by_torch else spec.zygote,
        disk_limit_bytes=limit or None,
        # Started once clients can be answered, and ended while replies can still be delivered.
        depends_on=() if entry.service == FRONT else (FRONT,),
        standby=standbys and manifest.standby,
        standby_rests_after_s=(rest_after_s or None) if spec.standby_rests_after_s else None,
        rests_after_s=((rest_after_s if stated is None else stated) or None)
        if manifest.rests and not follows
        else None,
        # A time set for this very service applies whatever its process holds.
        rests_while=None if stated else spec.rests_while,
    )
    return structs.replace(entry, spec=spec, follows=follows)


def _followed(
    manifest: Manifest, settings: Mapping[str, object], environment: Mapping[str, str]
) -> tuple[str, ...]:  # fmt: skip
    """Return the real paths of the folders that a service is set to follow. Raises ConfigError."""
    if manifest.follows is None:
        return ()
    given, agents = settings.get(manifest.follows.setting, []), manifest.follows.agents
    what = f"settings: services.{manifest.name}.{manifest.follows.setting}"
    if not isinstance(given, list):
        raise ConfigError(f"{what} is {given!r}; it must be a list of names and folders")
    found = []
    for each in given:
        path = str(each)
        if each in agents:
            agent = agents[each]
            path = os.path.join(environment.get(agent.variable) or agent.folder, agent.inside)
        path = os.path.expanduser(path)
        if not os.path.isabs(path):
            raise ConfigError(f"{what}: {each!r} is neither {', '.join(agents)} nor the absolute path of a folder")
        found.append(os.path.realpath(path))
    return tuple(dict.fromkeys(found))


def zygotes(chosen: Iterable[ServiceEntry], rest_after_s: float = 0) -> tuple[ZygoteSpec, ...]:
    """Return the zygotes that fork these services; a costly one rests long after its services (`_LONG_PAUSE`)."""
    chosen = tuple(chosen)
    on_demand = tuple(each.module for each in manifests.templates())
    needed = {each.zygote.name: each.zygote for each in chosen if each.zygote is not None}
    return tuple(
        ZygoteSpec(
            name=zygote.name,
            preload=(
                _RUNTIME,
                *zygote.preload,
                *(dict.fromkeys(module for each in chosen for module in each.preload) if zygote == TORCH else ()),
            ),
            modules=tuple(
                dict.fromkeys(
                    each.spec.module for each in chosen if each.manifest.zygote == zygote and not each.folders
                )
            ),
            on_demand=on_demand,
            wait_s=zygote.wait_s,
            rests_after_s=(_LONG_PAUSE * rest_after_s or None) if zygote.is_costly else zygote.rests_after_s,
        )
        for zygote in sorted(needed.values(), key=lambda zygote: zygote.order)
    )


def workers(entry: ServiceEntry, settings: Mapping[str, object]) -> int:
    """Return the number of processes that a service's settings ask for, by default 1. Raises ConfigError."""
    pool = entry.manifest.pool
    asked = settings.get("workers", 1) if pool is not None else 1
    if asked == "auto" and pool is not None:
        if pool.one_per_gpu and gpu_usable():
            return min(pool.most, max(1, len(extras.gpus())))
        return min(pool.most, max(1, usable_cores() // pool.cores_each))
    if not isinstance(asked, int) or isinstance(asked, bool) or not 1 <= asked <= MAX_WORKERS:
        what = f"services.{entry.spec.name}.workers is {asked!r}"
        raise ConfigError(f"settings: {what}; it must be 1 to {MAX_WORKERS}, or auto")
    return asked


def elastic(
    entry: ServiceEntry, bounds: Placed, settings: Mapping[str, object], rest_after_s: float
) -> tuple[ServiceEntry, ...]:
    """Return the entry as `bounds.max` processes, of which `bounds.min` always run. Raises ConfigError.

    The others start when calls wait, and rest when they have not been called for `rest_after_s`, or for as long as the
    service's own settings say.
    """
    where, least = f"settings: cluster.services.{entry.service}", bounds.min or 0
    if entry.manifest.pool is None:
        raise ConfigError(f"{where}: this service always has one process; remove `min` and `max`")
    if bounds.max is None or not least <= bounds.max <= MAX_WORKERS:
        raise ConfigError(f"{where}: `min` is {bounds.min}, so `max` must be at least that, and at most {MAX_WORKERS}")
    if "workers" in settings:
        raise ConfigError(f"{where} has `max`, so services.{entry.service}.workers must not be set")

    def process(n: int, each: ServiceEntry) -> ServiceEntry:
        rests = None if n < least else each.spec.rests_after_s or rest_after_s
        # The first one starts at once, so that a wrong setting shows.
        spec = structs.replace(each.spec, rests_after_s=rests, lazy=n >= max(1, least), grows_after_s=GROWS_AFTER_S)
        return structs.replace(each, spec=spec)

    return tuple(process(n, each) for n, each in enumerate(pool(entry, bounds.max)))


def pool(entry: ServiceEntry, count: int) -> tuple[ServiceEntry, ...]:
    """Return the entry as `count` processes, `embed`, `embed-2`, …, each supervised separately, and each with one GPU
    if there are several."""
    gpus = extras.gpus() if "cuda" in entry.spec.modes else ()

    def process(n: int) -> ServiceEntry:
        spec = entry.spec if n == 0 else structs.replace(entry.spec, name=f"{entry.spec.name}-{n + 1}")
        if len(gpus) > 1:
            # The order of their buses does not change with their speed or load.
            order = os.environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
            env = {"CUDA_DEVICE_ORDER": order, extras.VISIBLE_GPUS: gpus[n % len(gpus)]}
            spec = structs.replace(spec, env={**spec.env, **env})
        return structs.replace(entry, spec=spec)

    return tuple(map(process, range(count)))
