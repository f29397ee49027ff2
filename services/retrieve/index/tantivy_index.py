"""The word index of large collections: a tantivy copy of the FTS5 index, which would be too slow for them.

A write is recorded in memory at once (the *tail*, searched with the same scores as the files) and committed every half
second. Ids are never reused and never change their words, so what a crash lost is the difference of two sets of ids.
Checksums reveal damaged files, and the index is then rebuilt. Both indexes use the same terms and stems, so they find
the same items.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import apsw
import numpy as np
import tantivy

from services.retrieve.index.lexical import TITLE_WEIGHT, TOKENIZER, Row
from services.retrieve.index.terms import spellings
from services.retrieve.index.vectors import ItemIds, Scored, best_first

VERSION = 1
"""Version of the fields below and their content; part of the folder's name."""

FEW = 20_000
"""Largest number of admitted items for which the filter is part of the query.  Larger filters apply to its results."""

MAX_FOUND = 50_000
"""Maximum number of hits that a filter is applied to.  If that is not enough, this index returns None."""

_WRITER_BYTES = 32 * 1024 * 1024
_K1, _B = 1.2, 0.75
"""BM25 parameters of tantivy and FTS5."""

_FOOTER_MAGIC = 1337


class IndexFailed(Exception):
    """The files are damaged or cannot be written, so the index has to be rebuilt."""


class Stems:
    """Stem terms exactly as FTS5 does."""

    def __init__(self) -> None:
        connection = apsw.Connection(":memory:")
        self._tokenize = connection.fts5_tokenizer(TOKENIZER[0], list(TOKENIZER[1:]))
        self._turn = threading.Lock()

    def __call__(self, terms: str) -> list[str]:
        data, reason = terms.encode(), apsw.FTS5_TOKENIZE_DOCUMENT
        with self._turn:
            found = self._tokenize(data, reason, None, include_offsets=False, include_colocated=False)
        return [stem for stem in found if isinstance(stem, str)]


class _Tail:
    """Changes that are not in the files yet: new items and removed ids.  Hold `lock` for any access."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.postings: dict[str, dict[int, int]] = {}
        self.lengths: dict[int, int] = {}
        self.gone: set[int] = set()
        self.queue: list[tuple[int, list[str] | None]] = []

    def add(self, item_id: int, stems: list[str]) -> None:
        for stem, count in Counter(stems).items():
            self.postings.setdefault(stem, {})[item_id] = count
        self.lengths[item_id] = len(stems)
        self.queue.append((item_id, stems))

    def remove(self, item_id: int) -> None:
        self.gone.add(item_id)
        self.queue.append((item_id, None))

    def forget(self, taken: Sequence[tuple[int, list[str] | None]]) -> None:
        """Drop changes that are in the files now."""
        for item_id, stems in taken:
            if stems is None:
                self.gone.discard(item_id)
            elif self.lengths.pop(item_id, None) is not None:
                for stem in set(stems):
                    holders = self.postings[stem]
                    del holders[item_id]
                    if not holders:
                        del self.postings[stem]


class TantivyIndex:
    """An open index.

    Only the collection's writer thread calls `note`, and any thread `search`. All other methods belong to one
    maintenance thread.
    """

    def __init__(self, folder: Path) -> None:
        """Open the index in `folder`, or create one.  Blocks.  Raises IndexFailed."""
        self.folder = folder
        self._tail = _Tail()
        self._stems = Stems()
        with _guarded():
            folder.mkdir(parents=True, exist_ok=True)
            self._index = tantivy.Index(_schema(), path=str(folder))
            self._index.config_reader("manual")
            self._writer = self._index.writer(heap_size=_WRITER_BYTES, num_threads=1)
            self._refresh()

    @property
    def pending(self) -> int:
        """Number of changes that are not in the files yet."""
        return len(self._tail.queue)

    def size_bytes(self) -> int:
        with contextlib.suppress(FileNotFoundError):  # One that a merge has just replaced.
            return sum(path.stat().st_size for path in self.folder.iterdir())
        return 0

    def close(self) -> None:
        """Wait for running segment merges; blocks.  Uncommitted changes are lost, as in a crash."""
        with _guarded():
            self._writer.wait_merging_threads()

    # Following

    def note(self, rows: Iterable[Row], gone: Iterable[int]) -> None:
        """SegmentRecord rows added and ids removed in the database commit that just finished."""
        added = [(each.item_id, self._stems(_document(each))) for each in rows]
        with self._tail.lock:
            for item_id in gone:
                self._tail.remove(item_id)
            for item_id, stems in added:
                self._tail.add(item_id, stems)

    def ids(self) -> ItemIds:
        """Return the ids in the files, sorted."""
        with _guarded():
            found = self._searcher.search(tantivy.Query.all_query(), max(1, self._searcher.num_docs), count=False)
            values = self._items([address for _, address in found.hits])
        return np.sort(np.asarray(values, dtype=np.int64))

    def load(self, rows: Iterable[Row]) -> None:
        """Add items from before this index was opened.  They are in the files after the next `flush`."""
        with _guarded():
            for each in rows:
                self._put(each.item_id, self._stems(_document(each)))

    def drop(self, ids: Iterable[int]) -> None:
        """Remove ids that the database does not have."""
        with _guarded():
            for item_id in ids:
                self._writer.delete_documents_by_term("item", item_id)

    def flush(self) -> None:
        """Commit all noted and loaded changes to the files.  Raises IndexFailed."""
        with self._tail.lock:
            taken, self._tail.queue = self._tail.queue, []
        with _guarded():
            for item_id, stems in taken:
                if stems is None:
                    self._writer.delete_documents_by_term("item", item_id)
                else:
                    self._put(item_id, stems)
            self._writer.commit()
            self._refresh()
        # After the new searcher is in place, because searches read the tail first.
        with self._tail.lock:
            self._tail.forget(taken)

    def verify(self, checkpoint: Callable[[], None]) -> None:
        """Verify the checksum of each file.  Raises IndexFailed."""
        for path in sorted(self.folder.glob("*.*")):
            if path.suffix not in (".json", ".lock"):
                checkpoint()
                with contextlib.suppress(FileNotFoundError):  # A merge has replaced it.
                    _verify(path)

    # Searching

    def search(self, terms: Sequence[str], limit: int, allowed: ItemIds | None) -> Scored | None:
        """Return item ids and BM25 scores, best first, limited to `allowed` (sorted) if given.

        Returns None if the search would be too expensive here; the caller should use FTS5.  Raises IndexFailed.
        """
        written = " ".join(each for term in terms for each in (term, *spellings(term)))
        stems = list(dict.fromkeys(self._stems(written)))
        with self._tail.lock:
            fresh = {stem: dict(held) for stem in stems if (held := self._tail.postings.get(stem))}
            lengths = {item: self._tail.lengths[item] for held in fresh.values() for item in held}
            gone = set(self._tail.gone)
            waiting = len(self._tail.lengths)
        # Read after the tail: changes that have left the tail are in these files.
        searcher = self._searcher
        with _guarded():
            found = self._found(searcher, stems, limit, allowed, gone)
            if found is None:
                return None
            # Items in the tail may be in the files as well; count them once.
            found.update(dict.fromkeys(lengths, 0.0))
            for stem, held in fresh.items():
                idf = _idf(searcher.num_docs + waiting, searcher.doc_freq("words", stem) + len(held))
                for item, frequency in held.items():
                    norm = _K1 * (1 - _B + _B * lengths[item] / self._average)
                    found[item] += idf * frequency * (1 + _K1) / (frequency + norm)
        if allowed is not None and fresh:
            ids = np.fromiter(found, dtype=np.int64, count=len(found))
            found = {item: found[item] for item in ids[np.isin(ids, allowed)].tolist()}
        return best_first([pair for pair in found.items() if pair[0] not in gone], limit)

    def _found(
        self, searcher: tantivy.Searcher, stems: Sequence[str], limit: int, allowed: ItemIds | None, gone: set[int]
    ) -> dict[int, float] | None:
        schema = self._index.schema
        words = tantivy.Query.boolean_query(
            [(tantivy.Occur.Should, tantivy.Query.term_query(schema, "words", stem, "freq")) for stem in stems]
        )
        wanted = limit + min(len(gone), 1000)
        if allowed is not None and len(allowed) <= FEW:
            among = tantivy.Query.const_score_query(tantivy.Query.term_set_query(schema, "item", allowed.tolist()), 0.0)
            words = tantivy.Query.boolean_query([(tantivy.Occur.Must, words), (tantivy.Occur.Must, among)])
        elif allowed is not None:
            wanted *= 4
        while True:
            hits = searcher.search(words, wanted, count=False).hits
            items = self._items([address for _, address in hits], searcher)
            scores = [float(score) for score, _ in hits]
            if allowed is None or len(allowed) <= FEW:
                return dict(zip(items, scores, strict=True))
            kept = np.isin(np.asarray(items, dtype=np.int64), allowed, assume_unique=False)
            if int(kept.sum()) >= limit or len(hits) < wanted:
                return {item: score for item, score, keep in zip(items, scores, kept, strict=True) if keep}
            wanted *= 8
            if wanted > MAX_FOUND:
                return None

    def _items(self, addresses: list[tantivy.DocAddress], searcher: tantivy.Searcher | None = None) -> list[int]:
        return [int(value or 0) for value in (searcher or self._searcher).fast_field_values("item", addresses)]

    def _put(self, item_id: int, stems: Sequence[str]) -> None:
        # While the index is being filled, an item may be both noted and loaded.
        self._writer.delete_documents_by_term("item", item_id)
        document = tantivy.Document()
        document.add_integer("item", item_id)
        document.add_integer("length", len(stems))
        document.add_text("words", " ".join(stems))
        self._writer.add_document(document)

    def _refresh(self) -> None:
        self._index.reload()
        searcher = self._index.searcher()
        asked = {"average": {"avg": {"field": "length"}}}
        average = searcher.aggregate(tantivy.Query.all_query(), asked)["average"]["value"]
        self._searcher, self._average = searcher, max(1.0, float(average or 1.0))


def remove(folder: Path) -> None:
    """Remove a closed index."""
    if folder.is_dir():
        shutil.rmtree(folder, ignore_errors=True)
    else:
        folder.unlink(missing_ok=True)


def _document(each: Row) -> str:
    """Join all words into one field, with the title twice, as it is weighted in FTS5."""
    return " ".join([each.title] * round(TITLE_WEIGHT) + [each.heading, each.text])


def _schema() -> tantivy.Schema:
    builder = tantivy.SchemaBuilder()
    builder.add_integer_field("item", indexed=True, fast=True)
    builder.add_integer_field("length", fast=True)
    builder.add_text_field("words", tokenizer_name="whitespace", index_option="freq")
    return builder.build()


def _idf(count: int, holders: int) -> float:
    return math.log(1 + (count - holders + 0.5) / (holders + 0.5))


def _verify(path: Path) -> None:
    # Tantivy's file format: content, JSON footer with its CRC, length of the footer, magic number.
    data = path.read_bytes()
    magic, length = int.from_bytes(data[-4:], "little"), int.from_bytes(data[-8:-4], "little")
    try:
        if magic != _FOOTER_MAGIC or length > len(data) - 8:
            raise IndexFailed(f"{path.name} is truncated or has no footer")
        footer = json.loads(data[-8 - length : -8])
        crc = int(footer["crc"])
    except (ValueError, KeyError, TypeError) as error:
        raise IndexFailed(f"{path.name} has no checksum: {error}") from None
    if zlib.crc32(memoryview(data)[: -8 - length]) != crc:
        raise IndexFailed(f"{path.name} is corrupted (checksum mismatch)")


@contextlib.contextmanager
def _guarded() -> Iterator[None]:
    """Convert errors and panics of tantivy to IndexFailed."""
    try:
        yield
    except IndexFailed:
        raise
    except (ValueError, OSError, RuntimeError, KeyError) as error:
        raise IndexFailed(str(error) or type(error).__name__) from error
    except BaseException as error:
        # A Rust panic arrives as a BaseException whose class cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        raise IndexFailed(f"tantivy panicked: {error}") from None
