"""The files of a database: durable by name, put aside when damaged, measured."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

LOGS = ("-wal", "-shm")
"""What SQLite keeps beside a database in WAL mode."""

_log = logging.getLogger("linckia.service")


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: a new file needs its name on disk as well as its content. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def create_private(path: Path) -> None:
    """Create an empty file that only its owner can read; SQLite gives its logs the same mode. Raises OSError."""
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))


def put_aside(path: Path, reason: str) -> Path:
    """Rename a damaged database, so that it can be examined and another begun; returns its new path.

    Its log is removed: it would be a stranger's to the database that is begun in its place. Raises OSError.
    """
    aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
    _log.error("%s cannot be used (%s): put aside as %s and rebuilt", path, reason, aside.name)
    path.replace(aside)
    for suffix in LOGS:
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    sync_folder(path.parent)
    return aside


def size_bytes(path: Path) -> int:
    """Of a database with its log."""
    files = [path, path.with_name(path.name + "-wal")]
    return sum(file.stat().st_size for file in files if file.exists())
