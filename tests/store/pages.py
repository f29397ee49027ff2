"""A file whose pages are on a server, for tests."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import apsw

from services.runtime.database import elsewhere
from services.runtime.sources.pages import RemoteFile, mounted
from services.runtime.sources.server import PageServer
from tests.postgres import PostgresServer

NAME, PATH = "memory/memory.db", "/nowhere/memory.db"

TABLES = """
CREATE TABLE IF NOT EXISTS done(number INTEGER PRIMARY KEY);
CREATE TABLE IF NOT EXISTS filler(id INTEGER PRIMARY KEY, of INTEGER, text TEXT);
INSERT OR IGNORE INTO filler WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c WHERE x<40)
    SELECT x, 0, hex(zeroblob(1500)) FROM c;
"""

_kernels = itertools.count()


def connected(path: str = PATH) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI
    connection = apsw.Connection(path, flags=flags, vfs=elsewhere.VFS)
    connection.pragma("journal_mode", "memory")
    connection.pragma("synchronous", "full")
    connection.pragma("temp_store", "memory")
    return connection


def server_of(postgres: PostgresServer, schema: str, kernel: str, dsn: str = "") -> PageServer:
    return PageServer(dsn or postgres.dsn, NAME, kernel=kernel, machine=f"machine {kernel}", schema=schema)


@contextlib.contextmanager
def held(postgres: PostgresServer, schema: str, kernel: str = "", dsn: str = "") -> Iterator[RemoteFile]:
    """Hold the file, and make it available to SQLite."""
    server = server_of(postgres, schema, kernel or f"kernel {next(_kernels)}", dsn)
    server.take()
    path = Path(PATH)
    try:
        yield mounted(path, server)
    finally:
        elsewhere.files.pop(path, None)
        server.close()
