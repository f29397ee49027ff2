"""What a process is told at its birth: a service its birth certificate, a zygote what to load and what to fork.

A process started from nothing reads its certificate, as JSON, from an inherited descriptor: arguments can be read by
every user of the machine, and settings hold secrets. A zygote gets those of its services in its `Fork` requests. The
messages between the kernel and a zygote are msgpack on a SEQPACKET socket, one message a packet; a `Fork` carries two
descriptors beside it, the service's end of its link and its log, and a third where the spec says so: its end of the
handoff, over which the kernel passes descriptors to it.

A *standby* is forked ahead of need: it has done all that can be done before it is known when it will be wanted, and
waits on a socket of its own, which it got instead of a link, for the `Wake` that makes it a generation.
"""

from __future__ import annotations

import os
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

B = TypeVar("B", bound="Birth | ZygoteBirth")

EXIT_OUT_OF_MEMORY = 76
"""Exit code of a service that the system refused more memory."""

HEAPS = "MALLOC_ARENA_MAX"
"""The variable by which a process that starts is told its `machine.limit_heaps`."""

FilesOfOthers: TypeAlias = Literal["", "read", "write"]
"""What a process that root started may do with files that are not its own, within its walls."""

MAX_PACKET_BYTES = 1024 * 1024
"""The largest message between kernel and zygote; settings are a few kilobytes."""


MAX_DESCRIPTORS = 3


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A user and its group, by number."""

    uid: int
    gid: int


class Confinement(msgspec.Struct, frozen=True, kw_only=True):
    """What a service may touch beside its own folder and the system's libraries.

    `read` and `write` are real paths of folders; `network` admits connections to other machines, `connections` those
    of clients, on listening sockets that it is handed, `gpu` what CUDA takes, `watches` to be told of changed files.
    `user` is who it is to become where the kernel is root; without one it stays who it is, less root's privileges, but
    for `files_of_others`. `folders` tells which folders stood at the roots' paths: a process that was confined to
    others is of no use.
    """

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    network: bool = False
    connections: bool = False
    gpu: bool = False
    watches: bool = False
    open_files: int = 1024
    user: User | None = None
    files_of_others: FilesOfOthers = ""
    folders: tuple[str, ...] = ()


class Birth(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a service process is told at its birth.

    `module` holds `open_service`; `operations` are the names it must handle; `parent_pid` is the kernel's, so that a
    child born just as its parent died can tell; `settings` are checked by the service itself. `environment` is what it
    alone may see of the kernel's, a key among it: /proc/PID/environ never shows it.

    `read_only` are those of the `roots` that may not be written; `denied` are real paths, and `denied_patterns`
    patterns of a .gitignore file for absolute paths, that are never reached though they lie below a root.
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
    # The service's own table of the settings: it knows the form, and checks it (`Environment.settings_as`).
    settings: dict[str, Any] = {}
    environment: dict[str, str] = {}
    ops_modules: tuple[str, ...] = ()
    memory_limit_bytes: int | None = None
    disk_limit_bytes: int | None = None
    thread_limit: int | None = None
    in_flight: int = 64
    confinement: Confinement | None = None


SCRATCH_FOLDER = "tmp"
"""In a service's `data_dir`: its temporary files, which are worth nothing once it has died."""


class ZygoteBirth(msgspec.Struct, frozen=True, kw_only=True):
    """What a zygote is told: its name, the modules to load before it forks, those that it loads when they are first
    wanted or while nothing is, and whose child it must be."""

    name: str
    preload: tuple[str, ...]
    modules: tuple[str, ...] = ()
    parent_pid: int


class Loaded(msgspec.Struct, frozen=True, kw_only=True, tag="loaded"):
    """From the zygote: it can fork; and again once its loading is `complete`, if it was not.  With more than one of
    `threads` it will refuse to fork.  `failed` maps a module to why it could not be loaded."""

    threads: int
    complete: bool
    took_ms: float
    failed: dict[str, str] = {}


class Fork(msgspec.Struct, frozen=True, kw_only=True, tag="fork"):
    """To the zygote: fork a service, with `env` added to its environment; or a `standby`, whose first descriptor is the
    socket on which it waits for `Wake`, and whose birth names no generation that counts."""

    id: int
    birth: Birth
    env: dict[str, str] = {}
    standby: bool = False


class Forked(msgspec.Struct, frozen=True, kw_only=True, tag="forked"):
    """From the zygote: the process runs as `pid` and is the kernel's own child by now; or why there is none."""

    id: int
    pid: int | None = None
    error: str = ""


FromZygote: TypeAlias = Loaded | Forked


class Wake(msgspec.Struct, frozen=True, kw_only=True, tag="wake"):
    """To a standby: be this generation.  Carries the service's end of its link, and its log, as `Fork` does."""

    generation: int


def read_birth(fd: int, tp: type[B]) -> B:
    """The certificate in the descriptor `fd`, which is closed.  Raises msgspec.DecodeError, OSError."""
    with os.fdopen(fd, "rb") as file:
        return msgspec.json.decode(file.read(), type=tp)
