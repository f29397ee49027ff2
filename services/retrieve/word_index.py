"""The words of one collection: which index is asked for them, and the work beside searches that keeps that so.

FTS5 holds every word in the transaction that wrote it. From a size on, where a broad query takes it too long, tantivy
is asked instead, once it has everything; whenever it has not (it is being filled, was damaged, cannot be written), FTS5
answers as before, only slower. At the start, FTS5 is counted against what was put into it; one that lost words without
an error is rebuilt before it is trusted. Where tantivy is asked, nothing waits for that.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import apsw
import numpy as np

from services.retrieve import id_sets, large_words, lexical
from services.retrieve.filters import Where, allowed_items
from services.retrieve.large_words import LargeWords, Lost
from services.retrieve.lexical import Row, WordsDamaged
from services.retrieve.terms import query_terms

if TYPE_CHECKING:
    from services.retrieve.collection import Collection

COMMIT_EVERY_S = 0.5
"""Of tantivy: a commit makes a segment, and many small ones are merged again and again."""

_LOADED_AT_ONCE = 500
_COMMITTED_AT_ONCE = 20_000

_log = logging.getLogger("linckia.retrieve")


class FoundWords(NamedTuple):
    """Item ids and BM25 scores, best first."""

    hits: list[tuple[int, float]]
    unchecked: bool
    """Found by FTS5 before it was counted: some may be missing."""


class WordIndex:
    """`search` and `follow` are called in worker threads, the rest by `run_words`.

    Args:
        folder: of tantivy's files; made when there is need.
        large: items from which tantivy is asked; None: never.
        epoch: of the collection, and part of the folder's name: ids of one epoch mean nothing in another.
    """

    def __init__(self, folder: Path, large: int | None, epoch: str = "") -> None:
        self._folder = folder.with_name(f"{folder.name}-{lexical.VERSION}-{large_words.VERSION}-{epoch[:8]}")
        self._of_any_version = folder
        self._large_from = large
        self._following: LargeWords | None = None
        self._asked: LargeWords | None = None
        self._trouble = ""
        self._recreating = False
        self.checked = False
        """Whether FTS5 was counted, and is whole."""
        self.damage = ""
        """What FTS5 lacks, for which it is to be rebuilt; empty where no damage is known."""

    @property
    def trusted(self) -> bool:
        """Whether the index that is asked has all words."""
        return self.checked or self._asked is not None

    @property
    def kind(self) -> str:
        """Which index is asked, for `status`."""
        return "fts5" if self._asked is None else "tantivy"

    @property
    def pending(self) -> bool:
        """Whether `flush` would find something to do."""
        return self._following is not None and bool(self._following.pending)

    @property
    def broken(self) -> str:
        """Why tantivy's index, found damaged by a search, is to be rebuilt; empty where it is not."""
        return self._trouble

    def size_bytes(self) -> int:
        return 0 if self._following is None else self._following.size_bytes()

    def search(self, db: apsw.Connection, query: str, limit: int, where: Where | None) -> FoundWords:
        """Raises WordsDamaged where FTS5 has to be asked and is damaged."""
        if (large := self._asked) is not None:
            try:
                allowed = None if where is None else allowed_items(db, where)
                terms = query_terms(query)
                found = large.search(terms, limit, allowed) if terms else []
                if found is not None:
                    return FoundWords(found, unchecked=False)
            except Lost as error:
                self._give_up(large, str(error))
        if self.damage:
            raise WordsDamaged(f"the word index is damaged ({self.damage}) and is being rebuilt")
        # Read before the search: what it finds may be of before the check's end.
        unchecked = not self.checked
        return FoundWords(lexical.Fts5(db).search(query, limit, where), unchecked)

    def check(self, path: Path) -> None:
        """Count FTS5 against what was put into it: `checked`, or else `damage`, is set.  Blocks, a second for half a
        million items.

        Args:
            path: of the database.
        """
        # A connection of its own: what the check is made by stays on it.
        with contextlib.closing(apsw.Connection(str(path))) as db:
            try:
                lexical.prepare_check(db)
                db.execute("BEGIN")
                self.damage = lexical.check(db)
            except apsw.Error as error:
                self.damage = str(error)
        self.checked = not self.damage

    def rebuilt(self) -> None:
        """FTS5 was rebuilt."""
        self.damage = ""
        self.checked = True

    def recreate(self) -> bool:
        """Have tantivy's files removed and made again, since words of what was deleted stay in them; whether there are
        any."""
        if (large := self._following) is None:
            return False
        self._recreating = True
        self._give_up(large, "it is rebuilt, without what was deleted")
        return True

    @property
    def recreating(self) -> bool:
        """Whether that is why it is broken."""
        return self._recreating

    def follow(self, rows: Sequence[Row], gone: Sequence[int]) -> None:
        """What the database has committed a moment ago; in the thread that did."""
        if (large := self._following) is not None:
            try:
                large.note(rows, gone)
            except Lost as error:
                self._give_up(large, str(error))

    # In a thread of `run_words`

    def wants_large(self, items: int) -> bool:
        """Whether a collection of so many items is to be looked up by tantivy."""
        return self._large_from is not None and items >= self._large_from

    @property
    def has_large(self) -> bool:
        return self._following is not None

    def clear(self) -> None:
        """Remove files that are of another version."""
        for path in self._of_any_version.parent.glob(f"{self._of_any_version.name}-*"):
            if path != self._folder:
                large_words.remove(path)

    def begin(self) -> None:
        """Open what was kept of tantivy's index, or begin a new one; from here on `follow` tells it."""
        self._trouble = ""
        self._recreating = False
        try:
            self._following = LargeWords(self._folder)
        except Lost as error:
            _log.warning("the index of words in %s is rebuilt: %s", self._folder, error)
            large_words.remove(self._folder)
            self._following = LargeWords(self._folder)

    def fill(self, collection: Collection, checkpoint: Callable[[], None]) -> None:
        """Bring the index to what the database holds, and ask it from then on.

        Raises:
            Lost: its files are damaged or cannot be written.
        """
        large = self._following
        assert large is not None
        large.verify(checkpoint)
        if not large.is_whole(collection.read_here(id_sets.totals)):
            self._bring_up(large, collection, checkpoint)
        large.finish()
        if self._trouble:
            raise Lost(self._trouble)
        self._asked = large

    def _bring_up(self, large: LargeWords, collection: Collection, checkpoint: Callable[[], None]) -> None:
        ids, held = collection.read_here(id_sets.items), large.ids()
        large.drop(np.setdiff1d(held, ids, assume_unique=True).tolist())
        missing = np.setdiff1d(ids, held, assume_unique=True)
        for start in range(0, len(missing), _LOADED_AT_ONCE):
            checkpoint()
            if self._trouble:
                raise Lost(self._trouble)
            some = missing[start : start + _LOADED_AT_ONCE].tolist()
            large.load(collection.read_here(partial(lexical.rows, ids=some)))
            if (start + _LOADED_AT_ONCE) % _COMMITTED_AT_ONCE < _LOADED_AT_ONCE:
                large.flush()

    def flush(self) -> None:
        """Raises Lost."""
        if self._following is not None:
            self._following.flush()

    def end(self) -> None:
        """Ask and tell tantivy no more; its files stay."""
        large, self._following, self._asked = self._following, None, None
        if large is not None:
            try:
                large.close()
            except Lost as error:
                _log.warning("the index of words in %s: %s", self._folder, error)

    def discard(self) -> None:
        """As `end`, and the files go as well."""
        self.end()
        large_words.remove(self._folder)

    def _give_up(self, large: LargeWords, reason: str) -> None:
        if self._asked is large or self._following is large:
            _log.warning("the index of words in %s answers no more: %s", self._folder, reason)
            self._asked = None
            self._trouble = reason
