"""Types shared by the kernel, its command line and `services.backup`: outcomes, snapshot manifests, failures.

Outcomes are in `backup.json` of the data directory. They are read before the kernel holds its directory, so this module
imports nothing slow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from proto.host.durable import replace_file
from proto.stores import Stores

FILE: Final = "backup.json"
"""File in the data directory to which each backup process writes its outcome."""

STAGING: Final = "backup.staging"
"""Folder in the data directory in which a backup makes links to files."""

MAX_PLACES = 15
"""Maximum number of recorded destinations besides the newest."""


class BackupFailed(Exception):
    """No backup was made or restored; the message says why, and what to do. Earlier backups are unchanged."""


class Program(NamedTuple):
    """The Linckia that backs up or restores: its version, the newest data format it reads, and its declared stores."""

    version: str
    data_format: int
    stores: Stores


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """A finished backup: `at` is its moment (seconds since 1970), `held_ms` how long writers waited; sizes in bytes;
    `verified` if everything was read back."""

    snapshot: str
    to: str
    at: float
    stores: int
    files: int
    size: int
    new: int
    held_ms: float
    kept: int
    verified: bool
    problems: list[str]


class File(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file, folder (`sha256` is None) or link, with everything needed to recreate it. The hash of a file with one
    chunk is the chunk's name, and `sha256` is empty."""

    path: str
    mode: int
    modified_ns: int = 0
    size: int = 0
    sha256: str | None = None
    chunks: tuple[str, ...] = ()
    link: str = ""
    owner: tuple[int, int] = (0, 0)


class Manifest(msgspec.Struct, frozen=True):
    """A snapshot: `at` is its moment (seconds since 1970), `data_format` as in `Program`, `schemas` the schema versions
    of the databases."""

    format: int
    version: str
    data_format: int
    id: str
    at: float
    data_dir: str
    schemas: dict[str, int]
    problems: list[str]
    files: list[File]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


OnProgress = Callable[[int, int], None]
"""Called with the bytes read so far and in all."""


class Access(NamedTuple):
    """How a target is used, besides its name; secrets are named, never contained. Only folders need `encrypt`."""

    key_file: Path | None = None
    passphrase_file: Path | None = None
    endpoint: str = ""
    encrypt: bool = False
    append_only: bool = False


Hold = Callable[[Path], contextlib.AbstractContextManager[None]]
"""Keeps kernels out of a data directory. Raises BackupFailed if a kernel holds it."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The latest backup to one destination: tried at `at`, last successful at `succeeded`, in seconds since 1970."""

    to: str
    at: float
    succeeded: float | None = None
    snapshot: str = ""
    error: str = ""
    problems: list[str] = []


def known(data_dir: Path) -> dict[str, Outcome]:
    """Return the outcome of the latest backup to each destination, the most recent attempt last."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return {each.to: each for each in msgspec.json.decode((data_dir / FILE).read_bytes(), type=list[Outcome])}
    return {}


def note(data_dir: Path, outcome: Outcome) -> None:
    """Replace the recorded outcome for its destination. Raises OSError."""
    others = [each for each in known(data_dir).values() if each.to != outcome.to]
    replace_file(data_dir / FILE, msgspec.json.encode([*others[-MAX_PLACES:], outcome]) + b"\n", sync=False)
