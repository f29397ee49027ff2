"""Word search in large collections: tantivy, as `retrieve` uses it, compared with FTS5 on the same pieces in the same
run.

    scripts/bench lexical [--sizes 60000,1000000] [--queries 50]

Each word of a broad query is in a tenth to a half of all pieces; a usual query has four words distributed as in texts.
`found` is the time from a write's return to the first answer with it, without a commit in between; `commit` is the time
of a commit of a note with ten pieces.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import apsw

from services.retrieve import item_store
from services.retrieve.index.lexical import Fts5, row_of, rows
from services.retrieve.index.tantivy_index import TantivyIndex
from services.retrieve.index.terms import query_terms
from tests.bench.parts.collections import Corpus, fill_retrieve, notes_of, open_database, word

LIMIT = 50


def p50_ms(search: Callable[[str], object], queries: Sequence[str]) -> float:
    times = []
    for query in queries:
        began = time.perf_counter()
        search(query)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


def fill(large: TantivyIndex, db: apsw.Connection) -> float:
    began = time.perf_counter()
    ids = item_store.item_ids(db).tolist()
    for start in range(0, len(ids), 500):
        large.load(rows(db, ids[start : start + 500]))
        if start % 20_000 == 0:
            large.flush()
    large.flush()
    return time.perf_counter() - began


def measure(folder: Path, size: int, count: int) -> None:
    corpus = Corpus(size)
    began = time.perf_counter()
    fill_retrieve(folder / "notes.db", corpus, 10, "none", ("/", notes_of(size, 10)), vectors=False)
    made_s = time.perf_counter() - began
    broad = [" ".join(word(n + step) for step in range(0, 30, 3)) for n in range(min(count, 20))]
    usual = corpus.queries(count)
    with closing(open_database(folder / "notes.db")) as db:
        fts5 = Fts5(db)
        large = TantivyIndex(folder / "words")
        filled_s = fill(large, db)

        def tantivy(query: str) -> object:
            return large.search(query_terms(query), LIMIT, None)

        figures = []
        for queries in (broad, usual):
            tantivy(queries[0])
            ours = p50_ms(tantivy, queries)
            theirs = p50_ms(lambda query: fts5.search(query, LIMIT, None), queries)
            figures.append(f"{ours:8.2f} {theirs:8.2f} {theirs / ours:6.1f}")
        found, commits = [], []
        for n in range(20):
            some = [row_of(size + 10 * n + part, "New", "", f"zebra{n} {word(part)}") for part in range(1, 11)]
            began = time.perf_counter()
            large.note(some, [])
            hits = large.search([f"zebra{n}"], LIMIT, None)
            found.append(time.perf_counter() - began)
            assert hits is not None
            assert len(hits) == 10
            began = time.perf_counter()
            large.flush()
            commits.append(time.perf_counter() - began)
        print(
            f"{size:>8} | {figures[0]} | {figures[1]} | {statistics.median(found) * 1000:5.2f} "
            f"{statistics.median(commits) * 1000:7.1f} | filled in {filled_s:.0f} s, "
            f"{large.size_bytes() / 2**20:.0f} MiB"
            f" (the database with FTS5 in {made_s:.0f} s, {(folder / 'notes.db').stat().st_size / 2**20:.0f} MiB)",
            flush=True,
        )
        large.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="60000,1000000")
    parser.add_argument("--queries", type=int, default=50)
    given = parser.parse_args()
    print("          |  broad: tantivy, FTS5 ms, ratio |  usual: ms, ms, ratio  | found, commit ms")
    for size in map(int, given.sizes.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            measure(Path(folder), size, given.queries)


if __name__ == "__main__":
    main()
