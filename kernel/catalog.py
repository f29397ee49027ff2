"""The services that make up the system: how each is started, and what each may touch.

A new service is one entry here, its folder under `services/`, and its operations under `proto/ops/`.  The kernel
never imports a service; it knows the name of its module.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import structs

from kernel.supervisor.spec import ServiceSpec, ZygoteSpec
from proto.cores import usable_cores
from proto.memory import HEAPS

GIB = 1024**3

# A zygote must have one thread when it forks; a BLAS that starts its threads when it is imported would make that two.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}

# Batches that are computed side by side take and free megabytes all the time; all else shares a heap.
_A_HEAP_A_BATCH = {HEAPS: str(usable_cores() + 1)}

# From nothing a service loads the same modules as its zygote: to wait for one under way is quicker.
_WAIT_S = 15.0

# In the order in which they load where processors are few: what answers a search by words comes first.
ZYGOTES = (
    ZygoteSpec(
        name="light",
        preload=(
            "services.runtime.main",
            "services.echo.main",
            "services.yaml.main",
            "services.graph.main",
            "services.knowledge.main",
            "services.fetch.main",
            "services.transcripts.main",
            "services.files.main",
            "services.files.index.comparing",
            "services.watch.main",
            "services.media.main",
            "services.llm.main",
        ),
        env=_ONE_THREAD,
        wait_s=_WAIT_S,
    ),
    ZygoteSpec(
        name="vectors",
        preload=("services.runtime.main", "faiss", "services.retrieve.main"),
        env=_ONE_THREAD,
        wait_s=_WAIT_S,
    ),
    ZygoteSpec(
        name="documents",
        preload=("services.runtime.main", "services.documents.main"),
        env=_ONE_THREAD,
        wait_s=_WAIT_S,
    ),
    ZygoteSpec(
        name="decode",
        preload=("services.runtime.main", "services.decode.main"),
        env=_ONE_THREAD,
        # A quarter of a second, for its 20 MB.
        rests_after_s=0,
        wait_s=_WAIT_S,
    ),
    ZygoteSpec(
        name="torch",
        # transformers too, where the models that are here need it: their services say so.
        preload=(
            "services.runtime.main",
            "torch",
            "services.embed.main",
            "services.embed.torch_encoder",
            "services.rerank.main",
            "services.rerank.model",
        ),
        env=_ONE_THREAD,
        # Loading torch takes seconds, and starting from nothing takes as many again.
        wait_s=60.0,
    ),
)


_COSTLY = frozenset({"torch"})
"""Zygotes of over a hundred megabytes, whose loading a search would wait for."""

_LONG_PAUSE = 5
"""Times as long as their services wait do they wait after them: half an hour by default until both are gone."""

RESOLVER_FOLDERS = ("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager", "/run/connman")
"""Where systems keep, and replace, the file that names their name servers; read by services with a network."""


class Roots(enum.StrEnum):
    """What a service may do below the roots."""

    NONE = "none"
    READ = "read"
    WRITE = "write"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A service, and its part of the walls."""

    spec: ServiceSpec
    roots: Roots = Roots.NONE
    network: bool = False
    reads_models: bool = False
    """Whether it may read the folders in which model weights lie."""
    reads_files: tuple[str, ...] = ()
    """Its settings that each name a file, which it may then read."""
    ops_modules: tuple[str, ...] = ()
    """Modules of operations that are not part of every system (`OPTIONAL`)."""
    rests: bool = False
    """Whether it has nothing to do unless it is called, and starts so quickly that a caller may wait for that: then it
    has no process while it is not called."""
    rests_by: str = ""
    """Its own setting, if it has one, for the time after which it rests, whatever the general one is; 0: never."""
    pooled: bool = False
    """Whether the setting `workers` may make several processes of it: it keeps nothing between calls."""
    light_with: tuple[str, str] | None = None
    """A setting, and that value of it with which the service needs nothing of what its zygote has loaded: then it is
    forked by the light one, and may rest."""
    optional: bool = False
    """Whether the setting `enabled` may leave it out, with its operations."""
    pool_of: str = ""
    """The service whose operations it answers, for all but the first process of a pool."""

    @property
    def service(self) -> str:
        """The service whose operations it answers and whose settings it has."""
        return self.pool_of or self.spec.name


def gpu_present() -> bool:
    """Whether the NVIDIA driver has made its devices; asking CUDA itself would cost the kernel seconds."""
    return Path("/dev/nvidiactl").exists() and Path("/dev/nvidia0").exists()


_ENTRIES = (
    Entry(
        spec=ServiceSpec(name="echo", module="services.echo.main", zygote="light", memory_limit_bytes=GIB // 2),
        rests=True,
    ),
    Entry(
        # 64 MB files are edited as trees of Python objects.
        spec=ServiceSpec(name="yaml", module="services.yaml.main", zygote="light", memory_limit_bytes=4 * GIB),
        roots=Roots.WRITE,
        rests=True,
    ),
    Entry(
        spec=ServiceSpec(
            name="retrieve",
            module="services.retrieve.main",
            zygote="vectors",
            # A million vectors with their text are 2 GB; the page cache does not count.
            memory_limit_bytes=8 * GIB,
            # A search is work for one core, in many small steps: more than eight at once would only make all of them
            # late. Three more wait for a collection that is begun again.
            in_flight=11,
        ),
    ),
    Entry(
        spec=ServiceSpec(
            name="embed",
            module="services.embed.main",
            zygote="torch",
            modes=("cuda", "cpu"),
            startup_timeout_s=180.0,
            # Weights of the largest models in common use, twice while they are cast.
            memory_limit_bytes=8 * GIB,
            # A batch of a forward pass on a busy laptop; the event loop itself never waits for it.
            hang_timeout_s=15.0,
            env=_A_HEAP_A_BATCH,
        ),
        reads_models=True,
        light_with=("backend", "onnx"),
        rests=True,
        rests_by="unload_after_s",
        pooled=True,
    ),
    Entry(
        spec=ServiceSpec(
            name="rerank",
            module="services.rerank.main",
            zygote="torch",
            modes=("cuda", "cpu"),
            startup_timeout_s=180.0,
            memory_limit_bytes=8 * GIB,
            # As for `embed`.
            hang_timeout_s=15.0,
            # A search waits only briefly for a model that is to be loaded, so one that is there stays.
            rests_while=("model", "none"),
            env=_A_HEAP_A_BATCH,
        ),
        reads_models=True,
        light_with=("model", "none"),
        rests_by="unload_after_s",
        rests=True,
        pooled=True,
    ),
    Entry(
        spec=ServiceSpec(name="graph", module="services.graph.main", zygote="light", memory_limit_bytes=4 * GIB),
        rests=True,
    ),
    Entry(
        spec=ServiceSpec(
            name="fetch",
            module="services.fetch.main",
            zygote="light",
            memory_limit_bytes=GIB // 2,
            # Each holds a connection and a file; more at once would only share one line.
            in_flight=16,
        ),
        network=True,
        rests=True,
    ),
    Entry(
        spec=ServiceSpec(
            name="knowledge",
            module="services.knowledge.main",
            zygote="light",
            memory_limit_bytes=2 * GIB,
        ),
        roots=Roots.WRITE,
    ),
    Entry(
        spec=ServiceSpec(name="llm", module="services.llm.main", zygote="light", memory_limit_bytes=GIB // 2),
        network=True,
        reads_files=("key_file",),
        rests=True,
    ),
    Entry(
        # The store is on disk; a gigabyte goes through in pieces.  The rest is room for hostile PDFs.
        spec=ServiceSpec(
            name="documents",
            module="services.documents.main",
            zygote="documents",
            memory_limit_bytes=2 * GIB,
        ),
        roots=Roots.WRITE,
    ),
    Entry(
        spec=ServiceSpec(
            name="transcripts",
            module="services.transcripts.main",
            zygote="light",
            memory_limit_bytes=2 * GIB,
            # Those that wait for one commit share it.
            in_flight=256,
        ),
        # While the search has not been told all, it tries to.
        rests=True,
        optional=True,
    ),
    Entry(
        spec=ServiceSpec(name="files", module="services.files.main", zygote="light", memory_limit_bytes=2 * GIB),
        roots=Roots.WRITE,
    ),
    Entry(
        # A rescan goes on without it, only slower.
        spec=ServiceSpec(
            name="compare",
            module="services.files.index.comparing",
            zygote="light",
            memory_limit_bytes=GIB // 2,
            in_flight=8,
        ),
        roots=Roots.READ,
        rests=True,
        pooled=True,
    ),
    Entry(
        spec=ServiceSpec(
            name="watch",
            module="services.watch.main",
            zygote="light",
            memory_limit_bytes=GIB,
            # Each reader has one call waiting for news.
            in_flight=256,
        ),
        roots=Roots.READ,
    ),
    Entry(
        spec=ServiceSpec(name="media", module="services.media.main", zygote="light", memory_limit_bytes=GIB),
        roots=Roots.READ,
        rests=True,
    ),
    Entry(
        # It dies of hostile files, and is back at once: `media` decides what to refuse, for each content.
        spec=ServiceSpec(
            name="decode",
            module="services.decode.main",
            zygote="decode",
            memory_limit_bytes=2 * GIB,
            # The others wait in the kernel: its death is not the fault of a file that it had not begun.
            in_flight=1,
        ),
        roots=Roots.READ,
        rests=True,
    ),
)
"""The services of every system, in start order."""


def entries() -> tuple[Entry, ...]:
    """The services of every system, in start order; without modes for a GPU where there is none."""
    if gpu_present():
        return _ENTRIES
    only_cpu = {"modes": ("cpu",)}
    return tuple(
        structs.replace(entry, spec=structs.replace(entry.spec, **only_cpu)) if entry.spec.modes else entry
        for entry in _ENTRIES
    )


def served(all_entries: tuple[Entry, ...], settings: Mapping[str, Mapping[str, object]]) -> tuple[Entry, ...]:
    """Without the services that the settings switch off, and each from the zygote that suits its settings."""
    return tuple(
        _lightened(entry, settings.get(entry.service, {}))
        for entry in all_entries
        if not (entry.optional and settings.get(entry.service, {}).get("enabled") is False)
    )


def _lightened(entry: Entry, settings: Mapping[str, object]) -> Entry:
    if entry.light_with is None or settings.get(entry.light_with[0]) != entry.light_with[1]:
        return entry
    return structs.replace(entry, spec=structs.replace(entry.spec, zygote="light", env={}), rests=True)


def zygotes(chosen: tuple[Entry, ...], rest_after_s: float = 0) -> tuple[ZygoteSpec, ...]:
    """Those that these services are forked by.

    Args:
        rest_after_s: as `resting` has it; the costly ones rest too, after a pause that is so much longer.
    """
    needed = {entry.spec.zygote for entry in chosen}
    return tuple(_resting_late(spec, rest_after_s) for spec in ZYGOTES if spec.name in needed)


def _resting_late(spec: ZygoteSpec, rest_after_s: float) -> ZygoteSpec:
    if spec.name not in _COSTLY or not rest_after_s:
        return spec
    return structs.replace(spec, rests_after_s=_LONG_PAUSE * rest_after_s)


CONFORMANCE = Entry(
    spec=ServiceSpec(
        name="conformance", module="services.conformance.main", zygote="light", memory_limit_bytes=GIB // 2
    ),
    ops_modules=("proto.ops.conformance",),
)
"""The fixtures of the protocol's official test suite; served on request only."""


MAX_WORKERS = 64

CORES_A_WORKER = 8
"""Of a pool that finds its own size: the batches of one process share an interpreter, for which threads contend."""


def workers(entry: Entry, settings: Mapping[str, object]) -> int:
    """How many processes the settings of a service ask for; 1 where they do not say.

    Raises:
        ValueError: the setting is neither a number in range nor `auto`; says what would be right.
    """
    asked = settings.get("workers", 1) if entry.pooled else 1
    if asked == "auto":
        # One process feeds a GPU; more only where a measurement shows that they help.
        return 1 if gpu_present() else max(1, usable_cores() // CORES_A_WORKER)
    if not isinstance(asked, int) or isinstance(asked, bool) or not 1 <= asked <= MAX_WORKERS:
        raise ValueError(f"services.{entry.spec.name}.workers is {asked!r}; it is 1 to {MAX_WORKERS}, or auto")
    return asked


def pool(entry: Entry, count: int) -> tuple[Entry, ...]:
    """The entry as so many processes, `embed`, `embed-2`, …, each supervised for itself."""
    others = (
        structs.replace(entry, spec=structs.replace(entry.spec, name=f"{entry.spec.name}-{n}"), pool_of=entry.spec.name)
        for n in range(2, count + 1)
    )
    return (entry, *others)


def resting(entry: Entry, after_s: float, settings: Mapping[str, object], *, standby: bool = True) -> Entry:
    """The same with what it has to spare given up once it was not called for so long; 0: never.

    Its standby is given up then, and the service's own process too where it may rest.
    """
    own = settings.get(entry.rests_by)
    stated = max(0.0, own) if isinstance(own, int | float) else None
    rests_after_s = after_s if stated is None else stated
    spec = structs.replace(
        entry.spec,
        standby=standby,
        standby_rests_after_s=after_s or None,
        rests_after_s=(rests_after_s or None) if entry.rests else None,
        # A time that its own setting states counts whatever its process holds.
        rests_while=None if stated else entry.spec.rests_while,
    )
    return structs.replace(entry, spec=spec)


def named_files(entry: Entry, settings: Mapping[str, object]) -> tuple[str, ...]:
    """The files that the settings name for a service to read."""
    given = (settings.get(name) for name in entry.reads_files)
    return tuple(str(Path(path).expanduser().resolve()) for path in given if isinstance(path, str) and path)


def model_folders(settings: Mapping[str, object], environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The folders that may hold model weights: the hub's cache, and the folder that the settings name."""
    cache = Path(environment.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    home = environment.get("HF_HOME") or str(cache / "huggingface")
    folders = [home, environment.get("HF_HUB_CACHE", ""), environment.get("HUGGINGFACE_HUB_CACHE", "")]
    model = settings.get("model")
    if isinstance(model, str) and (model.startswith(("/", "~", "."))):
        folders.append(str(Path(model).expanduser().resolve()))
    return tuple(folder for folder in folders if folder)
