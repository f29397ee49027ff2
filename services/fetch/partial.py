"""The received part of a download, stored on disk so that an attempt after a failed connection can resume.

It consists of a file of bytes and a description of the content they are part of. A download resumes only with the
validator that the server sent (RFC 9110, 13.1.5: a strong entity tag or a date), so that two versions are never mixed,
and only from the last byte known to be on disk, so that a power failure leaves no hole.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import structs

KEPT_S = 7 * 24 * 3600.0
"""Data received is dropped after a week without a new attempt."""

BLOCK_BYTES = 1024 * 1024

SYNC_BYTES = 64 * BLOCK_BYTES
"""Most bytes a crash may cost: data is made durable at this interval."""


class DownloadSource(msgspec.Struct, frozen=True):
    """The content that the bytes are part of; `validator` is for `If-Range`, and empty if the download cannot be
    resumed."""

    validator: str = ""
    total: int | None = None
    mime_type: str | None = None
    disposition: str | None = None
    durable: int = 0
    """Number of bytes on disk."""


class Partial:
    """The received bytes of a download. All methods block and must not be called concurrently."""

    def __init__(self, folder: Path, url: str) -> None:
        key = hashlib.sha256(url.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        self._data = folder / f"{key}.part"
        self._about = folder / f"{key}.json"
        self._file: BinaryIO
        self.size = 0
        self.source = DownloadSource()

    @property
    def progress_text(self) -> str:
        """Describe the progress."""
        return f"received {self.size}{'' if self.source.total is None else f' of {self.source.total}'} bytes"

    def open(self) -> None:
        """Open the file and determine how much was received. Raises OSError."""
        self._data.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            self.source = msgspec.json.decode(self._about.read_bytes(), type=DownloadSource)
        except (FileNotFoundError, msgspec.DecodeError):
            self.source = DownloadSource()
        self._file = self._data.open("r+b" if self._data.exists() else "w+b")
        self.size = min(self._file.seek(0, os.SEEK_END), self.source.durable)
        self._file.truncate(self.size)
        self._file.seek(self.size)

    def restart(self, source: DownloadSource) -> None:
        """Discard everything; what follows is part of `source`."""
        self.size = 0
        self.source = source
        # First, so that nothing on disk is ever taken for part of the previous content.
        self._describe()
        self._file.seek(0)
        self._file.truncate()

    def append(self, data: bytes) -> None:
        self.size += self._file.write(data)
        if self.size - self.source.durable >= SYNC_BYTES:
            self._sync()

    def _sync(self) -> None:
        self._file.flush()
        os.fdatasync(self._file.fileno())
        self.source = structs.replace(self.source, durable=self.size)
        self._describe()

    def _describe(self) -> None:
        new = self._about.with_suffix(".new")
        with new.open("wb") as file:
            file.write(msgspec.json.encode(self.source))
            file.flush()
            os.fdatasync(file.fileno())
        new.replace(self._about)

    def close(self) -> None:
        """Close the file; it is kept for the next attempt."""
        if not self._file.closed:
            with self._file:
                if self.size != self.source.durable:
                    self._sync()

    def drop(self) -> None:
        """Close and delete the files."""
        self._file.close()
        self._data.unlink(missing_ok=True)
        self._about.unlink(missing_ok=True)

    def digest(self, *algorithms: str) -> dict[str, str]:
        """Return checksums of all bytes, in hexadecimal."""
        self._file.flush()
        self._file.seek(0)
        hashes = {name: hashlib.new(name, usedforsecurity=False) for name in algorithms}
        while block := self._file.read(BLOCK_BYTES):
            for one in hashes.values():
                one.update(block)
        return {name: one.hexdigest() for name, one in hashes.items()}

    def read(self, offset: int) -> bytes:
        """Read a block starting at `offset`."""
        self._file.seek(offset)
        return self._file.read(BLOCK_BYTES)


def sweep(folder: Path, now: float | None = None) -> None:
    """Remove downloads that were not requested again. Raises OSError."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if (time.time() if now is None else now) - path.stat().st_mtime > KEPT_S:
            path.unlink(missing_ok=True)
