"""The word index of large collections: tantivy, beside the index of truth, for what that one answers too slowly.

It is a copy: a write is noted in memory at once (the *tail*, searched with the same scores as the rest) and committed
every half second; what a crash took is the difference of two sets of ids, since an id is never used twice and never
changes its words. Damaged files are noticed by their checksums, and the index is rebuilt. Both indexes are given the
same terms in the same stems, so that both find the same.
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

from linckia.services.retrieve.lexical import TITLE_WEIGHT, TOKENIZER, Row
from linckia.services.retrieve.terms import spellings
from linckia.services.retrieve.vectors import ItemIds, Scored, best_first

VERSION = 1
"""Of the fields below and of their content; part of the folder's name."""

FEW = 20_000
"""Admitted items up to which a filter is part of the query; more are filtered from what it finds."""

MOST_FOUND = 50_000
"""Hits that a filter is applied to; where more would be needed, this index has no answer."""

_WRITER_BYTES = 32 * 1024 * 1024
_K1, _B = 1.2, 0.75
"""Of BM25, as tantivy and FTS5 have them."""

_FOOTER_MAGIC = 1337


class Lost(Exception):
    """The files are damaged, or cannot be written; the index is to be rebuilt."""


class Stems:
    """Terms to the stems that FTS5 makes of them."""

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
    """What the files do not have yet: new items, and ids that went.  `lock` is held to look and to change."""

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
        """The files have it now."""
        for item_id, stems in taken:
            if stems is None:
                self.gone.discard(item_id)
            elif self.lengths.pop(item_id, None) is not None:
                for stem in set(stems):
                    holders = self.postings[stem]
                    del holders[item_id]
                    if not holders:
                        del self.postings[stem]


class LargeWords:
    """An open index.  `note` is the collection's writer's, `search` any thread's, all else one tending thread's."""

    def __init__(self, folder: Path) -> None:
        """Open what is in `folder`, or begin.  Blocks.  Raises Lost."""
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
        """Changes that are not in the files yet."""
        return len(self._tail.queue)

    def size_bytes(self) -> int:
        with contextlib.suppress(FileNotFoundError):  # One that a merge has just replaced.
            return sum(path.stat().st_size for path in self.folder.iterdir())
        return 0

    def close(self) -> None:
        """Blocks while a merge of segments goes on; what was noted and not committed is lost, as in a crash."""
        with _guarded():
            self._writer.wait_merging_threads()

    # Following

    def note(self, rows: Iterable[Row], gone: Iterable[int]) -> None:
        """Rows that were added and ids that went, committed in the database a moment ago."""
        added = [(each.item_id, self._stems(_document(each))) for each in rows]
        with self._tail.lock:
            for item_id in gone:
                self._tail.remove(item_id)
            for item_id, stems in added:
                self._tail.add(item_id, stems)

    def ids(self) -> ItemIds:
        """Ids in the files, sorted."""
        with _guarded():
            found = self._searcher.search(tantivy.Query.all_query(), max(1, self._searcher.num_docs), count=False)
            values = self._items([address for _, address in found.hits])
        return np.sort(np.asarray(values, dtype=np.int64))

    def load(self, rows: Iterable[Row]) -> None:
        """Add items of before this index was opened; in the files after the next `flush`."""
        with _guarded():
            for each in rows:
                self._put(each.item_id, self._stems(_document(each)))

    def drop(self, ids: Iterable[int]) -> None:
        """Take out ids that the database does not have."""
        with _guarded():
            for item_id in ids:
                self._writer.delete_documents_by_term("item", item_id)

    def flush(self) -> None:
        """Bring the files up to date with what was noted and loaded.  Raises Lost."""
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
        # After the searcher that has it was put in place: a search looks at the tail first.
        with self._tail.lock:
            self._tail.forget(taken)

    def verify(self, checkpoint: Callable[[], None]) -> None:
        """Compare each file with its checksum.  Raises Lost."""
        for path in sorted(self.folder.glob("*.*")):
            if path.suffix not in (".json", ".lock"):
                checkpoint()
                with contextlib.suppress(FileNotFoundError):  # A merge has replaced it.
                    _verify(path)

    # Searching

    def search(self, terms: Sequence[str], limit: int, allowed: ItemIds | None) -> Scored | None:
        """Item ids (among `allowed`, sorted, where given) and BM25 scores, best first.

        None where this index cannot say within reason, and FTS5 is to be asked.  Raises Lost.
        """
        written = " ".join(each for term in terms for each in (term, *spellings(term)))
        stems = list(dict.fromkeys(self._stems(written)))
        with self._tail.lock:
            fresh = {stem: dict(held) for stem in stems if (held := self._tail.postings.get(stem))}
            lengths = {item: self._tail.lengths[item] for held in fresh.values() for item in held}
            gone = set(self._tail.gone)
            waiting = len(self._tail.lengths)
        # Read after the tail: what has left the tail by then is in these files.
        searcher = self._searcher
        with _guarded():
            found = self._found(searcher, stems, limit, allowed, gone)
            if found is None:
                return None
            # What the tail holds may be in these files as well; it counts once.
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
            if wanted > MOST_FOUND:
                return None

    def _items(self, addresses: list[tantivy.DocAddress], searcher: tantivy.Searcher | None = None) -> list[int]:
        return [int(value or 0) for value in (searcher or self._searcher).fast_field_values("item", addresses)]

    def _put(self, item_id: int, stems: Sequence[str]) -> None:
        # While the index is filled, the same item may be both noted and loaded.
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
    """Remove an index that is closed."""
    if folder.is_dir():
        shutil.rmtree(folder, ignore_errors=True)
    else:
        folder.unlink(missing_ok=True)


def _document(each: Row) -> str:
    """One field of all words: FTS5 counts a word of the title twice as well."""
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
    # Tantivy's own footer: the content, then JSON with its CRC, the length of that, and a number that marks it.
    data = path.read_bytes()
    magic, length = int.from_bytes(data[-4:], "little"), int.from_bytes(data[-8:-4], "little")
    try:
        if magic != _FOOTER_MAGIC or length > len(data) - 8:
            raise Lost(f"{path.name} has no end")
        footer = json.loads(data[-8 - length : -8])
        crc = int(footer["crc"])
    except (ValueError, KeyError, TypeError) as error:
        raise Lost(f"{path.name} has no checksum: {error}") from None
    if zlib.crc32(memoryview(data)[: -8 - length]) != crc:
        raise Lost(f"{path.name} is not what was written")


@contextlib.contextmanager
def _guarded() -> Iterator[None]:
    """Whatever tantivy raises, or panics with, as Lost."""
    try:
        yield
    except Lost:
        raise
    except (ValueError, OSError, RuntimeError, KeyError) as error:
        raise Lost(str(error) or type(error).__name__) from error
    except BaseException as error:
        # A panic in Rust comes as an exception that is no Exception; there is no name to import it by.
        if type(error).__name__ != "PanicException":
            raise
        raise Lost(f"it panicked: {error}") from None
