"""Collections of any size for benchmarks, written directly into the databases of `retrieve` and `knowledge`.

Texts are words drawn by Zipf's law, and vectors form clusters as those of texts do. Both are marked with the model in
use, so that a kernel started on them has nothing left to do. The services' own code creates the tables and words; only
the transaction per batch and the model are skipped.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import msgspec
import numpy as np

from services.knowledge import nodes
from services.knowledge.ingest import index
from services.knowledge.note_database import open_database as open_notes
from services.knowledge.notes.files import Stamp
from services.retrieve import vector_store
from services.retrieve.collection_schema import SCHEMA
from services.retrieve.index import lexical
from services.retrieve.index.lexical import Fts5, row_of
from services.retrieve.index.vectors import Matrix
from services.shared.models.measure import measure

DIMENSIONS = 384
VOCABULARY = 30_000
WORDS = 40
TOPICS = 256
_BLOCK = 10_000


def word(n: int) -> str:
    """Return the `n`th word, most frequent first; words are pronounceable, so that tokenizers treat them like text."""
    syllables = ("ba", "ne", "ki", "lo", "tu", "ra", "se", "mi", "do", "ju", "fa", "ve", "zi", "po", "gu", "wa")
    found = ""
    n += 16
    while n:
        n, rest = divmod(n, 16)
        found += syllables[rest]
    return found


class Corpus:
    """Texts and vectors of `count` sections."""

    def __init__(self, count: int, seed: int = 0) -> None:
        self.count = count
        self._dice = np.random.default_rng(seed)
        chances = 1 / (np.arange(VOCABULARY) + 10)
        self._cumulated = np.cumsum(chances / chances.sum())
        self._words = np.array([word(n) for n in range(VOCABULARY)])
        self._topics = self._dice.standard_normal((TOPICS, DIMENSIONS)).astype(np.float32)

    def blocks(self) -> Iterator[tuple[list[str], Matrix]]:
        """Yield texts and unit vectors, a few thousand at a time."""
        for start in range(0, self.count, _BLOCK):
            size = min(_BLOCK, self.count - start)
            drawn = np.searchsorted(self._cumulated, self._dice.random((size, WORDS)))
            texts = [" ".join(row) for row in self._words[np.minimum(drawn, VOCABULARY - 1)]]
            topics = self._topics[self._dice.integers(0, TOPICS, size)]
            vectors = topics + 1.2 * self._dice.standard_normal((size, DIMENSIONS)).astype(np.float32)
            yield texts, vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def queries(self, count: int, words: int = 4) -> list[str]:
        """Draw queries from the same distribution as the texts: some words occur in a tenth of all sections."""
        drawn = np.searchsorted(self._cumulated, np.random.default_rng(7).random((count, words)))
        return [" ".join(row) for row in self._words[np.minimum(drawn, VOCABULARY - 1)]]


def open_database(path: Path) -> apsw.Connection:
    """Open a separate connection to a collection's database that no service has open."""
    db = apsw.Connection(str(path))
    db.pragma("journal_mode", "wal")
    SCHEMA.apply(db)
    return db


def fill_retrieve(
    path: Path, corpus: Corpus, sections: int, fingerprint: str, roots: tuple[str, list[str]], *, vectors: bool = True
) -> None:
    """Create the database of a collection at `path`.

    Args:
        sections: sections per note.
        vectors: whether pieces have vectors.
        roots: the root, and the notes' paths below it.
    """
    root, paths = roots
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(open_database(path)) as db:
        db.execute("PRAGMA synchronous=OFF")
        db.execute("BEGIN")
        vector_store.adopt_model(db, fingerprint, DIMENSIONS)
        item_id = 0
        for texts, matrix in corpus.blocks():
            halves = matrix.astype("<f2")
            items, words = [], []
            for text in texts:
                group, position = divmod(item_id, sections)
                item_id += 1
                if position == 0:
                    name = f"Note {group}"
                    metadata = {"root": root, "path": paths[group], "tags": [], "date": 1.7e9 + group}
                    db.execute(
                        "INSERT INTO groups (group_id, id, title, metadata) VALUES (?, ?, ?, ?)",
                        (group + 1, f"note-{group}", name, msgspec.json.encode(metadata)),
                    )
                mark = hashlib.sha256(f"{item_id}".encode()).digest()
                lines = msgspec.json.encode({"first": 10 * position + 1, "last": 10 * position + 9})
                key, heading = mark.hex()[:24], f"Part {position}"
                items.append((item_id, group + 1, key, position, heading, text, lines, mark, int(vectors)))
                words.append(row_of(item_id, f"Note {group}", f"Part {position}", text))
            db.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", items)
            if vectors:
                db.executemany(
                    "INSERT INTO vectors VALUES (?, 1, ?)",
                    ((each[0], vector.tobytes()) for each, vector in zip(items, halves, strict=True)),
                )
            Fts5(db).add(words)
        db.execute("DELETE FROM outbox")
        db.execute("COMMIT")
        assert lexical.is_current(db)


def fill_knowledge(path: Path, root: str, paths: list[str]) -> None:
    """Create the database of notes at `path`, and short files in place of the notes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    for n, below in enumerate(paths):
        file = os.path.join(root, below)
        os.makedirs(os.path.dirname(file), exist_ok=True)
        Path(file).write_text(f"# Note {n}\n")
        rows.append((f"note-{n}", root, below, f"hash {n}", 0, *Stamp.of(os.stat(file)), f"Note {n}", 1.7e9 + n))
    with closing(open_notes(path)) as database, database.transaction() as db:
        nodes.set_setting(db, index.VERSION, index.version(measure({})))
        db.executemany(
            "INSERT INTO node (id, root, path, hash, lead, size, mtime_ns, ctime_ns, inode, title, date) "
            f"VALUES ({', '.join('?' * 11)})",
            rows,
        )
        db.execute("DELETE FROM graph_outbox")


def notes_of(count: int, sections: int) -> list[str]:
    """Return paths of notes for this many sections."""
    return [f"area-{n % 100}/note-{n}.md" for n in range(-(-count // sections))]


__all__ = ["DIMENSIONS", "Corpus", "fill_knowledge", "fill_retrieve", "notes_of", "word"]
