"""The word index of one collection: FTS5, with tantivy for large collections, and the background work for both.

FTS5 is updated in the transaction that writes the text. In large collections tantivy answers instead, once it is
complete. While it is not (being filled, damaged, not writable), FTS5 answers, only more slowly. At startup FTS5 is
checked against the items, and rebuilt if it lost words without an error.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import apsw
import numpy as np
import trio

from proto.errors import LinckiaError
from services.retrieve import filters, item_store
from services.retrieve.filters import Where
from services.retrieve.index import lexical, tantivy_index
from services.retrieve.index.lexical import Row, WordsDamaged
from services.retrieve.index.tantivy_index import IndexFailed, TantivyIndex
from services.retrieve.index.terms import query_terms
from services.retrieve.item_store import Indexed
from services.retrieve.store import FoundWords

COMMIT_EVERY_S = 0.5
"""Interval of tantivy commits.  Each makes a segment, and many small segments cause repeated merges."""

RETRY_S = 30.0
COUNT_EVERY_S = 5.0

CHECK_WAIT_S = 2.0
"""How long a search waits for FTS5 to be checked or tantivy to be opened.  Then it uses what is available and says so.
"""

CHECK_AFTER_S = 2.0
"""How long the check of FTS5 is delayed while tantivy, which replaces it, is being opened."""

_LOADED_AT_ONCE = 500
_COMMITTED_AT_ONCE = 20_000

_log = logging.getLogger("linckia.retrieve")


class WordIndex:
    """The word index of a collection.  `search` and `follow` are called in worker threads.

    Args:
        path: of the database.  Tantivy's folder lies beside it and is named after the `epoch`, as ids belong to one.
        large: number of items from which tantivy is used; None means never.
    """

    def __init__(self, path: Path, large: int | None, epoch: str = "", *, is_large: bool = True) -> None:
        self._path = path
        self._folder = path.with_name(f"{path.stem}.words-{lexical.VERSION}-{tantivy_index.VERSION}-{epoch[:8]}")
        self._large_from = large
        self._tantivy: TantivyIndex | None = None
        """The tantivy index, which records every write."""
        self._searchable: TantivyIndex | None = None
        """The tantivy index once it is complete, for searches."""
        self._failure = ""
        """Why tantivy can no longer be used and has to be rebuilt; empty if it can."""
        self._scrubbed: trio.Event | None = None
        self._changed = trio.Event()
        self._checked = False
        self.damage = ""
        """What is wrong with FTS5, so that it has to be rebuilt; empty if no damage is known."""
        self.check_wait_s = CHECK_WAIT_S
        self.wanted = trio.Event()
        """Set once a call has waited for words."""
        self._ready = trio.Event()
        """Set once the index in use is checked."""
        self._settled = trio.Event()
        """Set once the choice between FTS5 and tantivy is made."""
        if large is None or not is_large:
            self._settled.set()

    @property
    def kind(self) -> str:
        """The index in use, for `status`."""
        return "fts5" if self._searchable is None else "tantivy"

    @property
    def pending(self) -> bool:
        """Whether tantivy's files lack a change."""
        return self._tantivy is not None and bool(self._tantivy.pending)

    def size_bytes(self) -> int:
        return 0 if self._tantivy is None else self._tantivy.size_bytes()

    async def trust(self) -> None:
        """Wait until the index in use is checked, for at most `check_wait_s`."""
        self.wanted.set()
        if not (self._checked or self._searchable is not None):
            with trio.move_on_after(self.check_wait_s):
                await self._ready.wait()

    def search(self, db: apsw.Connection, query: str, limit: int, where: Where | None) -> FoundWords:
        """Search for words.  Raises WordsDamaged if FTS5 is needed and damaged."""
        if (large := self._searchable) is not None:
            try:
                allowed = None if where is None else filters.allowed_items(db, where)
                terms = query_terms(query)
                found = large.search(terms, limit, allowed) if terms else []
                if found is not None:
                    return FoundWords(found, unchecked=False)
            except IndexFailed as error:
                self._give_up(large, str(error))
        if self.damage:
            raise WordsDamaged(f"the word index is damaged ({self.damage}) and is being rebuilt")
        # Read before the search, because the check may end while it runs.
        unchecked = not self._checked
        return FoundWords(lexical.Fts5(db).search(query, limit, where), unchecked)

    def follow(self, rows: Sequence[Row], gone: Sequence[int]) -> None:
        """SegmentRecord a commit in tantivy.  Runs in the writer thread, right after the commit."""
        if (large := self._tantivy) is not None:
            try:
                large.note(rows, gone)
            except IndexFailed as error:
                self._give_up(large, str(error))

    def changed(self) -> None:
        """Notice a commit.  Runs on the trio thread."""
        self._changed.set()

    async def check(self) -> str:
        """Check FTS5 against the items.  Returns what is wrong, or an empty string."""
        with trio.move_on_after(CHECK_AFTER_S):
            await self._settled.wait()
        self.damage = await trio.to_thread.run_sync(self._count, limiter=trio.CapacityLimiter(1))
        if not self.damage:
            self.rebuilt()
        return self.damage

    def rebuilt(self) -> None:
        """SegmentRecord that FTS5 is complete."""
        self.damage = ""
        self._checked = True
        self._ready.set()

    def _count(self) -> str:
        """Run the check; it takes a second for half a million items."""
        # On its own connection, as the check leaves a temporary table behind.
        with contextlib.closing(apsw.Connection(str(self._path))) as db:
            try:
                lexical.prepare_check(db)
                db.execute("BEGIN")
                return lexical.check(db)
            except apsw.Error as error:
                return str(error)

    async def scrub(self) -> None:
        """Rebuild tantivy's files, which still hold words of deleted items."""
        self.wanted.set()
        await self._settled.wait()
        if self._tantivy is not None:
            scrubbed = self._scrubbed = self._scrubbed or trio.Event()
            self._give_up(self._tantivy, "rebuilding to purge deleted items")
            self._changed.set()
            await scrubbed.wait()

    async def maintain(
        self,
        collection: Indexed,
        report: Callable[[str], None],
        *,
        retry_s: float = RETRY_S,
        count_every_s: float = COUNT_EVERY_S,
    ) -> None:
        """Maintain tantivy, if the collection is large enough, until cancelled.

        Cancellation: uncommitted changes are detected as missing at the next start.

        Args:
            report: called with the error that prevents the use of tantivy, and with an empty string once it is usable.
        """
        in_thread = partial(trio.to_thread.run_sync, limiter=trio.CapacityLimiter(1))
        for path in self._path.parent.glob(f"{self._path.stem}.words-*"):
            if path != self._folder:
                await in_thread(tantivy_index.remove, path)
        try:
            while True:
                changed = self._changed = trio.Event()
                try:
                    least = self._large_from
                    if least is None or not await collection.on_reader(partial(item_store.has_items, count=least)):
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
                        self._raise_failure()
                        if not self.pending:
                            await changed.wait()
                        await trio.sleep(COMMIT_EVERY_S)
                        await in_thread(large.flush)
                except (IndexFailed, OSError, apsw.Error, LinckiaError) as error:
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

    # These run in the worker thread of `maintain`

    def _open(self) -> TantivyIndex:
        """Open tantivy's index, or create a new one.  `follow` records writes in it from here on."""
        self._failure = ""
        try:
            self._tantivy = TantivyIndex(self._folder)
        except IndexFailed as error:
            _log.warning("rebuilding the word index in %s: %s", self._folder, error)
            tantivy_index.remove(self._folder)
            self._tantivy = TantivyIndex(self._folder)
        return self._tantivy

    def _fill(self, collection: Indexed, large: TantivyIndex) -> None:
        """Bring the index up to date with the database, then use it for searches."""
        large.verify(trio.from_thread.check_cancelled)
        ids, held = collection.read_here(item_store.item_ids), large.ids()
        large.drop(np.setdiff1d(held, ids, assume_unique=True).tolist())
        missing = np.setdiff1d(ids, held, assume_unique=True)
        for start in range(0, len(missing), _LOADED_AT_ONCE):
            trio.from_thread.check_cancelled()
            self._raise_failure()
            some = missing[start : start + _LOADED_AT_ONCE].tolist()
            large.load(collection.read_here(partial(lexical.rows, ids=some)))
            if (start + _LOADED_AT_ONCE) % _COMMITTED_AT_ONCE < _LOADED_AT_ONCE:
                large.flush()
        large.flush()
        self._raise_failure()
        self._searchable = large

    def _end(self) -> None:
        """Stop using tantivy and close it.  Its files stay."""
        large, self._tantivy, self._searchable = self._tantivy, None, None
        if large is not None:
            try:
                large.close()
            except IndexFailed as error:
                _log.warning("closing the word index in %s failed: %s", self._folder, error)

    def _discard(self) -> None:
        """Stop using tantivy and remove its files."""
        self._end()
        tantivy_index.remove(self._folder)

    def _raise_failure(self) -> None:
        if self._failure:
            raise IndexFailed(self._failure)

    def _give_up(self, large: TantivyIndex, reason: str) -> None:
        if self._tantivy is large:
            _log.warning("the word index in %s is no longer used: %s", self._folder, reason)
            self._searchable = None
            self._failure = reason
