"""The services that make up the system: how each is started, and what each may touch.

A new service is one entry here, its folder under `services/`, and its operations under `proto/ops/`.
"""

from __future__ import annotations

import enum
import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from linckia.kernel.settings import ConfigError
from linckia.kernel.supervisor.spawn import FRONT_LIBRARIES
from linckia.kernel.supervisor.spec import ServiceSpec, ZygoteSpec
from linckia.proto import models
from linckia.proto.birth import HEAPS
from linckia.proto.front import SERVICE as FRONT
from linckia.proto.machine import usable_cores
from linckia.proto.near import nearest

GIB = 1024**3

STALL_S = 0.85
"""With the time to the next ping, a light service that hangs is noticed within two seconds."""

SCRATCH = GIB // 4
"""Of the disk, for services that keep nothing but temporary files.  What holds a user's data has no limit."""

DISK_LIMIT = "disk_limit_bytes"
"""The setting of every service that is another limit; 0: none."""

_COSTLY = "torch"
"""The zygote of over a hundred megabytes, whose loading a search would wait for."""

_LONG_PAUSE = 5
"""Times `rest_after_s` that it stays after its services: half an hour by default until all are gone."""

MAX_WORKERS = 64

CORES_A_WORKER = 8
"""Of a pool that finds its own size: the batches of one process share an interpreter, for which threads contend."""

CORES_A_FRONT, MOST_FRONTS = 2, 4
"""Of a call over HTTP a front takes 0.55 ms of a core, the kernel 0.17 and the service 0.14: a front at work keeps one
and a half cores busy, and more than three of them keep the kernel busy, which is one process."""

AGENTS = {
    "claude": ("CLAUDE_CONFIG_DIR", "~/.claude", "projects"),
    "codex": ("CODEX_HOME", "~/.codex", "sessions"),
    "gemini": ("", "~/.gemini", "tmp"),
}
"""Where agents leave their conversations: the variable that names their folder, the folder otherwise, and in it."""


class Roots(enum.StrEnum):
    """What a service may do below the roots."""

    NONE = "none"
    READ = "read"
    WRITE = "write"


class Entry(msgspec.Struct, frozen=True):
    """A service, and its part of the walls."""

    spec: ServiceSpec
    roots: Roots = Roots.NONE
    network: bool = False
    """Whether it connects to other machines."""
    connections: bool = False
    """Whether it serves connections, on listening sockets that it is handed."""
    watches: bool = False
    """Whether the system tells it of changed files."""
    reads_models: bool = False
    """Whether it may read the folders in which model weights lie."""
    cuts_texts: bool = False
    """Whether it cuts texts by the tokens of the embedding model: it is told of that, and may read its tokenizer."""
    reads_files: tuple[str, ...] = ()
    """Its settings that each name a file, which it may then read."""
    reads_environment: tuple[str, ...] = ()
    """Its settings that each name a variable of the kernel's environment, which it then gets, and no other does."""
    follows_by: str = ""
    """Its setting, if any, that lists folders which are no roots for it to follow."""
    follows: tuple[str, ...] = ()
    """Their real paths: it may read them, as `watch` may, and does not rest."""
    ops_modules: tuple[str, ...] = ()
    """Modules of operations from outside `proto.ops`."""
    rests: bool = False
    """Whether it does nothing unless called, and starts quickly: then it has no process while it is not called."""
    rests_by: str = ""
    """Its own setting, if any, for the time after which it rests, whatever the general one is; 0: never."""
    pooled: bool = False
    """Whether the setting `workers` may make several processes of it: it keeps nothing between calls."""
    needs_torch: Callable[[Mapping[str, object]], bool] | None = None
    """Whether with these settings it computes by torch, so that the zygote that has loaded that forks it."""
    optional: bool = False
    """Whether the setting `enabled` may leave it out, with its operations."""
    pool_of: str = ""
    """The service whose operations it answers, for all but the first process of a pool."""

    @property
    def service(self) -> str:
        """The service whose operations it answers and whose settings it has."""
        return self.pool_of or self.spec.name


def _cross_encoder(settings: Mapping[str, object]) -> object:
    """The model that `rerank` will load with these settings, if any."""
    model = settings.get("model", "auto")
    return None if model == "none" else (models.cross_encoder() or None) if model == "auto" else model


def gpu_present() -> bool:
    """Whether the NVIDIA driver has made its devices; asking CUDA itself would cost the kernel seconds."""
    return Path("/dev/nvidiactl").exists() and Path("/dev/nvidia0").exists()


def _spec(name: str, memory_limit_bytes: int, *, module: str = "", zygote: str = "light", **more: Any) -> ServiceSpec:
    module = module or f"linckia.services.{name}.main"
    return ServiceSpec(name=name, module=module, zygote=zygote, memory_limit_bytes=memory_limit_bytes, **more)


def _light_spec(name: str, memory_limit_bytes: int, **more: Any) -> ServiceSpec:
    """What computes in threads or not at all."""
    return _spec(name, memory_limit_bytes, stall_s=STALL_S, **more)


def _model_spec(name: str, **more: Any) -> ServiceSpec:
    return _spec(
        name,
        # Weights of the largest models in common use, twice while they are cast.
        8 * GIB,
        # That has numpy already.
        zygote="vectors",
        modes=("cuda", "cpu") if gpu_present() else ("cpu",),
        startup_timeout_s=180.0,
        # A batch of a forward pass on a busy laptop; the event loop itself never waits for it.
        hang_timeout_s=15.0,
        # Batches that are computed side by side take and free megabytes all the time; all else shares a heap.
        env={HEAPS: str(usable_cores() + 1)},
        # Models in the form that ONNX Runtime reads.
        disk_limit_bytes=32 * GIB,
        **more,
    )


ENTRIES = (
    # Its load is that of clients, whose messages may be long; where there are few cores, one is as fast as several.
    Entry(
        _spec(
            FRONT,
            2 * GIB,
            zygote="front",
            in_flight=256,
            handoff=True,
            standby_first_s=4.0,
            standby_rests_after_s=None,
            disk_limit_bytes=SCRATCH,
        ),
        roots=Roots.READ,
        connections=True,
        pooled=True,
    ),
    Entry(_light_spec("echo", GIB // 2, disk_limit_bytes=SCRATCH), rests=True),
    # 64 MB files are edited as trees of Python objects.
    Entry(_spec("yaml", 4 * GIB, disk_limit_bytes=SCRATCH), roots=Roots.WRITE, rests=True),
    # A million vectors with their text are 2 GB; the page cache does not count. A search is work for one core, in many
    # small steps: more than eight at once would only make all of them late. Three more wait for a collection that is
    # begun again.
    Entry(_spec("retrieve", 8 * GIB, zygote="vectors", in_flight=11), cuts_texts=True),
    Entry(
        _model_spec("embed"),
        reads_models=True,
        needs_torch=lambda settings: gpu_present() or settings.get("backend") == "torch",
        rests=True,
        rests_by="unload_after_s",
        pooled=True,
    ),
    Entry(
        # A search waits only briefly for a model that is to be loaded, so one that is there stays.
        _model_spec("rerank", rests_while=("model", "none")),
        reads_models=True,
        needs_torch=lambda settings: _cross_encoder(settings) is not None,
        rests=True,
        rests_by="unload_after_s",
        pooled=True,
    ),
    Entry(_light_spec("graph", 4 * GIB), rests=True),
    # Each call holds a connection and a file, of up to 4 GiB; more at once would only share one line.
    Entry(_light_spec("fetch", GIB // 2, in_flight=16, disk_limit_bytes=32 * GIB), network=True, rests=True),
    Entry(_light_spec("knowledge", 2 * GIB), roots=Roots.WRITE, cuts_texts=True),
    Entry(
        _light_spec("llm", GIB // 2, disk_limit_bytes=SCRATCH),
        network=True,
        reads_files=("key_file",),
        reads_environment=("key_env",),
        rests=True,
    ),
    # The store is on disk; a gigabyte goes through in pieces.
    Entry(_spec("documents", 2 * GIB, zygote="documents"), roots=Roots.WRITE, cuts_texts=True),
    # Calls that wait for one commit share it. It tries to tell the search what that was not told, and rests after that.
    Entry(_light_spec("transcripts", 2 * GIB, in_flight=256), rests=True, optional=True, follows_by="follow"),
    # As conversations are kept.
    Entry(_light_spec("memory", GIB, in_flight=64), rests=True),
    Entry(_light_spec("files", 2 * GIB), roots=Roots.WRITE),
    # A rescan goes on without it, only slower.
    Entry(
        _light_spec(
            "compare", GIB // 2, module="linckia.services.files.index.comparing", in_flight=8, disk_limit_bytes=SCRATCH
        ),
        roots=Roots.READ,
        rests=True,
        pooled=True,
    ),
    # Each reader has one call waiting for news.
    Entry(_light_spec("watch", GIB, in_flight=256), roots=Roots.READ, watches=True),
    # The decoder asks for the bytes of each file that waits for it.
    Entry(_light_spec("media", GIB, in_flight=256, disk_limit_bytes=8 * GIB), roots=Roots.READ, rests=True),
    # It dies of hostile files, and is back at once; it gets their bytes, and opens none. The other calls wait in the
    # kernel: its death is not the fault of a file that it had not begun, and the router tells which file it died of.
    Entry(_spec("decode", 2 * GIB, zygote="decode", in_flight=1, disk_limit_bytes=SCRATCH), rests=True),
)
"""The services of every system, in start order."""


def _zygote(name: str, *more: str, wait_s: float = 15.0, rests_after_s: float | None = None) -> ZygoteSpec:
    """It loads its services' modules and `more`; a start waits for that, since from nothing it loads the same."""
    modules = tuple(entry.spec.module for entry in ENTRIES if entry.spec.zygote == name)
    preload = ("linckia.services.runtime.main", *more)
    return ZygoteSpec(name=name, preload=preload, modules=modules, wait_s=wait_s, rests_after_s=rests_after_s)


# In the order in which they load where processors are few: what answers a search by words comes first.
ZYGOTES = (
    _zygote("light"),
    _zygote("vectors", "faiss"),
    _zygote("documents"),
    # For the second front on: the first starts from nothing, since loading the SDK takes a second.
    _zygote("front", *FRONT_LIBRARIES, wait_s=0),
    # It loads in a quarter of a second, and takes 20 MB.
    _zygote("decode", rests_after_s=0),
    # transformers too, where the models that are here need it: their services say so. Loading torch takes seconds.
    _zygote(
        "torch",
        "torch",
        "linckia.services.embed.main",
        "linckia.services.embed.torch_encoder",
        "linckia.services.rerank.main",
        "linckia.services.rerank.model",
        wait_s=60.0,
    ),
)


def from_package(package: str) -> Entry:
    """A service from outside: `PACKAGE.operations` declares its operations, `PACKAGE.main` has its `open_service`."""
    spec = _spec(package.rpartition(".")[2], GIB // 2, module=f"{package}.main", disk_limit_bytes=GIB)
    return Entry(spec, ops_modules=(f"{package}.operations",))


def pools(
    entries: tuple[Entry, ...],
    settings: Mapping[str, Mapping[str, object]],
    *,
    rest_after_s: float,
    standbys: bool,
    environment: Mapping[str, str] = os.environ,
) -> dict[str, tuple[Entry, ...]]:
    """The processes of each service that is served, by its name; `settings` are their tables.  Raises ConfigError."""
    known = [entry.service for entry in entries]
    for name in settings:
        if name not in known:
            raise ConfigError(f"settings: there is no service {name!r}{nearest(name, known)}")
    follows = {entry.service: _followed(entry, settings.get(entry.service, {}), environment) for entry in entries}
    every = tuple(dict.fromkeys(itertools.chain.from_iterable(follows.values())))
    found = {}
    for entry in entries:
        own = settings.get(entry.service, {})
        if not (entry.optional and own.get("enabled") is False):
            followed = every if entry.watches else follows[entry.service]
            given = configured(entry, own, rest_after_s=rest_after_s, standbys=standbys, follows=followed)
            found[entry.service] = pool(given, workers(entry, own))
    return found


def configured(
    entry: Entry,
    own: Mapping[str, object],
    *,
    rest_after_s: float,
    standbys: bool = True,
    follows: tuple[str, ...] = (),
) -> Entry:
    """As the settings have it, `own` those of its service: it gives up its standby, and its process where it may rest,
    once not called for `rest_after_s` (0: never).  Raises ConfigError.
    """
    spec = entry.spec
    limit = own.get(DISK_LIMIT, spec.disk_limit_bytes or 0)
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
        what = f"services.{entry.service}.{DISK_LIMIT} is {limit!r}"
        raise ConfigError(f"settings: {what}; it is a number of bytes, or 0 for no limit")
    given = own.get(entry.rests_by)
    stated = max(0.0, given) if isinstance(given, int | float) else None
    rests = entry.rests and not follows
    spec = structs.replace(
        spec,
        zygote="torch" if entry.needs_torch is not None and entry.needs_torch(own) else spec.zygote,
        disk_limit_bytes=limit or None,
        # Started once clients can be answered, and ended while they still can.
        depends_on=() if entry.service == FRONT else (FRONT,),
        standby=standbys,
        standby_rests_after_s=(rest_after_s or None) if spec.standby_rests_after_s else None,
        rests_after_s=((rest_after_s if stated is None else stated) or None) if rests else None,
        # A time that its own setting states counts whatever its process holds.
        rests_while=None if stated else spec.rests_while,
    )
    return structs.replace(entry, spec=spec, follows=follows, rests=rests)


def _followed(entry: Entry, settings: Mapping[str, object], environment: Mapping[str, str]) -> tuple[str, ...]:
    """The real paths of the folders that a service's settings have it follow.  Raises ConfigError."""
    given = settings.get(entry.follows_by, []) if entry.follows_by else []
    what = f"settings: services.{entry.service}.{entry.follows_by}"
    if not isinstance(given, list):
        raise ConfigError(f"{what} is {given!r}; it is a list of names and folders")
    found = []
    for each in given:
        path = str(each)
        if each in AGENTS:
            variable, folder, inside = AGENTS[each]
            path = os.path.join(environment.get(variable) or folder, inside)
        path = os.path.expanduser(path)
        if not os.path.isabs(path):
            raise ConfigError(f"{what}: {each!r} is neither {', '.join(AGENTS)} nor the absolute path of a folder")
        found.append(os.path.realpath(path))
    return tuple(dict.fromkeys(found))


def zygotes(chosen: Iterable[Entry], rest_after_s: float = 0) -> tuple[ZygoteSpec, ...]:
    """Those that these services are forked by; the costly one rests long after its services (`_LONG_PAUSE`)."""
    needed = {entry.spec.zygote for entry in chosen}
    late = _LONG_PAUSE * rest_after_s or None
    return tuple(
        structs.replace(spec, rests_after_s=late) if spec.name == _COSTLY else spec
        for spec in ZYGOTES
        if spec.name in needed
    )


def workers(entry: Entry, settings: Mapping[str, object]) -> int:
    """How many processes the settings of a service ask for; 1 where they do not say.  Raises ConfigError."""
    asked = settings.get("workers", 1) if entry.pooled else 1
    if asked == "auto":
        if entry.service == FRONT:
            return min(MOST_FRONTS, max(1, usable_cores() // CORES_A_FRONT))
        # One process feeds a GPU; more only where a measurement shows that they help.
        return 1 if gpu_present() else max(1, usable_cores() // CORES_A_WORKER)
    if not isinstance(asked, int) or isinstance(asked, bool) or not 1 <= asked <= MAX_WORKERS:
        what = f"services.{entry.spec.name}.workers is {asked!r}"
        raise ConfigError(f"settings: {what}; it is 1 to {MAX_WORKERS}, or auto")
    return asked


def pool(entry: Entry, count: int) -> tuple[Entry, ...]:
    """The entry as so many processes, `embed`, `embed-2`, …, each supervised for itself."""
    others = (
        structs.replace(entry, spec=structs.replace(entry.spec, name=f"{entry.spec.name}-{n}"), pool_of=entry.spec.name)
        for n in range(2, count + 1)
    )
    return (entry, *others)
