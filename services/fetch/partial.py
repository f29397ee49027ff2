"""What has been received of a download, on disk: kept when the connection fails, so that the next attempt goes on.

A file of bytes and, beside it, what the server said that they are part of.  They go on only under the validator that
the server gave with them (RFC 9110, 13.1.5: a strong entity tag or a date), so that two versions are never put
together; and only as far as they are known to be on disk, so that a power failure leaves no hole in them.
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
"""Without a new attempt, what was received is dropped after a week."""

BLOCK_BYTES = 1024 * 1024

SYNC_BYTES = 64 * BLOCK_BYTES
"""How much a crash may cost: so often are the bytes made durable."""


class Source(msgspec.Struct, frozen=True):
    """What the bytes are part of; `validator` is for `If-Range`, and empty where there is nothing to go on by."""

    validator: str = ""
    total: int | None = None
    mime_type: str | None = None
    disposition: str | None = None
    durable: int = 0
    """Bytes that are on disk."""


class Partial:
    """One download's bytes.  All methods block; one user at a time."""

    def __init__(self, folder: Path, url: str) -> None:
        key = hashlib.sha256(url.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        self._data = folder / f"{key}.part"
        self._about = folder / f"{key}.json"
        self._file: BinaryIO
        self.size = 0
        self.source = Source()

    @property
    def told(self) -> str:
        """How far it is."""
        return f"{self.size}{'' if self.source.total is None else f' of {self.source.total}'} bytes were received"

    def open(self) -> None:
        """Find out what is there already.  Raises OSError."""
        self._data.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            self.source = msgspec.json.decode(self._about.read_bytes(), type=Source)
        except (FileNotFoundError, msgspec.DecodeError):
            self.source = Source()
        self._file = self._data.open("r+b" if self._data.exists() else "w+b")
        self.size = min(self._file.seek(0, os.SEEK_END), self.source.durable)
        self._file.truncate(self.size)
        self._file.seek(self.size)

    def restart(self, source: Source) -> None:
        """Nothing is there any more; what comes is part of `source`."""
        self.size = 0
        self.source = source
        # First, so that nothing on disk ever passes for part of what was there before.
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
        """What was received stays, for the next attempt."""
        if not self._file.closed:
            with self._file:
                if self.size != self.source.durable:
                    self._sync()

    def drop(self) -> None:
        """It is done with, or of no use."""
        self._file.close()
        self._data.unlink(missing_ok=True)
        self._about.unlink(missing_ok=True)

    def digest(self, *algorithms: str) -> dict[str, str]:
        """Checksums of all bytes, as hexadecimal."""
        self._file.flush()
        self._file.seek(0)
        hashes = {name: hashlib.new(name, usedforsecurity=False) for name in algorithms}
        while block := self._file.read(BLOCK_BYTES):
            for one in hashes.values():
                one.update(block)
        return {name: one.hexdigest() for name, one in hashes.items()}

    def read(self, offset: int) -> bytes:
        """A block from `offset` on."""
        self._file.seek(offset)
        return self._file.read(BLOCK_BYTES)


def sweep(folder: Path, now: float | None = None) -> None:
    """Remove downloads that were not asked for again.  Raises OSError."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if (time.time() if now is None else now) - path.stat().st_mtime > KEPT_S:
            path.unlink(missing_ok=True)
