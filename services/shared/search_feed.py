"""Feeds a search collection from a service's own database: the parts that are the same for all services.

The database has an outbox table, whose `number` increases with each row, and the table `setting(name, value)`; each
change adds a row in its own transaction. A subclass turns rows into updates for the search.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import apsw
import trio

from proto.ops.retrieve import (
    MAX_WAIT_S,
    Group,
    RetrieveDelete,
    RetrieveEpoch,
    RetrieveGroups,
    RetrievePut,
)
from services.runtime.database import Change, Query
from services.runtime.handlers import Environment
from services.shared.outbox import Outbox, pages

T = TypeVar("T")

MAX_DROPPED = 4096
"""Most groups that one call may delete."""


_FED_BY = "fed_by"
"""The setting that says which kernel fed the search last."""


@dataclass(frozen=True, slots=True)
class Due:
    """The next update for the search, and `settings` to store once it is delivered.

    `is_full` means that the outbox may have more.
    """

    numbers: tuple[int, ...] = ()
    put: list[Group] = field(default_factory=list)
    drop: list[str] = field(default_factory=list)
    settings: tuple[tuple[str, str], ...] = ()
    is_full: bool = False


class Backlog(NamedTuple):
    """The backlog of an outbox: its size, and its first and last number (0 if it is empty)."""

    waiting: int
    first: int
    last: int


class DatabaseAccess(Protocol):
    """A `services.runtime.database.Database`, or an object that wraps one."""

    async def read(self, query: Query[T]) -> T: ...

    async def write(self, change: Change[T]) -> T: ...


class SearchFeed(ABC):
    """A feed for `services.shared.outbox`, and the outbox that runs it.

    Args:
        database: the service's database, which has the outbox `table`.
        gather_s: see `Outbox`.
    """

    def __init__(
        self,
        env: Environment,
        database: DatabaseAccess,
        collection: str,
        *,
        table: str = "outbox",
        gather_s: float = 0.0,
    ) -> None:
        self.env = env
        self.database = database
        self.collection = collection
        self._table = table
        self.outbox: Outbox[Due] = Outbox(env, "the search", self, gather_s=gather_s, is_full=lambda due: due.is_full)

    @abstractmethod
    def due(self, db: apsw.Connection) -> Due | None:
        """Return the update for the next rows of the outbox in their current state; None if it is empty."""

    @abstractmethod
    def reconcile(self, db: apsw.Connection, theirs: set[str]) -> list[str]:
        """Queue the groups missing from `theirs`, the ids that the search has. Returns those that are unknown here."""

    @abstractmethod
    def stored(self, db: apsw.Connection) -> int:
        """Return the number of items that the search should have."""

    async def _has_compared(self) -> bool:
        return self.outbox.has_compared

    async def run(self) -> None:
        """Deliver until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.outbox.watch_epoch, self._epoch)
            await self.outbox.run()

    async def caught_up(self, patience_s: float) -> int:
        """Wait at most `patience_s` until the search has everything stored now. Returns how many rows are left.

        When the kernel has just started, the search may lack any row (after a restore, say), so that all count as left
        until both sides were compared.
        """
        unknown = self.env.generation == 1 and not self.outbox.has_compared
        if unknown and not await self.outbox.until(self._has_compared, patience_s):
            return await self.database.read(self.stored)
        if not (last := (await self.database.read(self.backlog)).last):
            return 0

        def has_all(db: apsw.Connection) -> bool:
            return not 0 < self.backlog(db).first <= last

        await self.outbox.until(partial(self.database.read, has_all), patience_s)
        return (await self.database.read(partial(self.backlog, last=last))).waiting

    def backlog(self, db: apsw.Connection, last: int = 2**62) -> Backlog:
        """Return the part of the outbox up to the number `last`."""
        of = "count(*), coalesce(min(number), 0), coalesce(max(number), 0)"
        return Backlog(*next(db.execute(f"SELECT {of} FROM {self._table} WHERE number<=?", (last,))))

    # Methods of `services.shared.outbox.Feed`

    async def compare(self) -> None:
        of = self.collection
        theirs = set(await pages(lambda after: self.env.call(RetrieveGroups(collection=of, after=after))))

        def change(db: apsw.Connection) -> list[str]:
            if self.env.kernel:
                self._note_kernel(db)
            return self.reconcile(db, theirs)

        await self._drop(await self.database.write(change))

    def _note_kernel(self, db: apsw.Connection) -> None:
        """If another kernel fed the search last, which was its own, queue everything: here, any group may be old."""
        found = db.execute("SELECT value FROM setting WHERE name=?", (_FED_BY,)).get
        if found == self.env.kernel:
            return
        if found is not None:
            self.taken_over(db)
        db.execute("INSERT OR REPLACE INTO setting(name, value) VALUES(?, ?)", (_FED_BY, self.env.kernel))

    def taken_over(self, db: apsw.Connection) -> None:
        """Queue everything, since another kernel fed its own search meanwhile."""
        self.reconcile(db, set())

    async def take(self) -> Due | None:
        return await self.database.read(self.due)

    async def deliver(self, due: Due) -> bool:
        if due.put:
            await self.env.call(RetrievePut(collection=self.collection, groups=due.put))
        await self._drop(due.drop)
        return True

    async def strike(self, due: Due) -> None:
        def change(db: apsw.Connection) -> None:
            db.executemany(f"DELETE FROM {self._table} WHERE number=?", ((number,) for number in due.numbers))
            db.executemany("INSERT OR REPLACE INTO setting(name, value) VALUES(?, ?)", due.settings)

        await self.database.write(change)

    async def _drop(self, groups: list[str]) -> None:
        for start in range(0, len(groups), MAX_DROPPED):
            some = groups[start : start + MAX_DROPPED]
            await self.env.call(RetrieveDelete(collection=self.collection, groups=some))

    async def _epoch(self, delivered: str) -> str:
        asked = RetrieveEpoch(collection=self.collection, filled=delivered, wait_s=MAX_WAIT_S)
        return (await self.env.call(asked, timeout_s=MAX_WAIT_S + 15)).epoch
