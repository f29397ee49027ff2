"""The two databases: the packs, which are the only copy of the contents, and the index, which is derived from them.

An index that is damaged, missing or of another store is recreated, and everything is queued for it. It gets the packs'
epoch once everything is queued. Until then grep and search scan all texts, so that nothing is missed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import apsw
import trio

from proto.errors import LinckiaError, Unavailable
from proto.host.machine import give_memory_back
from services.documents.store import globs, tables
from services.documents.store.compress import Codec
from services.runtime.database import Database, Kind
from services.runtime.storage import Damaged

T = TypeVar("T")
Query = Callable[[apsw.Connection], T]

PRAGMAS = {"cache_size": -16384, "wal_autocheckpoint": 65_536}
"""The write-ahead log may reach 256 MB, so that a bulk add is checkpointed once, afterwards (`tidy`)."""
TIDY_FROM_BYTES = 4 * 1024 * 1024


class Store:
    """The packs and the index."""

    def __init__(self, folder: Path, on_damage: Callable[[str], object] | None = None) -> None:
        """Open the databases in `folder`, or create them.  Blocks.  See `Database` for `on_damage` and exceptions."""
        self.codec = Codec()
        self.is_complete = False
        """Whether each text is in the index or queued for it."""
        self.on_index_lost: Callable[[], object] = lambda: None
        self._refilling = trio.Lock()
        self.index = Database(
            folder / "index.db", tables.INDEX, kind=Kind.DERIVED, pragmas=PRAGMAS, on_rebuilt=self._index_lost
        )
        self.packs = Database(
            folder / "packs.db",
            tables.PACKS,
            kind=Kind.SOURCE,
            pragmas=PRAGMAS,
            setup=self._add_functions,
            attached={"idx": self.index},
            on_damage=on_damage,
            keeps_keys=True,
        )
        self.write = self.packs.write
        self.answer = self.packs.answer
        self.write_index = self.index.write
        self.epoch = _epoch(self.packs)
        """Identity of the packs; empty if it cannot be read."""
        of = _epoch(self.packs, "idx")
        if of and self.epoch and of != self.epoch:
            self.index.begin_again("the index belongs to another store")
        self.is_complete = bool(self.epoch) and of == self.epoch
        # If a dictionary cannot be read, reading the contents that need it reports that.
        with contextlib.suppress(Damaged), self.packs.snapshot() as db:
            for number, data in db.execute("SELECT id, data FROM dictionary ORDER BY id"):
                self.codec.take(number, data)

    def _add_functions(self, connection: apsw.Connection) -> None:
        def path_matches(*values: apsw.SQLiteValue) -> int:
            patterns, path = map(str, values)
            return int(globs.matcher_of(patterns)(path))

        connection.create_scalar_function("path_matches", path_matches, 2, deterministic=True)
        # The schema guarantees the types of its arguments.
        unpack: Any = self.codec.unpack
        connection.create_scalar_function("unpacked", unpack, 5, deterministic=True)

    async def read(self, query: Query[T]) -> T:
        """Run `query` on one snapshot of the packs, with the index attached as `idx`.

        If the index is found damaged, it is recreated empty and the query runs again.
        """
        generation = self.index.generation
        try:
            return await self.packs.read(query)
        except Unavailable:
            return await self.packs.read(query)
        except apsw.CorruptError as error:
            # A full-text index can be corrupt although SQLite considers its tables intact.
            await trio.to_thread.run_sync(self.index.begin_again, str(error), generation)
            return await self.packs.read(query)

    def _index_lost(self) -> None:
        self.is_complete = False
        self.on_index_lost()

    async def refill(self) -> None:
        """Queue everything for an incomplete index.  After a crash it is queued again.  Raises LinckiaError."""
        mark = "INSERT OR REPLACE INTO setting VALUES('epoch', ?)"
        async with self._refilling:
            while not self.is_complete:
                generation = self.index.generation
                await self.packs.write(lambda db: db.execute(tables.QUEUE_ALL).fetchall())
                self.epoch = self.epoch or await trio.to_thread.run_sync(_epoch, self.packs)
                await self.index.write(lambda db: db.execute(mark, (self.epoch,)).fetchall())
                self.is_complete = self.index.generation == generation

    def caught_up(self) -> None:
        if self.is_complete:
            self.index.rebuilt = ""

    def notes(self) -> list[str]:
        """Return notes on what results may be missing."""
        rebuilt = [f"the index is being rebuilt ({self.index.rebuilt})"] if self.index.rebuilt else []
        return rebuilt + [self.packs.damage] * bool(self.packs.damage)

    async def tidy(self) -> None:
        """Checkpoint long write-ahead logs to free disk space.  Skipped while there are readers."""
        for one in (self.packs, self.index):
            log = one.path.with_name(one.path.name + "-wal")
            if log.exists() and log.stat().st_size > TIDY_FROM_BYTES and await one.checkpoint():
                await one.give_back()
                await trio.to_thread.run_sync(give_memory_back)

    async def give_back(self) -> None:
        await self.packs.give_back()
        await self.index.give_back()

    def size_bytes(self) -> int:
        return self.packs.size_bytes() + self.index.size_bytes()

    def close(self) -> None:
        self.packs.close()
        self.index.close()


def _epoch(packs: Database, of: str = "main") -> str:
    with contextlib.suppress(LinckiaError), packs.snapshot() as db:
        found = db.execute(f"SELECT value FROM {of}.setting WHERE name='epoch'").get
        return found if isinstance(found, str) else ""
    return ""


def is_complete(db: apsw.Connection) -> bool:
    """Return whether each text is in the index or queued for it, on this reader's snapshot."""
    return db.execute("SELECT 1 FROM idx.setting WHERE name='epoch'").get is not None
