"""The collections on a PostgreSQL server that this kernel uses: its own ones, and those of clients, which all share."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Sequence
from typing import Any, LiteralString

import trio
from psycopg import sql

from services.retrieve.collection import Collection
from services.retrieve.postgres import words
from services.retrieve.postgres.collection import PostgresCollection, moves
from services.retrieve.postgres.schema import PARTITIONS
from services.retrieve.postgres.server import READ_S, Connection, Lease, Server, parts
from services.retrieve.postgres.snapshot import STATE_LOCKS
from services.runtime.database import Kind

END_OVERDUE_S = 1.0

HELD = ("live", "leaving", "frozen")
"""States of a collection that is here."""


class PostgresEngine:
    """`Engine` on a server.

    Args:
        owner: the data directory whose collections these are; empty for those of clients, which all kernels share.
        machine: its name, for people who look into the tables.
        files: matches the collections' names.
        flat, kind, search, build_memory: see `PostgresCollection`.
    """

    def __init__(
        self, server: Server, owner: str, machine: str, files: re.Pattern[str], readers: int,
        flat: int, kind: str, search: int, build_memory: str,
    ) -> None:  # fmt: skip
        self.kind = Kind.SOURCE if not owner else Kind.DERIVED
        self._server = server
        self._owner, self._machine = owner, machine
        self._files = files
        self._readers = trio.CapacityLimiter(readers)
        self._shape = (flat, kind, search, build_memory)

    async def watch(self) -> None:
        """End calls that the server does not answer, until cancelled."""
        while True:
            await trio.sleep(END_OVERDUE_S)
            self._server.end_overdue()

    async def _read(self, query: LiteralString, arguments: tuple[Any, ...]) -> list[Any]:
        def run(connection: Connection) -> list[Any]:
            return connection.execute(query, arguments).fetchall()

        lease = Lease(READ_S)
        try:
            return await trio.to_thread.run_sync(
                self._server.read, run, lease, limiter=self._readers, abandon_on_cancel=True
            )
        except trio.Cancelled:
            lease.abort()
            raise

    async def names(self) -> list[str]:
        rows = await self._read(
            "SELECT name FROM collections WHERE owner = %s AND state = ANY(%s) ORDER BY name", (self._owner, [*HELD])
        )
        return [name for (name,) in rows if self._files.fullmatch(name)]

    async def holds(self, name: str) -> bool:
        query = "SELECT 1 FROM collections WHERE owner = %s AND name = %s AND state = ANY(%s)"
        return bool(await self._read(query, (self._owner, name, [*HELD])))

    async def state(self, name: str) -> str | None:
        """Return the state of a collection (see `schema`); None if there is none.  Raises Unavailable."""
        rows = await self._read("SELECT state FROM collections WHERE owner = %s AND name = %s", (self._owner, name))
        return str(rows[0][0]) if rows else None

    async def claim(self, name: str) -> bool:
        """Become the only kernel that moves the collection away; return whether it is.  See `Server.try_lock`."""
        rows = await self._read("SELECT number FROM collections WHERE owner = %s AND name = %s", (self._owner, name))
        return bool(rows) and await trio.to_thread.run_sync(self._server.try_lock, moves(rows[0][0]))

    async def release(self, name: str) -> None:
        """Let another kernel move the collection."""
        rows = await self._read("SELECT number FROM collections WHERE owner = %s AND name = %s", (self._owner, name))
        for (number,) in rows:
            await trio.to_thread.run_sync(self._server.unlock, moves(number))

    async def set_state(self, name: str, state: str, before: Sequence[str]) -> bool:
        """Change the state of a collection if it is one of `before`.  On return it is on the server's disk."""

        def change(connection: Connection) -> bool:
            connection.execute(
                "SELECT pg_advisory_xact_lock(%s, number) FROM collections WHERE owner = %s AND name = %s",
                (STATE_LOCKS, self._owner, name),
            )
            changed = connection.execute(
                "UPDATE collections SET state = %s WHERE owner = %s AND name = %s AND state = ANY(%s)",
                (state, self._owner, name, [*before]),
            )
            return changed.rowcount > 0

        return await trio.to_thread.run_sync(self._server.write, change)

    async def open(self, name: str, on_recreated: Callable[[], object], state: str = "live") -> Collection:
        """See `Engine.open`.  A new collection gets `state`."""
        number, epoch = await trio.to_thread.run_sync(self._made, name, state)
        return await self._opened(name, number, epoch, on_recreated)

    async def open_existing(self, name: str, on_recreated: Callable[[], object]) -> Collection | None:
        """See `Engine.open_existing`."""
        query = "SELECT number, epoch FROM collections WHERE owner = %s AND name = %s AND state = ANY(%s)"
        rows = await self._read(query, (self._owner, name, [*HELD]))
        for number, epoch in rows:
            return await self._opened(name, number, epoch, on_recreated)
        return None

    async def _opened(
        self, name: str, number: int, epoch: str, on_recreated: Callable[[], object]
    ) -> PostgresCollection:
        collection = PostgresCollection(
            name, number, epoch, self._server, self._readers, *self._shape, on_recreated=on_recreated
        )
        await collection.refresh()
        return collection

    def _made(self, name: str, state: str) -> tuple[int, str]:
        """Create the collection unless it exists; return its number and epoch.  Blocks."""

        def make(connection: Connection) -> tuple[int, str]:
            row = connection.execute(
                "INSERT INTO collections (owner, machine, name, epoch, words_version, state) "
                "VALUES (%s, %s, %s, %s, %s, %s) "
                "ON CONFLICT (owner, name) DO NOTHING RETURNING number, epoch",
                (self._owner, self._machine, name, uuid.uuid4().hex, words.VERSION, state),
            ).fetchone()
            if row is not None:
                statement = sql.SQL(PARTITIONS).format(number=sql.Literal(row[0]), **parts(self._server.schema, row[0]))
                connection.execute(statement)
            else:
                row = connection.execute(
                    "SELECT number, epoch FROM collections WHERE owner = %s AND name = %s", (self._owner, name)
                ).fetchone()
                assert row is not None
            return int(row[0]), str(row[1])

        return self._server.write(make)

    async def remove(self, name: str) -> bool:
        def drop(connection: Connection) -> bool:
            row = connection.execute(
                "DELETE FROM collections WHERE owner = %s AND name = %s RETURNING number", (self._owner, name)
            ).fetchone()
            if row is None:
                return False
            for table in parts(self._server.schema, row[0]).values():
                connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table))
            return True

        return await trio.to_thread.run_sync(self._server.write, drop)

    def close(self) -> None:
        self._server.close()
