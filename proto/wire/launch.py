"""Messages that launch processes: a service's configuration, and what a zygote loads and forks.

A process that is started from scratch reads its configuration, as JSON, from an inherited descriptor: arguments could
be read by every user of the machine, and settings contain secrets. A zygote receives its services' configurations in
`Fork` requests. Messages between the kernel and a zygote are msgpack on a SEQPACKET socket, one message per packet. A
`Fork` carries two descriptors, the service's end of its link and its log, and, if the spec says so, a third: its end of
the handoff socket, over which the kernel passes descriptors to it.

A *standby* is forked in advance. It does all work that does not depend on when it is needed, and waits on its own
socket, which it got instead of a link, for the `Wake` that turns it into a generation.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

EXIT_OUT_OF_MEMORY = 76
"""Exit code of a service that was refused more memory by the system."""

EXIT_PROGRAM_KILLED = 77
"""Exit code of a service whose program was killed by a signal from outside, as by `kill -9`."""

HEAPS = "MALLOC_ARENA_MAX"
"""Environment variable that gives a starting process its `machine.limit_heaps`."""

NO_ATTRIBUTES = "no changes of modes, owners and times"
FREE_ATTRIBUTES = "unlimited changes of modes, owners and times"
NO_SIGNAL_SCOPE = "no scope for signals"
"""What the status of a confined program says about walls that the operating system does not provide."""

FilesOfOthers: TypeAlias = Literal["", "read", "write"]
"""What a process started by root may do with other users' files, within its confinement."""

MAX_PACKET_BYTES = 1024 * 1024
"""Maximum size of a message between kernel and zygote. Settings take a few kilobytes."""


MAX_DESCRIPTORS = 3


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A user and its group, by number."""

    uid: int
    gid: int


class Confinement(msgspec.Struct, frozen=True, kw_only=True):
    """What a service may access besides its own folder and the system's libraries.

    `read` and `write` are real paths of folders. `network` allows connections to other machines, `connections` those
    from clients, on listening sockets that it receives. `gpu` allows what CUDA needs, `watches` notification of changed
    files. `programs` allows other programs and processes, which share all limits; everything but `hidden` (real paths)
    may be read then. `user` is the user to switch to if the kernel is root; without one, the service keeps its user but
    loses root's privileges, except for `files_of_others`. `folders` identifies the folders at the roots' paths: a
    process that was confined to other folders cannot be used.
    """

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    network: bool = False
    connections: bool = False
    gpu: bool = False
    watches: bool = False
    programs: bool = False
    hidden: tuple[str, ...] = ()
    open_files: int = 1024
    user: User | None = None
    files_of_others: FilesOfOthers = ""
    folders: tuple[str, ...] = ()


class LaunchConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The complete configuration of a service process.

    `module` defines `open_service`; `operations` are the names it must handle. `parent_pid` is the kernel's pid, so
    that a process launched just as its parent died can notice. The service itself checks `settings`. `environment` has
    those of the kernel's variables that only this service may see, including keys: /proc/PID/environ never shows them.
    If it starts `programs`, that is its whole environment, and it has no limits on memory and files.

    `read_only` are those of the `roots` that may not be written. `denied` (real paths) and `denied_patterns`
    (.gitignore patterns for absolute paths) cannot be accessed even below a root.
    """

    service: str
    module: str
    generation: int
    operations: tuple[str, ...]
    parent_pid: int
    data_dir: str
    roots: tuple[str, ...]
    read_only: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    denied_patterns: tuple[str, ...] = ()
    mode: str = ""
    # The service's table in the settings; the service knows its type and checks it (`Environment.settings_as`).
    settings: dict[str, Any] = {}
    environment: dict[str, str] = {}
    programs: bool = False
    ops_modules: tuple[str, ...] = ()
    memory_limit_bytes: int | None = None
    disk_limit_bytes: int | None = None
    thread_limit: int | None = None
    in_flight: int = 64
    confinement: Confinement | None = None


SCRATCH_FOLDER = "tmp"
"""Folder in a service's `data_dir` for temporary files, which are worthless once the service has died."""


class ZygoteConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration of a zygote: its name, the modules to load before it forks, those to load when first needed or when
    idle, those to load only when first needed, and the pid that must be its parent."""

    name: str
    preload: tuple[str, ...]
    modules: tuple[str, ...] = ()
    on_demand: tuple[str, ...] = ()
    parent_pid: int


class Loaded(msgspec.Struct, frozen=True, kw_only=True, tag="loaded"):
    """From the zygote: it can fork. Sent again when loading is `complete`, if it was not. A zygote with more than one
    thread refuses to fork. `failed` maps a module to the reason why it could not be loaded."""

    threads: int
    complete: bool
    took_ms: float
    failed: dict[str, str] = {}


class Fork(msgspec.Struct, frozen=True, kw_only=True, tag="fork"):
    """To the zygote: fork a service with `env` added to its environment, or a `standby`. The first descriptor of a
    standby is the socket on which it waits for `Wake`; the generation in its configuration is a placeholder."""

    id: int
    launch: LaunchConfig
    env: dict[str, str] = {}
    standby: bool = False


class Forked(msgspec.Struct, frozen=True, kw_only=True, tag="forked"):
    """From the zygote: the process runs as `pid` and is now the kernel's own child, or forking failed with `error`."""

    id: int
    pid: int | None = None
    error: str = ""


FromZygote: TypeAlias = Loaded | Forked


class Wake(msgspec.Struct, frozen=True, kw_only=True, tag="wake"):
    """To a standby: become this generation. Carries the service's end of its link, and its log, like `Fork`."""

    generation: int
