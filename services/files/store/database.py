"""The database of the service, `files.db`: the tree, and what clients have stored beside it.

The tree is derived from the disk; resource sets, plans, sources, queries and the trash are not. They share a file
because they change together: an entry leaves its sets in the transaction that removes it. So a damaged file is put
aside and begun again, and in the transaction that begins it all that can be read of the old one is taken over
(`salvage`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from proto.errors import Unavailable
from services.files.store import functions, salvage, schema
from services.runtime.database import Database, Kind, Schema
from services.runtime.handlers import Environment
from services.runtime.storage import patiently

PRAGMAS = {"cache_size": -65536, "mmap_size": 1 << 30, "wal_autocheckpoint": 8000, "recursive_triggers": 1}

SCHEMA = Schema(schema.VERSION, schema.TABLES, {1: salvage.migrate_1}, begin=salvage.begin)


def open_database(path: Path, on_rebuilt: Callable[[], object] | None = None) -> Database:
    """Open `path`, or begin it; blocks. `on_rebuilt` is called on trio's thread when it was begun again while in use.

    Raises:
        OSError, apsw.CantOpenError: it can neither be opened nor begun.
    """
    return Database(path, SCHEMA, kind=Kind.DERIVED, pragmas=PRAGMAS, setup=functions.register, on_rebuilt=on_rebuilt)


async def steadily(env: Environment, name: str, work: Callable[[], Awaitable[None]]) -> None:
    """As `patiently`; and where the database was damaged, and is begun again, run `work` again on the new one."""
    while True:
        try:
            await patiently(env, name, work)
        except Unavailable as error:
            await trio.sleep((error.failure.retry_after_ms or 0) / 1000)
        else:
            return
