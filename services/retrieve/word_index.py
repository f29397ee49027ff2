"""The words of one collection: which index is asked for them, and the work beside searches that keeps that so.

FTS5 holds every word in the transaction that wrote it. From a size on tantivy is asked instead, once it has everything;
whenever it has not (it is being filled, was damaged, cannot be written), FTS5 answers as before, only slower. At the
start, FTS5 is counted against what was put into it; one that lost words without an error is rebuilt first.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import apsw
import numpy as np
import trio

from linckia.proto.errors import LinckiaError
from linckia.services.retrieve import filters, large_words, lexical, store
from linckia.services.retrieve.filters import Where
from linckia.services.retrieve.large_words import LargeWords, Lost
from linckia.services.retrieve.lexical import Row, WordsDamaged
from linckia.services.retrieve.store import Indexed
from linckia.services.retrieve.terms import query_terms

COMMIT_EVERY_S = 0.5
"""Of tantivy: a commit makes a segment, and many small ones are merged again and again."""

RETRY_S = 30.0
COUNT_EVERY_S = 5.0

CHECK_WAIT_S = 2.0
"""So long a search waits for FTS5 to be counted, or tantivy to be opened; then it answers from what there is, and says
so."""

CHECK_AFTER_S = 2.0
"""So long FTS5 is not counted while tantivy, which answers in its place, is being opened."""

_LOADED_AT_ONCE = 500
_COMMITTED_AT_ONCE = 20_000

_log = logging.getLogger("linckia.retrieve")


class FoundWords(NamedTuple):
    """Item ids and BM25 scores, best first."""

    hits: list[tuple[int, float]]
    unchecked: bool
    """Found by FTS5 before it was counted: some may be missing."""


class WordIndex:
    """`search` and `follow` are called in worker threads.

    Args:
        path: of the database; tantivy's folder lies beside it, named by the `epoch`, since ids mean nothing in another.
        large: items from which tantivy is asked; None: never.
    """

    def __init__(self, path: Path, large: int | None, epoch: str = "", *, is_large: bool = True) -> None:
        self._path = path
        self._folder = path.with_name(f"{path.stem}.words-{lexical.VERSION}-{large_words.VERSION}-{epoch[:8]}")
        self._large_from = large
        self._following: LargeWords | None = None
        """Told of what is written."""
        self._asked: LargeWords | None = None
        """The same, once it has everything."""
        self._lost = ""
        """Why it answers no more and is to be rebuilt."""
        self._scrubbed: trio.Event | None = None
        self._changed = trio.Event()
        self._checked = False
        self.damage = ""
        """What FTS5 lacks, for which it is to be rebuilt; empty where no damage is known."""
        self.check_wait_s = CHECK_WAIT_S
        self.wanted = trio.Event()
        """A call waits, or has waited, for words."""
        self._ready = trio.Event()
        """The index that is asked has all words, for all that is known."""
        self._settled = trio.Event()
        """It is known by now which index is asked."""
        if large is None or not is_large:
            self._settled.set()

    @property
    def kind(self) -> str:
        """Which index is asked, for `status`."""
        return "fts5" if self._asked is None else "tantivy"

    @property
    def pending(self) -> bool:
        """Whether tantivy's files lack a change."""
        return self._following is not None and bool(self._following.pending)

    def size_bytes(self) -> int:
        return 0 if self._following is None else self._following.size_bytes()

    async def trust(self) -> None:
        """Until all words are known to be there, so long at most as a search may wait for that."""
        self.wanted.set()
        if not (self._checked or self._asked is not None):
            with trio.move_on_after(self.check_wait_s):
                await self._ready.wait()

    def search(self, db: apsw.Connection, query: str, limit: int, where: Where | None) -> FoundWords:
        """Raises WordsDamaged where FTS5 has to be asked and is damaged."""
        if (large := self._asked) is not None:
            try:
                allowed = None if where is None else filters.allowed_items(db, where)
                terms = query_terms(query)
                found = large.search(terms, limit, allowed) if terms else []
                if found is not None:
                    return FoundWords(found, unchecked=False)
            except Lost as error:
                self._give_up(large, str(error))
        if self.damage:
            raise WordsDamaged(f"the word index is damaged ({self.damage}) and is being rebuilt")
        # Read before the search: what it finds may be of before the check's end.
        unchecked = not self._checked
        return FoundWords(lexical.Fts5(db).search(query, limit, where), unchecked)

    def follow(self, rows: Sequence[Row], gone: Sequence[int]) -> None:
        """What the database has committed a moment ago; in the thread that did."""
        if (large := self._following) is not None:
            try:
                large.note(rows, gone)
            except Lost as error:
                self._give_up(large, str(error))

    def changed(self) -> None:
        """Something was committed; on trio's thread."""
        self._changed.set()

    async def check(self) -> str:
        """Count FTS5 against what was put into it; answers what is wrong, for which it is to be rebuilt."""
        with trio.move_on_after(CHECK_AFTER_S):
            await self._settled.wait()
        self.damage = await trio.to_thread.run_sync(self._count, limiter=trio.CapacityLimiter(1))
        if not self.damage:
            self.rebuilt()
        return self.damage

    def rebuilt(self) -> None:
        """FTS5 has every word."""
        self.damage = ""
        self._checked = True
        self._ready.set()

    def _count(self) -> str:
        """A second for half a million items."""
        # A connection of its own: what the check is made by stays on it.
        with contextlib.closing(apsw.Connection(str(self._path))) as db:
            try:
                lexical.prepare_check(db)
                db.execute("BEGIN")
                return lexical.check(db)
            except apsw.Error as error:
                return str(error)

    async def scrub(self) -> None:
        """Have tantivy's files, in which words of what was deleted stay, removed and made again."""
        self.wanted.set()
        await self._settled.wait()
        if self._following is not None:
            scrubbed = self._scrubbed = self._scrubbed or trio.Event()
            self._give_up(self._following, "it is rebuilt, without what was deleted")
            self._changed.set()
            await scrubbed.wait()

    async def keep(
        self,
        collection: Indexed,
        report: Callable[[str], None],
        *,
        retry_s: float = RETRY_S,
        count_every_s: float = COUNT_EVERY_S,
    ) -> None:
        """Keep tantivy in step, where the collection is large enough for it, until cancelled.

        Cancellation: what is not committed is found missing at the next start.

        Args:
            report: what keeps it from being asked, empty once it is; meanwhile FTS5 answers.
        """
        in_thread = partial(trio.to_thread.run_sync, limiter=trio.CapacityLimiter(1))
        for path in self._path.parent.glob(f"{self._path.stem}.words-*"):
            if path != self._folder:
                await in_thread(large_words.remove, path)
        try:
            while True:
                changed = self._changed = trio.Event()
                try:
                    least = self._large_from
                    if least is None or not await collection.read(partial(store.has_items, count=least)):
                        self._settled.set()
                        await in_thread(self._discard)
                        await changed.wait()
                        await trio.sleep(count_every_s)
                        continue
                    large = await in_thread(self._open)
                    await in_thread(self._fill, collection, large)
                    self._ready.set()
                    self._settled.set()
                    report("")
                    while True:
                        changed = self._changed = trio.Event()
                        self._fail_if_lost()
                        if not self.pending:
                            await changed.wait()
                        await trio.sleep(COMMIT_EVERY_S)
                        await in_thread(large.flush)
                except (Lost, OSError, apsw.Error, LinckiaError) as error:
                    report(str(error))
                    self._settled.set()
                    await in_thread(self._discard)
                    if self._scrubbed is None:
                        await trio.sleep(retry_s)
                    else:
                        self._scrubbed.set()
                        self._scrubbed = None
        finally:
            with trio.CancelScope(shield=True):
                await in_thread(self._end)

    # In the thread of `keep`

    def _open(self) -> LargeWords:
        """Open what was kept of tantivy's index, or begin a new one; from here on `follow` tells it."""
        self._lost = ""
        try:
            self._following = LargeWords(self._folder)
        except Lost as error:
            _log.warning("the index of words in %s is rebuilt: %s", self._folder, error)
            large_words.remove(self._folder)
            self._following = LargeWords(self._folder)
        return self._following

    def _fill(self, collection: Indexed, large: LargeWords) -> None:
        """Bring the index to what the database holds, and ask it from then on."""
        large.verify(trio.from_thread.check_cancelled)
        ids, held = collection.read_here(store.item_ids), large.ids()
        large.drop(np.setdiff1d(held, ids, assume_unique=True).tolist())
        missing = np.setdiff1d(ids, held, assume_unique=True)
        for start in range(0, len(missing), _LOADED_AT_ONCE):
            trio.from_thread.check_cancelled()
            self._fail_if_lost()
            some = missing[start : start + _LOADED_AT_ONCE].tolist()
            large.load(collection.read_here(partial(lexical.rows, ids=some)))
            if (start + _LOADED_AT_ONCE) % _COMMITTED_AT_ONCE < _LOADED_AT_ONCE:
                large.flush()
        large.flush()
        self._fail_if_lost()
        self._asked = large

    def _end(self) -> None:
        """Ask and tell tantivy no more; its files stay."""
        large, self._following, self._asked = self._following, None, None
        if large is not None:
            try:
                large.close()
            except Lost as error:
                _log.warning("the index of words in %s: %s", self._folder, error)

    def _discard(self) -> None:
        """As `_end`, and the files go as well."""
        self._end()
        large_words.remove(self._folder)

    def _fail_if_lost(self) -> None:
        if self._lost:
            raise Lost(self._lost)

    def _give_up(self, large: LargeWords, reason: str) -> None:
        if self._following is large:
            _log.warning("the index of words in %s answers no more: %s", self._folder, reason)
            self._asked = None
            self._lost = reason
