"""Columns of the index in memory, for queries over very many entries; SQLite answers all others.

A column is loaded in the background when a query over many entries first needs it; until then SQLite answers. From the
moment at which the columns are read, a hook on the only connection that writes notes the id of each entry that changes,
before the change is committed. A query opens its snapshot first and reads the noted ids afterwards, so they include
every change that the snapshot shows. It takes these entries from SQLite and all others from the columns. Nothing is on
disk: after a start, a damaged database or many changes, the columns are loaded again.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

import apsw
import trio

from proto.names import module
from services.files.store.sql import fetch_value
from services.runtime.database import Database

if TYPE_CHECKING:
    from services.files.query.arrays import Arrays, View

LARGE = 50_000
"""Queries over fewer entries are left to SQLite."""

MAX_ENTRIES = 20_000_000
"""A larger index would take too much memory."""

MAX_CHANGED = 5_000
"""With more changed entries, the columns are loaded again."""

MAX_COLUMNS = 32

IDLE_S = 60.0
"""Columns unused for this long are dropped."""

CALM_S = 5.0
"""Delay before columns are loaded again after many changes, which rarely end at once."""

ATTEMPTS = 5

_log = logging.getLogger("linckia.files")


class _Base:
    """Loaded columns, and the ids of the entries that have changed since."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.arrays: Arrays | None = None
        self.changed: set[int] = set()
        self.lost = False
        """True if too much has changed."""

    def note(self, update: apsw.PreUpdate) -> None:
        """Note a change, before it is committed."""
        if self.lost:
            return
        if update.table_name == "entry":
            self.changed.update((update.rowid, update.rowid_new))
        elif update.table_name == "member":
            self.changed.update(int(row[1]) for row in (update.old, update.new) if row is not None)  # type: ignore[arg-type]  # `entry_id` is an integer
        elif update.table_name == "folder":
            # If a directory moves, the paths of all entries below it change.
            before, after = update.old, update.new
            self.lost = before is not None and after is not None and before[2] != after[2]
        if self.lost or len(self.changed) > MAX_CHANGED:
            self.lost = True
            self.arrays = None


class Columns:
    """The columns of one database. `view` may be called from any thread of trio's."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._base: _Base | None = None
        self._wanted: set[str] = set()
        self._wake = trio.Event()
        self._used = False
        self._is_idle = trio.Event()
        self._is_idle.set()

    def view(self, db: apsw.Connection, needed: Collection[str]) -> View | None:
        """Return the needed columns as of the snapshot that `db` reads; None if SQLite has to answer."""
        # Until the first statement reads something, there is no snapshot.
        db.execute("SELECT 1 FROM folder LIMIT 1").fetchall()
        self._used = True
        base = self._base
        arrays = None if base is None or base.generation != self._database.generation else base.arrays
        changed = set() if base is None else base.changed.copy()
        if base is None or arrays is None or base.lost or not arrays.has(needed):
            trio.from_thread.run_sync(self._want, needed)
            return None
        return arrays.view(changed)

    def _want(self, needed: Collection[str]) -> None:
        self._wanted.update(needed)
        self._wake.set()
        if self._is_idle.is_set():
            self._is_idle = trio.Event()

    async def settled(self) -> None:
        """Wait until everything that was needed so far is loaded."""
        await self._is_idle.wait()

    async def run(self) -> None:
        """Load what queries need and drop what they no longer use, until cancelled."""
        while True:
            with trio.move_on_after(IDLE_S) as waiting:
                await self._wake.wait()
            try:
                if not waiting.cancelled_caught:
                    await self._load()
                elif self._base is not None and not self._used:
                    await self.drop()
                self._used = False
            except Exception as error:  # noqa: BLE001  # columns only save time: SQLite answers, and the next query asks again
                _log.warning("cannot load columns of the index: %r", error)
                self._base = None
            if not self._wake.is_set():
                self._is_idle.set()

    async def drop(self) -> None:
        """Free the memory of all columns."""
        self._base = None
        await self._database.exclusive(lambda db: db.preupdate_hook(None, id=self))

    async def _load(self) -> None:
        self._wake = trio.Event()
        base = self._base
        if base is not None and base.lost:
            self._base = None
            await trio.sleep(CALM_S)
        wanted, self._wanted = self._wanted, set()
        had = base.arrays.names if base is not None and base.arrays is not None else frozenset()
        names = wanted | had if len(wanted | had) <= MAX_COLUMNS else wanted
        for _ in range(ATTEMPTS):
            base = self._base
            if base is None or base.changed or base.lost or base.generation != self._database.generation:
                base = await self._database.exclusive(self._watched)
            if await self._database.read(lambda db, base=base: _fill(db, base, names)):  # type: ignore[misc]  # bound at once
                return

    def _watched(self, writer: apsw.Connection) -> _Base:
        """Begin to note changes. No transaction is open."""
        base = _Base(self._database.generation)
        # In this order: a query that still finds the old base has opened its snapshot while that was notified.
        self._base = base
        writer.preupdate_hook(base.note, id=self)
        return base


def _fill(db: apsw.Connection, base: _Base, names: Collection[str]) -> bool:
    """Load columns. Returns False if the state that `db` reads is no longer that of the columns."""
    last = fetch_value(db, "SELECT max(id) FROM entry")
    # The snapshot is open now.
    if base.changed or base.lost:
        return False
    if last > MAX_ENTRIES:
        return True
    # numpy takes memory and start-up time that a small index does not need.
    arrays: Arrays = importlib.import_module(module("services.files.query.arrays")).Arrays(base.arrays)
    for name in sorted(names):
        arrays.load(db, name)
    if not base.lost:
        base.arrays = arrays
    return True


def is_large(db: apsw.Connection, of: str, bindings: tuple[object, ...] = ()) -> bool:
    """True if at least `LARGE` rows meet the rest of a query (`FROM …`)."""
    return bool(fetch_value(db, f"SELECT count(*) FROM (SELECT 1 FROM {of} LIMIT {LARGE})", bindings) >= LARGE)
