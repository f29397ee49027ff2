"""Exchanges that could not be handed over, as files, until they can: in order, on disk, for the owner's eyes alone.

They hold the bodies of requests and replies, never their headers; what the service masks is masked when it gets them.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

log = logging.getLogger("linckia.proxy")

MAX_BYTES = 1024**3


class Spool:
    """Files in `folder`, which is made when it is needed; all of it blocks."""

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._number = 0
        self._bytes = sum(file.stat().st_size for file in self.files())

    def files(self) -> list[Path]:
        """Oldest first."""
        return sorted(self._folder.glob("*.json")) if self._folder.is_dir() else []

    def put(self, data: bytes) -> bool:
        """Keep; on disk when this returns.  False where there is no room.  Raises OSError."""
        if self._bytes + len(data) > self._max_bytes:
            return False
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._number += 1
        path = self._folder / f"{time.time_ns():020}-{os.getpid()}-{self._number:06}.json"
        beside = path.with_suffix(".part")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        beside.rename(path)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._bytes += len(data)
        return True

    def drop(self, file: Path) -> None:
        """It has been handed over.  Raises OSError."""
        size = file.stat().st_size if file.exists() else 0
        file.unlink(missing_ok=True)
        self._bytes = max(0, self._bytes - size)
