"""Places for encrypted backups: named objects that are put once, read, listed and deleted.

The name of each object ends in its size, so a listing tells which uploads were interrupted: no place has to rename or
overwrite anything, and one that forbids it works as well.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from proto.backup import BackupFailed

FOLDERS: Final = ("keys", "passphrases", "snapshots", "damaged", "chunks", *(f"chunks/{n:02x}" for n in range(256)))
"""All folders of a place. They are made at once, so that a server may forbid to make others later."""


class Damaged(BackupFailed):
    """Part of a backup is damaged: its checksum does not match."""


class Missing(Damaged):
    """Part of a backup is not there."""


class Lost(OSError):
    """A place cannot be reached, or refuses."""


class Place(Protocol):
    """A place; all methods may be called by several threads at once. Raises BackupFailed or OSError."""

    name: str
    """As users write it."""

    def prepare(self) -> None:
        """Make the folders of a new place."""

    def put(self, path: str, content: bytes) -> None:
        """Store an object on disk there. Raises FileExistsError if there is one of that name, which is unchanged."""

    def get(self, path: str, most: int) -> bytes:
        """Return an object. Raises Missing, or Damaged if it has more than `most` bytes."""

    def listing(self, folder: str) -> Iterator[tuple[str, int]]:
        """Yield the paths of all objects below a folder, and their sizes."""

    def delete(self, path: str) -> None:
        """Delete an object, if it is there."""

    def close(self) -> None:
        """Close connections."""


class Local:
    """A folder of this machine."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path

    def prepare(self) -> None:
        for folder in ("", *FOLDERS):
            (self._path / folder).mkdir(mode=0o700, parents=True, exist_ok=True)

    def put(self, path: str, content: bytes) -> None:
        descriptor = os.open(self._path / path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        folder = os.open((self._path / path).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def get(self, path: str, most: int) -> bytes:
        try:
            with (self._path / path).open("rb") as file:
                content = file.read(most + 1)
        except FileNotFoundError:
            raise Missing(f"{path} is missing in {self.name}") from None
        return bounded(content, path, most, self.name)

    def listing(self, folder: str) -> Iterator[tuple[str, int]]:
        for inner, _, files in os.walk(self._path / folder):
            for name in files:
                with contextlib.suppress(FileNotFoundError):
                    found = Path(inner, name)
                    yield str(found.relative_to(self._path)), found.lstat().st_size

    def delete(self, path: str) -> None:
        (self._path / path).unlink(missing_ok=True)

    def close(self) -> None:
        pass


def bounded(content: bytes, path: str, most: int, place: str) -> bytes:
    """Return `content`. Raises Damaged if it is longer than `most`."""
    if len(content) > most:
        raise Damaged(f"{path} in {place} is larger than any object of a backup")
    return content


def is_remote(to: str | Path) -> bool:
    """Return whether a target is not on this machine."""
    return "://" in str(to)


def is_sealed(folder: Path) -> bool:
    """Return whether a folder contains encrypted backups."""
    return (folder / "keys").is_dir()


def lost(place: str, why: str) -> Lost:
    """Return the error of a place in one line, without what a server sent."""
    line = why.strip().partition("\n")[0]
    return Lost(errno.EIO, line[:300] or "no answer", place)
