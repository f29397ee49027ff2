"""Manifests: what the kernel and its tools must know of a service before they start it.

`manifest.py` in a service's folder, or in a package from outside, has `MANIFESTS`.  It is data, and imports nothing but
`proto` and the standard library, since the kernel and the command line read it.  Names of modules in it are relative to
its package.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from typing import Final, Literal

import msgspec

from linckia.proto.json_types import JsonObject

NAME: Final = r"[a-z][a-z0-9_]{0,63}"
"""What a service may be called."""

GIB: Final = 1024**3

STALL_S: Final = 0.85
"""With the time to the next ping, a light service that hangs is noticed within two seconds."""

SCRATCH: Final = GIB // 4
"""Disk space for services that keep only temporary files.  What holds a user's data has no limit."""

MAX_WORKERS: Final = 64

THREADS_A_CORE: Final = 16
"""Threads that a service may have for each processor: torch, FAISS and ONNX start one for each, again for each of the
threads that call them."""


class Roots(enum.StrEnum):
    """What a service may do below the roots."""

    NONE = "none"
    READ = "read"
    WRITE = "write"


class Keep(enum.Enum):
    """What a backup does with a file, or with a folder and all in it."""

    SOURCE = "source"
    """The only copy: backed up."""
    ITEMS = "items"
    """A folder of such; each of its entries comes and goes by one rename, and is not changed in between."""
    DERIVED = "derived"
    """Made again from the rest: left out, and rebuilt after a restore."""
    PASSING = "passing"
    """Belongs to a process or a moment."""


class Store(msgspec.Struct, frozen=True):
    """Files of a service: `path` is a pattern below its folder, with `*` for any characters; empty: the folder."""

    path: str
    keep: Keep
    schema: int = 0
    """Version of the database's schema; 0: it has none, or another store states it."""
    rebuilt: bool = False
    """Whether the service rebuilds it when it is damaged, although a backup keeps it."""


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """Data that users made: a file of JSON Lines, in an export's folder of the service's name."""

    file: str
    about: str
    """A sentence for the export's README."""
    lists: str
    """Operation that returns a page; an empty one is the last."""
    items: str
    """The list in a page, and the parameter of `takes`."""
    first: JsonObject = {}
    """Parameters of the first page."""
    follows_by: Literal["next", "offset"] = "next"
    """How the next page is asked for: `after` is the page's `next`, or `offset` is the number of items so far."""
    takes: str
    """Idempotent operation that takes items in and returns how many `changed` something."""


class Zygote(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has imported what some services need, and forks them."""

    name: str
    order: int
    """Zygotes load in this order where processors are few."""
    preload: tuple[str, ...] = ()
    """Modules by their full names, beside the services' own."""
    wait_s: float = 15.0
    """How long a start waits for it to load: from nothing, a service loads the same."""
    rests_after_s: float | None = None
    """Time without any of its services after which it is ended."""
    is_costly: bool = False
    """Whether loading it again takes so long that it rests only long after its services."""


LIGHT: Final = Zygote(name="light", order=10)
VECTORS: Final = Zygote(name="vectors", order=20, preload=("faiss",))
TORCH: Final = Zygote(name="torch", order=90, preload=("torch",), wait_s=60.0, is_costly=True)
"""It loads every module that services name in `Torch.preload`; loading torch takes seconds and 100 MB."""


class Torch(msgspec.Struct, frozen=True):
    """When a service computes with torch, so that `TORCH` forks it."""

    is_needed: Callable[[Mapping[str, object], bool], bool]
    """Decides by the service's settings, and by whether the machine has a GPU."""
    preload: tuple[str, ...] = ()


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """The setting `workers` makes several processes of a service, which keeps nothing between calls."""

    cores_each: int = 8
    """With `auto`, there is one process for so many cores: a process's batches share an interpreter."""
    most: int = MAX_WORKERS
    """With `auto`."""
    one_with_gpu: bool = False
    """With `auto`, one process feeds a GPU; more only where a measurement shows that they help."""


class ShortTable(msgspec.Struct, frozen=True):
    """A table of the settings, `[NAME]`, that means the same as `[services.NAME]` and yields to it.

    Without `lists` it takes all settings of the service, and so do variables `LINCKIA_NAME__SETTING`.
    """

    name: str
    lists: tuple[str, ...] = ()
    """Its only settings: lists of strings, which variables `LINCKIA_NAME_SETTING` give with commas in between."""


class AgentFolder(msgspec.Struct, frozen=True):
    """Where an agent keeps its files: in `inside` of the folder that the `variable` names, or else of `folder`."""

    variable: str
    folder: str
    inside: str


class Follows(msgspec.Struct, frozen=True):
    """The setting that lists folders outside the roots for a service to follow: by path, or by the name of an agent."""

    setting: str
    agents: Mapping[str, AgentFolder] = {}


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A service.  Fields with the names of `kernel.supervisor.spec.ServiceSpec` mean the same."""

    name: str
    order: int = 1000
    """Services start in this order, then by name."""

    module: str = "main"
    """Has `open_service`."""
    ops_modules: tuple[str, ...] = ()
    """Declare operations, beside those in `proto.ops`."""
    zygote: Zygote = LIGHT
    torch: Torch | None = None
    memory_limit_bytes: int = GIB // 2
    disk_limit_bytes: int | None = None
    threads: int = 512
    """Most threads, beside `THREADS_A_CORE` for each processor: more than the calls in flight can keep busy."""
    open_files: int = 1024
    """Most open files.  With n of them, a process can watch (n/2)² by epoll; the system bounds those of a user's
    processes together, and counts their memory for none."""
    modes: tuple[str, ...] = ()
    """`cuda` is left out where the machine has no GPU."""
    stall_s: float | None = None
    hang_timeout_s: float = 5.0
    startup_timeout_s: float = 60.0
    in_flight: int = 64
    handoff: bool = False
    standby_first_s: float = 1.0
    standby_rests_after_s: float | None = 300.0
    heap_per_core: bool = False
    """Whether its threads take memory from a heap for each core, and not all from one."""

    roots: Roots = Roots.NONE
    network: bool = False
    """Whether it connects to other machines."""
    connections: bool = False
    """Whether it serves connections, on listening sockets that it is handed."""
    watches: bool = False
    """Whether the system tells it of changed files."""
    models_of: str = ""
    """The service whose model files it may read: those in the hub's cache, and the folder that its `model` names."""
    reads_files: tuple[str, ...] = ()
    """Its settings that each name a file, which it may read; no client may."""
    reads_environment: tuple[str, ...] = ()
    """Its settings that each name a variable of the kernel's environment, which no other service gets."""

    table: ShortTable | None = None
    told_settings: Mapping[str, str] = {}
    """Settings that it is given beside its own: by name, the service whose whole table it is."""
    told_issuer: bool = False
    """Whether its settings include the address of the issuer of tokens (`[http.oauth]`)."""
    follows: Follows | None = None
    optional: bool = False
    """Whether the setting `enabled` may leave it out, with its operations."""

    rests: bool = False
    """Whether it does nothing unless called, and starts quickly: then it has no process while it is not called."""
    rests_by: str = ""
    """Its setting, if any, for the time after which it rests, whatever the general one is; 0: never."""
    rests_while: tuple[str, str] | None = None
    pool: Pool | None = None

    stores: tuple[Store, ...] = ()
    exports: tuple[Export, ...] = ()

    def __post_init__(self) -> None:
        """Raises ValueError: no service may have that name."""
        if not re.fullmatch(NAME, self.name):
            raise ValueError(f"`name` is {self.name!r}; write small letters, digits and _, a letter first")
