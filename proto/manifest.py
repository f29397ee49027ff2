"""Manifests: what the kernel and its tools need to know about a service before they start it.

`manifest.py`, in a service's folder or an external package, defines `MANIFESTS`. It is data, and imports only `proto`
and the standard library, since the kernel and the command line read it. Module names in it are relative to its package.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from typing import Final, Literal

import msgspec

from proto.json_types import JsonObject, Layer
from proto.operation import Operation
from proto.wire.front import LIBRARIES
from proto.wire.front import SERVICE as FRONT

NAME: Final = r"[a-z][a-z0-9_]{0,63}"
"""Pattern for names of services."""

GIB: Final = 1024**3

STALL_S: Final = 0.85
"""Together with the time to the next ping, this makes a hanging light service noticed within two seconds."""

SCRATCH: Final = GIB // 4
"""Disk limit for services that keep only temporary files. Services with users' data have no limit."""

MAX_WORKERS: Final = 1000
"""As many as `scripts/bench simulate` was run with. Beyond, decisions about deaths take the kernel milliseconds."""

THREADS_A_CORE: Final = 16
"""Threads that a service may have for each processor: torch, FAISS and ONNX each start one per processor, and again for
each thread that calls them."""


class Roots(enum.StrEnum):
    """What a service may do below the roots."""

    NONE = "none"
    READ = "read"
    WRITE = "write"


class Keep(enum.Enum):
    """What a backup does with a file, or with a folder and everything in it."""

    SOURCE = "source"
    """The only copy: backed up."""
    ITEMS = "items"
    """A folder of SOURCE data; each entry is created and removed by one rename, and does not change in between."""
    DERIVED = "derived"
    """Can be recreated from other data: left out, and rebuilt after a restore."""
    PASSING = "passing"
    """Belongs to a process or a moment: left out."""


class Store(msgspec.Struct, frozen=True):
    """Files of a service: `path` is a pattern below its folder, with `*` for any characters; empty for the folder."""

    path: str
    keep: Keep
    schema: int = 0
    """Version of the database's schema; 0 if it has none, or another store states it."""
    rebuilt: bool = False
    """Whether the service rebuilds it if it is damaged, although backups include it."""
    movable: bool = False
    """Whether its pages may be on a server (`[sources]`)."""


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """Data that users made: a JSON Lines file in an export's folder named like the service."""

    file: str
    about: str
    """Sentence for the export's README."""
    lists: str
    """Operation that returns a page; the last page is empty."""
    items: str
    """Name of the list in a page, and of the parameter of `takes`."""
    first: JsonObject = {}
    """Parameters for the first page."""
    follows_by: Literal["next", "offset"] = "next"
    """How the next page is requested: `after` is the page's `next`, or `offset` is the number of items so far."""
    takes: str
    """Idempotent operation that imports items and returns how many `changed` something."""


class Zygote(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has imported what some services need, and forks them."""

    name: str
    order: int
    """Zygotes load in this order if processors are few."""
    preload: tuple[str, ...] = ()
    """Full names of modules to load, in addition to the services' own."""
    wait_s: float = 15.0
    """How long a start waits for it to load; a service started from scratch has to load the same."""
    rests_after_s: float | None = None
    """Seconds without any of its services after which it ends."""
    is_costly: bool = False
    """Whether loading it takes so long that it rests only long after its services."""


LIGHT: Final = Zygote(name="light", order=10)
MCP: Final = Zygote(name=FRONT, order=40, preload=LIBRARIES, wait_s=0, rests_after_s=0)
"""Has loaded MCP's SDK. The first front starts without it, because loading the SDK takes a second."""
VECTORS: Final = Zygote(name="vectors", order=20, preload=("faiss",))
TORCH: Final = Zygote(name="torch", order=90, preload=("torch",), wait_s=60.0, is_costly=True)
"""Loads every module that services name in `Torch.preload`; loading torch takes seconds and 100 MB."""


class Torch(msgspec.Struct, frozen=True):
    """When a service uses torch, so that `TORCH` forks it."""

    is_needed: Callable[[Mapping[str, object], bool], bool]
    """Decides from the service's settings and from whether the machine has a GPU."""
    preload: tuple[str, ...] = ()
    memory_limit_with_gpu_bytes: int = 24 * GIB
    """With a GPU, models are larger: 8 billion parameters in 16 bits pass through 16 GB of the process's memory."""


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """The setting `workers` gives a service several processes; such a service keeps no state between calls."""

    cores_each: int = 8
    """Cores per process with `auto`: the batches of one process share an interpreter."""
    most: int = MAX_WORKERS
    """Maximum number of processes with `auto`."""
    one_per_gpu: bool = False
    """Whether `auto` means one process for each GPU if there are any; more only if they help when measured."""


class ShortTable(msgspec.Struct, frozen=True):
    """A settings table `[NAME]` that is equivalent to `[services.NAME]`, which overrides it.

    Without `lists`, it takes all settings of the service, and so do variables `LINCKIA_NAME__SETTING`.
    """

    name: str
    lists: tuple[str, ...] = ()
    """The only settings allowed: lists of strings, which variables `LINCKIA_NAME_SETTING` give separated by commas."""


class AgentFolder(msgspec.Struct, frozen=True):
    """Where an agent keeps its files: in `inside` of the folder that `variable` names, or else of `folder`."""

    variable: str
    folder: str
    inside: str


class Follows(msgspec.Struct, frozen=True):
    """A setting that lists folders outside the roots for a service to follow, by path or by name of an agent."""

    setting: str
    agents: Mapping[str, AgentFolder] = {}


class Supervised(msgspec.Struct, frozen=True, kw_only=True):
    """How a service's processes are started and watched; its child specs say the same."""

    name: str
    memory_limit_bytes: int | None = None
    """Limit for its own memory with swap, without file-backed pages; above it the service is replaced. None: none."""
    disk_limit_bytes: int | None = None
    """Limit for its own folder and deleted files it has open; above it the service is ended. None: no limit."""
    stall_s: float | None = None
    """Hang limit for services that never keep their loop busy: time without a pong in which the process slept or had a
    processor, not counting waits for a processor. None: it may compute for `hang_timeout_s`."""
    hang_timeout_s: float = 5.0
    """A healthy event loop answers in milliseconds, a starved one within a second; callers' deadlines are 10 s."""
    startup_timeout_s: float = 60.0
    """Limit from spawn to READY: with a cold page cache, loading a model from a slow disk takes tens of seconds."""
    in_flight: int = 64
    """Calls served at once; more would only share the same two cores."""
    start_tries: int | None = None
    """This many consecutive unhealthy deaths, the last one before READY, are a crash loop too: slow starts that fail
    never exceed the intensity. None: no such limit."""
    calls_wait_s: float | None = None
    """Time that a call waits for a process to become READY, if that is shorter than its deadline. None: no limit."""
    lazy: bool = False
    """Whether it starts with its first call rather than with the system, and after FAILED with the next call."""
    zygote_wait_s: float | None = None
    """How long its start waits for a loading zygote, if not as long as the zygote's spec says."""
    standby: bool = True
    """Whether a process forked in advance waits for this one's death. Requires a zygote."""
    standby_first_s: float = 1.0
    """Delay from the first READY to the first standby: during start-up, clients need the processors."""
    standby_rests_after_s: float | None = 300.0
    """Seconds without a client's call after which the standby is ended, until the next call. None: never."""
    handoff: bool = False
    """Whether it has a second socket, over which the kernel passes it sockets of clients."""
    programs: bool = False
    """Whether it starts other programs, whose memory `status` adds to its own. They inherit its sandbox, so it has no
    limits on memory and files; a confined one may read everything but Linckia's own files and what is denied. They get
    the kernel's usual variables."""
    rests_while: tuple[str, str] | None = None
    """A key of its `info` and the value it must have for the service to rest. None: no condition."""


class Manifest(Supervised, frozen=True, kw_only=True):
    """A service."""

    order: int = 1000
    """Services start in this order, then by name."""

    module: str = "main"
    """Module that defines `open_service`."""
    ops_modules: tuple[str, ...] = ()
    """Modules that declare operations, in addition to those in `proto.ops`."""
    zygote: Zygote = LIGHT
    torch: Torch | None = None
    memory_limit_bytes: int = GIB // 2
    threads: int = 512
    """Maximum number of threads in addition to `THREADS_A_CORE` per processor: more than calls in flight can use."""
    open_files: int = 1024
    """Maximum number of open files. With n of them, a process can watch (n/2)² by epoll; the system limits those of a
    user's processes in total, and charges their memory to none."""
    modes: tuple[str, ...] = ()
    """`cuda` is omitted if the machine has no GPU."""
    restart: Literal["permanent", "transient", "temporary"] = "permanent"
    heap_per_core: bool = False
    """Whether its threads have a heap for each core, rather than one for all."""

    confined: bool = True
    """Whether it runs in a sandbox. If not, it runs as a program of the user who runs the kernel."""
    variables: tuple[str, ...] = ()
    """Additional variables of the kernel's environment that it gets."""
    files: tuple[str, ...] = ()
    """Files that it may read, by absolute path."""
    folders: tuple[str, ...] = ()
    """Folders outside the roots that it may write, by absolute path."""
    roots: Roots = Roots.NONE
    network: bool = False
    """Whether it connects to other machines."""
    network_by: str = ""
    """Setting that, if it is given, lets it connect to other machines."""
    connections: bool = False
    """Whether it serves connections, on listening sockets that are passed to it."""
    watches: bool = False
    """Whether the system notifies it of changed files."""
    stateless: bool = False
    """Whether it can run on a node of a cluster: it keeps nothing that matters between calls, and needs no files of
    this machine but models."""
    models_of: str = ""
    """Service whose model files it may read: those in the hub's cache, and the folder in that service's `model`."""
    reads_files: tuple[str, ...] = ()
    """Settings that name files which it may read; clients may not."""
    reads_environment: tuple[str, ...] = ()
    """Settings that name variables of the kernel's environment, which no other service gets."""

    table: ShortTable | None = None
    told_settings: Mapping[str, str] = {}
    """Additional settings: by name, the service whose whole table it gets."""
    told_issuer: bool = False
    """Whether its settings include the address of the token issuer (`[http.oauth]`)."""
    follows: Follows | None = None
    essential: bool = False
    """Whether it is served even if only mounted servers are (`only_mounts`)."""
    needs_setting: str = ""
    """Setting without which it is not served."""
    optional: bool = False
    """Whether the setting `enabled` can turn it off, with its operations."""

    rests: bool = False
    """Whether it acts only when called, and starts quickly, so that it needs no process while it is not called."""
    rests_by: str = ""
    """Setting for the time after which it rests, if it has one, overriding the general one; 0: never."""
    pool: Pool | None = None

    stores: tuple[Store, ...] = ()
    exports: tuple[Export, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError if the name is not valid."""
        if not re.fullmatch(NAME, self.name):
            raise ValueError(f"`name` is {self.name!r}; use lower-case letters, digits and _, starting with a letter")


class Template(msgspec.Struct, frozen=True, kw_only=True):
    """Services made from the settings: one for each table `[TABLE.NAME]`. A package's `manifest.py` lists them in
    `TEMPLATES`, beside `MANIFESTS`. `manifest` and `operations` raise ValueError, which names the setting."""

    table: str
    module: str
    """Module of its services. Zygotes load it at its first fork, since there may be no such service yet."""
    manifest: Callable[[str, Layer], Manifest]
    """Makes the manifest from NAME and the table."""
    operations: Callable[[str], Mapping[str, Operation[object]]]
    """Returns the operations of NAME's service."""
