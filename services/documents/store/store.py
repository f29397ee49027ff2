"""The two databases: the packs, which are the only copy of what was stored, and the index, which follows from them.

An index that is damaged, lost or of other packs is begun again, and everything is queued for it.  It bears the packs'
epoch only once all of that is queued; until then grep and search look through all texts, so that nothing is missed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import apsw
import trio

from linckia.proto.errors import LinckiaError, Unavailable
from linckia.proto.machine import give_memory_back
from linckia.services.documents.store import globs, schema
from linckia.services.documents.store.compress import Codec
from linckia.services.runtime.database import Database, Kind
from linckia.services.runtime.storage import Damaged

T = TypeVar("T")
Query = Callable[[apsw.Connection], T]

PRAGMAS = {"cache_size": -16384, "wal_autocheckpoint": 65_536}
"""256 MB of log: what a bulk add writes is moved into the database after it (`tidy`), each page once."""
TIDY_FROM_BYTES = 4 * 1024 * 1024


class Store:
    """The packs, and beside them the index."""

    def __init__(self, folder: Path, on_damage: Callable[[str], object] | None = None) -> None:
        """Open the databases in `folder`, or begin them; blocks.  `on_damage`, and what is raised: `DatabaseFile`."""
        self.codec = Codec()
        self.is_complete = False
        """Whether each text is in the index or queued for it."""
        self.when_index_is_lost: Callable[[], object] = lambda: None
        self._refilling = trio.Lock()
        self.index = Database(
            folder / "index.db", schema.INDEX, kind=Kind.DERIVED, pragmas=PRAGMAS, on_rebuilt=self._index_was_lost
        )
        self.packs = Database(
            folder / "packs.db",
            schema.PACKS,
            kind=Kind.SOURCE,
            pragmas=PRAGMAS,
            setup=self._add_functions,
            attached={"idx": self.index},
            on_damage=on_damage,
        )
        self.write = self.packs.write
        self.write_index = self.index.write
        self.epoch = _epoch(self.packs)
        """Names the packs; empty where it cannot be read."""
        of = _epoch(self.packs, "idx")
        if of and self.epoch and of != self.epoch:
            self.index.begin_again("it is the index of another store")
        self.is_complete = bool(self.epoch) and of == self.epoch
        # What was packed with a dictionary that cannot be read says so when it is read.
        with contextlib.suppress(Damaged), self.packs.snapshot() as db:
            for number, data in db.execute("SELECT id, data FROM dictionary ORDER BY id"):
                self.codec.take(number, data)

    def _add_functions(self, connection: apsw.Connection) -> None:
        def path_matches(*values: apsw.SQLiteValue) -> int:
            patterns, path = map(str, values)
            return int(globs.matcher_of(patterns)(path))

        connection.create_scalar_function("path_matches", path_matches, 2, deterministic=True)
        # Its parameters are of the types that the schema says.
        unpack: Any = self.codec.unpack
        connection.create_scalar_function("unpacked", unpack, 5, deterministic=True)

    async def read(self, query: Query[T]) -> T:
        """Run `query` on one consistent state of the packs, with the index attached as `idx`; where it finds that
        damaged, once more, on the empty one."""
        generation = self.index.generation
        try:
            return await self.packs.read(query)
        except Unavailable:
            return await self.packs.read(query)
        except apsw.CorruptError as error:
            # Of a full-text index, whose tables are whole as far as SQLite can tell.
            await trio.to_thread.run_sync(self.index.begin_again, str(error), generation)
            return await self.packs.read(query)

    def _index_was_lost(self) -> None:
        self.is_complete = False
        self.when_index_is_lost()

    async def refill(self) -> None:
        """Queue everything for an index that lacks it.  Killed in between, it is queued again.  Raises LinckiaError."""
        mark = "INSERT OR REPLACE INTO setting VALUES('epoch', ?)"
        async with self._refilling:
            while not self.is_complete:
                generation = self.index.generation
                await self.packs.write(lambda db: db.execute(schema.QUEUE_ALL).fetchall())
                self.epoch = self.epoch or await trio.to_thread.run_sync(_epoch, self.packs)
                await self.index.write(lambda db: db.execute(mark, (self.epoch,)).fetchall())
                self.is_complete = self.index.generation == generation

    def caught_up(self) -> None:
        if self.is_complete:
            self.index.rebuilt = ""

    def lacks(self) -> list[str]:
        """What an answer from the databases may lack, in words."""
        rebuilt = [f"the index is being rebuilt ({self.index.rebuilt})"] if self.index.rebuilt else []
        return rebuilt + [self.packs.damage] * bool(self.packs.damage)

    async def tidy(self) -> None:
        """Move long logs into the databases, so that they take no room twice; passed over while somebody reads."""
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
    """Whether each text is in the index or queued for it, as a reader sees the two."""
    return db.execute("SELECT 1 FROM idx.setting WHERE name='epoch'").get is not None
