"""The index of `retrieve` at several sizes, compared with FAISS's exact index (IndexFlatIP) in the same run.

Measured are the time to build it from the database and to reopen it in a new process, the time of one query, the recall
of the ten nearest, and memory.

    taskset -c 1 python -m tests.bench.vectors [--sizes 1000,10000,100000] [--dimensions 384] [--queries 200]

Vectors are clustered, and some dimensions have larger values, as in those of a model. One thread searches.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import faiss
import msgspec
import numpy as np
import trio

from services.retrieve import vector_store
from services.retrieve.index.vectors import Matrix
from services.retrieve.local_collection import LocalCollection
from tests.bench.parts.collections import open_database

_CHUNK = 50_000


class Opened(msgspec.Struct, frozen=True):
    """The measurements of a new process."""

    load_s: float
    first_search_ms: float
    anonymous_mb: float
    resident_mb: float


def clustered(count: int, dimensions: int, queries: int) -> tuple[Matrix, Matrix]:
    """Return unit vectors in clusters of about two hundred, and queries near some of them."""
    rng = np.random.default_rng(count)
    scale = np.exp(0.5 * rng.standard_normal(dimensions)).astype(np.float32)
    centres = rng.standard_normal((max(8, count // 200), dimensions), dtype=np.float32)
    rows = np.empty((count, dimensions), dtype=np.float32)
    for start in range(0, count, _CHUNK):
        part = rows[start : start + _CHUNK]
        part[:] = centres[rng.integers(0, len(centres), len(part))]
        part += 0.7 * rng.standard_normal(part.shape, dtype=np.float32)
        part *= scale
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    asked = rows[rng.integers(0, count, queries)]
    asked = asked + float(0.3 / np.sqrt(dimensions)) * rng.standard_normal(asked.shape, dtype=np.float32)
    return rows, asked / np.linalg.norm(asked, axis=1, keepdims=True)


def fill(folder: Path, rows: Matrix) -> None:
    """Create a collection's database with these vectors and no text."""
    db = open_database(folder / "bench.db")
    db.execute("BEGIN")
    vector_store.adopt_model(db, "bench", rows.shape[1])
    model = vector_store.current_model(db)
    assert model is not None
    for start in range(0, len(rows), _CHUNK):
        halves = rows[start : start + _CHUNK].astype("<f2")
        db.executemany(
            "INSERT INTO vectors (item_id, model_id, vector) VALUES (?, ?, ?)",
            ((start + place + 1, model.model_id, row.tobytes()) for place, row in enumerate(halves)),
        )
    db.execute("COMMIT")
    db.close()


async def opened(folder: Path) -> LocalCollection:
    """Open the collection as the service does."""
    collection = LocalCollection("bench", folder, trio.CapacityLimiter(1))
    await collection.load()
    return collection


async def measure_opening(folder: Path) -> Opened:
    """Measure opening in a separate process."""
    start = time.perf_counter()
    vectors = (await opened(folder)).vectors
    load_s = time.perf_counter() - start
    assert vectors.model is not None
    asked = np.random.default_rng(0).standard_normal(vectors.model.dimensions).astype(np.float32)
    start = time.perf_counter()
    vectors.loaded().nearest(asked / np.linalg.norm(asked), 10, None)
    first_ms = 1e3 * (time.perf_counter() - start)
    report = Path("/proc/self/status").read_text()  # noqa: ASYNC240  # nothing else runs
    status = dict(line.split(":", 1) for line in report.splitlines())
    return Opened(load_s, first_ms, int(status["RssAnon"].split()[0]) / 1024, int(status["VmRSS"].split()[0]) / 1024)


def times(search: Callable[[Matrix], set[int]], asked: Matrix) -> tuple[list[set[int]], float, float]:
    """Return the results, and p50 and p99 in ms."""
    search(asked[0])
    found, took = [], []
    for query in asked:
        start = time.perf_counter()
        found.append(search(query))
        took.append(1e3 * (time.perf_counter() - start))
    return found, float(np.median(took)), float(np.percentile(took, 99))


async def bench(count: int, dimensions: int, queries: int) -> None:
    """Print the table's line for one size."""
    rows, asked = clustered(count, dimensions, queries)
    folder = Path(tempfile.mkdtemp(prefix="linckia-bench-"))
    try:
        fill(folder, rows)
        start, cpu = time.perf_counter(), time.process_time()
        collection = await opened(folder)
        vectors = collection.vectors
        await vectors.write_due_segment(collection)
        built_s, built_cpu_s = time.perf_counter() - start, time.process_time() - cpu
        ours, p50, p99 = times(lambda query: {i - 1 for i, _ in vectors.loaded().nearest(query, 10, None)}, asked)
        admitted = np.arange(1, count + 1, 50)
        _, filtered_p50, _ = times(lambda query: {i for i, _ in vectors.loaded().nearest(query, 10, admitted)}, asked)
        peer = faiss.IndexFlatIP(dimensions)
        start = time.perf_counter()
        peer.add(rows)
        peer_built_s = time.perf_counter() - start
        exact, peer_p50, peer_p99 = times(lambda query: set(peer.search(query[None], 10)[1][0].tolist()), asked)
        recall = sum(len(one & other) for one, other in zip(ours, exact, strict=True)) / (10 * queries)
        again = msgspec.json.decode(
            subprocess.run(  # noqa: ASYNC221  # nothing else runs
                [sys.executable, "-m", "tests.bench.vectors", "--open", str(folder)], stdout=subprocess.PIPE, check=True
            ).stdout,
            type=Opened,
        )
        print(
            f"{count:>9,} {vectors.kind:>12} {built_s:8.2f} {built_cpu_s:8.2f} {p50:8.3f} {p99:8.3f} "
            f"{filtered_p50:8.3f} {recall:7.3f} {1e3 * again.load_s:9.0f} {again.first_search_ms:8.1f} "
            f"{again.anonymous_mb:8.0f} {again.resident_mb:8.0f} | {peer_built_s:6.2f} {peer_p50:8.3f} "
            f"{peer_p99:8.3f} | {peer_p50 / p50:6.1f}",
            flush=True,
        )
    finally:
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1000,10000,100000")
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    faiss.omp_set_num_threads(1)
    if given.open:
        sys.stdout.buffer.write(msgspec.json.encode(trio.run(measure_opening, given.open)))
        return
    print(
        "  vectors         kind  build s    CPU s   p50 ms   p99 ms  2 % ms  recall  restart ms first ms  anon MB   "
        "RSS MB | flat s   p50 ms   p99 ms |  ratio"
    )
    for size in given.sizes.split(","):
        trio.run(bench, int(size), given.dimensions, given.queries)


if __name__ == "__main__":
    main()
