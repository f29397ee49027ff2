"""The files of an SQLite database, whichever library opens it: on disk by name, put aside when damaged, measured."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

LOGS = ("-wal", "-shm")
"""What SQLite keeps beside a database in WAL mode."""

_log = logging.getLogger("linckia.service")


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on disk: a new file's name has to be there as well as its content. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def put_aside(path: Path, error: Exception) -> Path:
    """Rename a damaged database, for whoever wants to mend it, so that another can be begun; answers its new path.

    Its log goes: to the database begun in its place it would be a stranger's. Raises OSError.
    """
    aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
    _log.error("%s is damaged (%s): put aside as %s and begun anew", path, error, aside.name)
    path.replace(aside)
    for suffix in LOGS:
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    sync_folder(path.parent)
    return aside


class Connection(Protocol):
    """Of either library."""

    def execute(self, statements: str, /) -> Iterable[object]: ...


def let_pages_go(connection: Connection) -> None:
    """Give up the pages that a connection keeps of the database; it reads them again when it needs them."""
    for _ in connection.execute("PRAGMA shrink_memory"):
        pass


def size_bytes(*databases: Path) -> int:
    """Of databases with their logs."""
    files = [path.with_name(path.name + suffix) for path in databases for suffix in ("", "-wal")]
    return sum(file.stat().st_size for file in files if file.exists())
