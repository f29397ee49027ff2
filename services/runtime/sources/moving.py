"""Moves a source database between a file and the server, while no kernel uses it.

Each way makes a whole copy in one transaction of its end, reads it back, compares it with the original, and only then
puts the original away. Interrupted anywhere, it can be run again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import psycopg

from proto.errors import LinckiaError
from proto.host.durable import sync_folder
from services.runtime.database import elsewhere
from services.runtime.sources.pages import mounted
from services.runtime.sources.server import BLOCK, HeldElsewhere, PageServer

KEPT, PART = ".before-postgres", ".moving"
"""Ends of the names of the original that was moved, and of an unfinished copy."""

BATCH = 256


class Cannot(Exception):
    """The database was not moved; the message says why. Its original is as it was."""


def move(path: Path, name: str, dsn: str, schema: str, *, to_server: bool) -> str:
    """Move one database; return what was done in words, empty if there was nothing to do. Raises Cannot.

    Args:
        path: its file, whether it is there or not.
        name: its name on the server.
    """
    server = PageServer(dsn, name, kernel=f"migration {secrets.token_hex(8)}", machine="linckia migrate", schema=schema)
    try:
        server.take()
        try:
            return _to_server(path, server) if to_server else _to_file(path, server)
        finally:
            _forget(server)
    except HeldElsewhere as held:
        raise Cannot(f"{name} is in use by {held}; stop that kernel first") from None
    except (LinckiaError, psycopg.Error, apsw.Error, OSError) as error:
        raise Cannot(f"{name}: {error}") from error
    finally:
        server.close()


def _forget(server: PageServer) -> None:
    """Leave no trace of the hold, so that no kernel believes that another one has changed the data."""
    with contextlib.suppress(LinckiaError, psycopg.Error), server.lent() as connection, connection.transaction():
        connection.execute("DELETE FROM source_openings WHERE kernel = %s", (server.kernel,))
        connection.execute("DELETE FROM source_active WHERE kernel = %s", (server.kernel,))


def _to_server(path: Path, server: PageServer) -> str:
    if not path.exists():
        return ""
    part = path.with_name(path.name + PART)
    _copy(path, part)
    try:
        if server.generation == 0:
            _send(part, server)
            server.generation, server.bytes = 1, part.stat().st_size
        ours, theirs = _digest(part), _digest_of(server)
        if ours != theirs:
            raise Cannot(
                f"{server.name}: the server has other data than {path}; if those are the right ones, move the file away"
            )
        said = _verified(path, part, server)
    finally:
        part.unlink(missing_ok=True)
    path.replace(path.with_name(path.name + KEPT))
    for end in ("-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)
    sync_folder(path.parent)
    return said


def _copy(path: Path, part: Path) -> None:
    """Make a copy of the file that has everything of its log, and is in no mode that needs one."""
    part.unlink(missing_ok=True)
    _create(part)
    with (
        contextlib.closing(apsw.Connection(str(path))) as source,
        contextlib.closing(apsw.Connection(str(part))) as copy,
    ):
        with copy.backup("main", source, "main") as steps:
            steps.step()
        copy.pragma("journal_mode", "delete")
        _check(copy, path)


def _create(path: Path) -> None:
    """Create an empty file that belongs to the owner of its folder."""
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC | os.O_CLOEXEC, 0o600))
    folder = path.parent.stat()
    if os.geteuid() == 0:
        os.chown(path, folder.st_uid, folder.st_gid)


def _check(connection: apsw.Connection, path: Path) -> None:
    found = connection.pragma("integrity_check")
    if found != "ok":
        raise Cannot(f"{path} is damaged: {found}")


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while data := file.read(BLOCK):
            yield data.ljust(BLOCK, b"\0")


def _digest(path: Path) -> str:
    hashed = hashlib.sha256()
    for data in _blocks(path):
        hashed.update(data)
    return hashed.hexdigest()


def _read(server: PageServer) -> Iterator[bytes]:
    """Yield the file's blocks from the server."""
    end = -(-server.bytes // BLOCK)
    for first in range(0, end, BATCH):
        found = server.load(first, BATCH)
        for number in range(first, min(first + BATCH, end)):
            yield found.get(number, bytes(BLOCK))


def _digest_of(server: PageServer) -> str:
    hashed = hashlib.sha256()
    for data in _read(server):
        hashed.update(data)
    return hashed.hexdigest()


def _send(part: Path, server: PageServer) -> None:
    """Store the whole file in one transaction."""
    with server.lent() as connection, connection.transaction():
        connection.execute("SET LOCAL statement_timeout = 0")
        with (
            connection.cursor() as cursor,
            cursor.copy("COPY source_pages(file, number, bytes) FROM STDIN (FORMAT BINARY)") as copy,
        ):
            copy.set_types(["int4", "int8", "bytea"])
            for number, data in enumerate(_blocks(part)):
                copy.write_row((server.file, number, data))
        connection.execute(
            "UPDATE source_files SET generation = 1, bytes = %s WHERE number = %s AND generation = 0",
            (part.stat().st_size, server.file),
        )


def _verified(path: Path, part: Path, server: PageServer) -> str:
    """Compare what SQLite reads from the server with the file. Raises Cannot."""
    mounted(path, server)
    try:
        flags = apsw.SQLITE_OPEN_READWRITE
        with (
            contextlib.closing(apsw.Connection(str(path), flags=flags, vfs=elsewhere.VFS)) as theirs,
            contextlib.closing(apsw.Connection(str(part), flags=apsw.SQLITE_OPEN_READONLY)) as ours,
        ):
            theirs.pragma("query_only", True)
            _check(theirs, path)
            counts = _counts(ours)
            if counts != _counts(theirs):
                raise Cannot(f"{server.name}: the copy on the server has other rows than {path}")
    finally:
        elsewhere.files.pop(path, None)
    return f"{server.name}: {sum(counts.values())} rows in {len(counts)} tables"


def _counts(connection: apsw.Connection) -> dict[str, int]:
    names: list[Any] = connection.execute(
        "SELECT name FROM sqlite_schema WHERE type='table' AND sql NOT LIKE 'CREATE VIRTUAL%' ORDER BY name"
    ).fetchall()
    return {name: int(connection.execute(f'SELECT count(*) FROM "{name}"').get) for (name,) in names}


def _to_file(path: Path, server: PageServer) -> str:
    if server.generation == 0:
        return ""
    part = path.with_name(path.name + PART)
    part.unlink(missing_ok=True)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        _create(part)
        with part.open("r+b") as file:
            for data in _read(server):
                file.write(data)
            file.truncate(server.bytes)
            file.flush()
            os.fsync(file.fileno())
        if _digest(part) != _digest_of(server):
            raise Cannot(f"{server.name}: the copy in {part} is not what the server has")
        with contextlib.closing(apsw.Connection(str(part))) as copy:
            _check(copy, path)
            counts = _counts(copy)
        if path.exists() and _digest(path) != _digest(part):
            raise Cannot(f"{server.name}: there already is {path}, with other data; move it away")
        part.replace(path)
        sync_folder(path.parent)
    finally:
        part.unlink(missing_ok=True)
    with server.lent() as connection:
        connection.execute("SET statement_timeout = 0")
        connection.execute("DELETE FROM source_files WHERE number = %s", (server.file,))
    return f"{server.name}: {sum(counts.values())} rows in {len(counts)} tables"
