"""Keeps a copy of the entries in memory (`columns`) in step with the tables, for as long as it is used.

It is made in the background once somebody asked for what it would have answered sooner, and given back when nobody has
for a while, or when so much was written that reading all anew is not slower: until then the tables answer. A reader
that is given the copy sees one state in it and in its transaction.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

import apsw
import trio

from services.files.store import functions
from services.files.store.database import Database
from services.files.store.dirty_rows import Written
from services.files.store.rows import fetch_value

if TYPE_CHECKING:
    from services.files.column_cache.held import Held

LEAST = 20_000
"""Entries to be looked at from which on the copy is worth its while."""

MOST = 8_000_000
"""Entries of an index of which there is a copy: about 800 MB, of the 2 GB that the process may have."""

IDLE_S = 900.0
CALM_S = 5.0
"""Since so much was written that the copy was given back: a scan is likely to go on."""

REPLACED = 5_000
"""Names that are not where they were read: each costs every search."""

PAUSE_S = 5.0
SETS_AT_FIRST = 4

MOST_CALLS = 100_000
"""Of `matches`, that a question to the tables may make (a sixth of a second) while the copy is made, which needs the
same interpreter: beyond that the two would only hold each other up."""

PATIENCE_S = 8.0
"""So long such a question waits for the copy; then it asks the tables for good. Four million entries are read in
that time."""

T = TypeVar("T")

_log = logging.getLogger("linckia.files")


class _Later(Exception):
    """It is better asked of the copy."""


class Mirror:
    """The copy, while there is one. `run` makes it and gives it back."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._held: Held | None = None
        self._written = Written()
        self._used = self._dropped = float("-inf")
        self._wanted: tuple[int, ...] | None = None
        self.made = trio.Event()
        """Set while there is a copy; another one once it is given back."""
        self._settled = trio.Event()
        """Set once it is known whether there will be a copy; another one with the next attempt."""
        self._ask = trio.Event()
        self._scope = trio.CancelScope()
        self._token: trio.lowlevel.TrioToken | None = None

    async def read(self, query: Callable[[apsw.Connection, Held | None], T]) -> T:
        """Run `query` on one consistent state of the database and, where there is one, of the copy; cancelling this
        interrupts it. Those that are given the copy take turns.

        While there is none the tables are asked; once it is there before they have answered, it is asked in their
        place. A question that matches very many rows by Python is put off while the copy is made, `PATIENCE_S` at most.
        So `query` may be run several times, and must not mind.
        """

        def run(db: apsw.Connection) -> T:
            with self._at(db) as held:
                return query(db, held)

        if self._held is not None:
            return await self._database.read(run)
        answers: list[T] = []
        failures: list[Exception] = []
        made, settled = self.made, self._settled

        def run_briefly(db: apsw.Connection) -> T:
            with functions.at_most(MOST_CALLS, self._give_way):
                return run(db)

        async def ask() -> T:
            with contextlib.suppress(_Later):
                return await self._database.read(run_briefly)
            with trio.move_on_after(PATIENCE_S):
                await settled.wait()
            return await self._database.read(run)

        async def by_tables() -> None:
            try:
                answers.append(await ask())
            except Exception as error:
                # Raised below, by itself and not in a group.
                failures.append(error)
            race.cancel_scope.cancel()

        async with trio.open_nursery() as race:
            race.start_soon(by_tables)
            # Of a million entries the tables take longer over some questions than the copy takes to be made.
            await made.wait()
            race.cancel_scope.cancel()
        if failures:
            raise failures[0]
        return answers[0] if answers else await self._database.read(run)

    @contextlib.contextmanager
    def _at(self, db: apsw.Connection) -> Iterator[Held | None]:
        if self._held is None:
            yield None
            return
        self._used = time.monotonic()
        with contextlib.ExitStack() as turn:
            turn.enter_context(self._lock)
            held = self._in_step(db)
            if held is None:
                turn.close()
            else:
                held.let_go = turn.close
            yield held

    def _in_step(self, db: apsw.Connection) -> Held | None:
        held = self._held
        if held is None:
            return None
        written = self._database.begin_at(db, self._written)
        if written.too_many or held.columns.names.replaced > REPLACED:
            self._drop()
            return None
        try:
            held.step(db, written)
        except BaseException:
            # Of half a step nobody knows the state.
            self._drop()
            raise
        return held

    def want(self, sets: Sequence[int] | None) -> None:
        """Somebody asked for what the copy would answer sooner; of these sets, or of all there is. From any thread."""
        if self._token is not None and self._wanted is None:
            self._wanted = tuple(sets or ())
            self._token.run_sync_soon(self._ask.set)

    def _give_way(self) -> None:
        """Raises _Later while the copy is made, or is about to be."""
        calm = time.monotonic() - self._dropped >= CALM_S
        if self._wanted is not None and calm and not self._settled.is_set():
            raise _Later

    def _drop(self) -> None:
        self._held = None
        self._dropped = time.monotonic()

    async def run(self) -> None:
        """Make the copy when it is wanted, and give it back when it is not used; until `close`."""
        self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            await self._run()

    def close(self) -> None:
        """Have `run` end."""
        self._scope.cancel()

    async def _run(self) -> None:
        while True:
            await self._ask.wait()
            self._ask = trio.Event()
            await trio.sleep(max(0.0, CALM_S - (time.monotonic() - self._dropped)))
            try:
                await trio.to_thread.run_sync(self._build, self._wanted or (), abandon_on_cancel=False)
            except (apsw.Error, MemoryError) as error:
                self._dropped = time.monotonic()
                _log.warning("the entries could not be read into memory, and are read from the disk: %s", error)
            if self._held is not None:
                self.made.set()
            self._settled.set()
            while self._held is not None:
                left = self._used + IDLE_S - time.monotonic()
                if left <= 0:
                    await trio.to_thread.run_sync(self._give_back)
                await trio.sleep(PAUSE_S)
            await trio.to_thread.run_sync(self._database.watch, None)
            self.made, self._settled = trio.Event(), trio.Event()
            self._wanted = None

    def _give_back(self) -> None:
        with self._lock:
            self._drop()
            self._dropped = float("-inf")

    def _build(self, sets: Sequence[int]) -> None:
        from services.files.column_cache.held import Held  # brings numpy, of which most processes never have need

        began = time.monotonic()
        self._written = Written()
        self._database.watch(self._written)
        with self._lock, self._database.snapshot() as db:
            self._database.begin_at(db, self._written)
            count: int = fetch_value(db, "SELECT count(*) FROM entry")
            if count > MOST:
                self._dropped = time.monotonic()
                return
            held = Held(db, trio.from_thread.check_cancelled)
            for set_id in sets[:SETS_AT_FIRST]:
                held.members(set_id)
            self._held, self._used = held, time.monotonic()
        size = held.columns.nbytes >> 20
        _log.info("%d entries are in memory, %d MiB, after %.1f s", count, size, time.monotonic() - began)
