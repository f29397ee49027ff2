"""Both stores of collections with the same data in the same run: files of this machine, and a PostgreSQL server.

    scripts/bench stores [--count 1000000] [--stores local,hnsw,binary] [--writers 8] [--seconds 10]

Each group has one piece of twelve words and a vector of 384 numbers, in clusters as a model makes them. Measured are
the time to put them all (a thousand at a time) and to build the index, searches by vector and by words, the recall of
the ten nearest with no filter and with one that admits a thousandth, memory, the time from a restart to the first
answer, and writes of several writers at once. The server is started for the run on this machine, with its data on the
same disk; a write is confirmed once it is on disk in both.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import trio

from proto.ops.retrieve import Filter, Group
from services.retrieve.collection import Collection
from services.retrieve.engine import Engine, LocalEngine
from services.retrieve.index.vectors import Matrix
from services.retrieve.item_store import ItemWithVector
from services.retrieve.open_collections import RetrieveSettings
from services.retrieve.postgres.engine import PostgresEngine
from services.retrieve.postgres.server import Server
from services.runtime.database import Kind
from tests.bench.vectors import clustered
from tests.postgres import PostgresServer, postgres
from tests.store.rig import ANY_NAME, Keeper

DIMENSIONS = 384
BATCH = 1000
QUERIES = 500
SELECTED = 1000
"""One group in so many passes the filter."""

SERVER = {
    "shared_buffers": "4GB", "max_wal_size": "16GB", "effective_cache_size": "16GB", "maintenance_work_mem": "1GB",
    "max_parallel_maintenance_workers": "2", "random_page_cost": "1.1",
}  # fmt: skip


class Words:
    """Words as a text has them: few common ones, many rare ones (Zipf)."""

    def __init__(self, count: int = 50_000) -> None:
        self._words = [f"w{n}" for n in range(count)]
        weights = 1 / np.arange(1, count + 1)
        self._cumulative = np.cumsum(weights / weights.sum()).tolist()

    def text(self, dice: random.Random, length: int) -> str:
        return " ".join(dice.choices(self._words, cum_weights=self._cumulative, k=length))


def groups(start: int, rows: Matrix, words: Words) -> list[Group]:
    dice = random.Random(start)
    made = []
    for place, row in enumerate(rows.astype("<f2")):
        number = start + place
        item = ItemWithVector(key="0", text=words.text(dice, 12), vector=row.tobytes())
        made.append(Group(id=f"g{number}", items=[item], metadata={"part": number % SELECTED}))
    return made


async def measure(
    name: str, engine: Callable[[], Engine], rows: Matrix, queries: Matrix, arguments: argparse.Namespace,
    memory: Callable[[], float],
) -> dict[str, str]:  # fmt: skip
    """Fill one store, and measure it."""
    words = Words()
    figures: dict[str, str] = {}
    before_mb = memory()
    first = engine()
    collection = await first.open("bench", lambda: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(collection.maintain, Keeper())
        await collection.leads.wait()
        await collection.write(lambda store: store.adopt_model(f"given:{DIMENSIONS}", DIMENSIONS))
        await collection.adopt(f"given:{DIMENSIONS}", DIMENSIONS)
        await collection.loaded.wait()
        began = time.perf_counter()
        for start in range(0, len(rows), BATCH):
            await collection.put(groups(start, rows[start : start + BATCH], words))
            if start % 100_000 == 0:
                print(f"  {name}: {start:,} put after {time.perf_counter() - began:.0f} s", flush=True)
        put_s = time.perf_counter() - began
        figures["put"] = f"{put_s:.0f} s, {len(rows) / put_s:,.0f}/s"
        while not await _built(collection, len(rows)):  # noqa: ASYNC110  # nobody is told
            await trio.sleep(1)
        figures["put and index"] = f"{time.perf_counter() - began:.0f} s"
        nursery.cancel_scope.cancel()
    await trio.to_thread.run_sync(collection.close)
    await trio.to_thread.run_sync(first.close)

    began = time.perf_counter()
    second = engine()
    collection = await second.open("bench", lambda: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(collection.maintain, Keeper())
        await collection.until_loaded()
        await _nearest(collection, queries[0], ())
        figures["restart to first answer"] = f"{time.perf_counter() - began:.2f} s"
        exact = _exact(rows, queries)
        for label, filters in (("vectors", ()), ("vectors, filter 0.1 %", [Filter(field="part", any_of=[7])])):
            truth = exact if not filters else _exact(rows, queries, 7)
            for query in queries[:50]:
                await _nearest(collection, query, filters)
            took, recall = [], []
            for query, least in zip(queries, truth, strict=True):
                started = time.perf_counter()
                found = await _nearest(collection, query, filters)
                took.append(time.perf_counter() - started)
                recall.append(float(np.mean([score >= least - 5e-4 for score in found])) if len(found) == 10 else 0.0)
            figures[label] = f"{_quantiles(took)}, recall@10 {np.mean(recall):.3f}"
        dice = random.Random(7)
        asked = [words.text(dice, 4) for _ in range(QUERIES)]
        figures["words, 4 of a query"] = await _timed(
            [lambda text=text: collection.find_words(text, 50, ()) for text in asked]  # type: ignore[misc]
        )
        figures["memory"] = f"{memory() - before_mb:,.0f} MB"
        figures["on disk"] = f"{(await collection.status()).size_bytes / 1e6:,.0f} MB"
        figures[f"{arguments.writers} writers, 10 groups each"] = await _written(collection, rows, words, arguments)
        nursery.cancel_scope.cancel()
    await trio.to_thread.run_sync(collection.close)
    await trio.to_thread.run_sync(second.close)
    return figures


async def _built(collection: Collection, count: int) -> bool:
    status = await collection.status()
    return status.vectors == count and status.index in ("hnsw", "binary", "rabitq", "rabitq+flat")


async def _nearest(collection: Collection, query: Matrix, filters: Sequence[Filter]) -> list[float]:
    index = collection.searched_vectors()
    found = await collection.read(lambda store: store.nearest(index, query, 10, filters))
    return [score for _, score in found]


def _exact(rows: Matrix, queries: Matrix, part: int | None = None) -> Matrix:
    """Return the cosine of the tenth nearest of each query."""
    halves = rows if part is None else rows[part::SELECTED]
    tenth = np.full((len(queries), 10), -2, dtype=np.float32)
    for start in range(0, len(halves), 50_000):
        scores = queries @ halves[start : start + 50_000].T
        best = np.partition(scores, max(0, scores.shape[1] - 10), axis=1)[:, -10:]
        tenth = np.partition(np.concatenate([tenth, best], axis=1), best.shape[1], axis=1)[:, -10:]
    least: Matrix = np.sort(tenth, axis=1)[:, 0]
    return least


async def _timed(calls: Sequence[Callable[[], Awaitable[object]]]) -> str:
    took = []
    for call in calls:
        started = time.perf_counter()
        await call()
        took.append(time.perf_counter() - started)
    return _quantiles(took)


def _quantiles(took: Sequence[float]) -> str:
    p50, p99 = np.quantile(took, (0.5, 0.99)) * 1000
    return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms"


async def _written(collection: Collection, rows: Matrix, words: Words, arguments: argparse.Namespace) -> str:
    done = [0]
    until = trio.current_time() + arguments.seconds

    async def write(writer: int) -> None:
        dice = np.random.default_rng(writer)
        while trio.current_time() < until:
            start = int(dice.integers(0, len(rows) - 10))
            await collection.put(groups(start, rows[start : start + 10], words))
            done[0] += 10

    async with trio.open_nursery() as nursery:
        for writer in range(arguments.writers):
            nursery.start_soon(write, writer)
    return f"{done[0] / arguments.seconds:,.0f} groups/s"


def own_memory_mb() -> float:
    """Anonymous memory of this process."""
    info = psutil.Process().memory_info()
    return float(info.rss - info.shared) / 1e6


def server_memory_mb(server: PostgresServer) -> float:
    """Memory of the server's processes, with the cache that they share counted once."""
    processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    return sum(process.memory_full_info().pss for process in processes) / 1e6


def _files(folder: Path, settings: RetrieveSettings) -> Engine:
    return LocalEngine(folder, settings.readers, settings, settings.large_words, ANY_NAME, Kind.SOURCE)


def _on_server(server: PostgresServer, kind: str, settings: RetrieveSettings) -> Engine:
    return PostgresEngine(
        Server(server.dsn), "", "here", ANY_NAME, settings.readers, settings.flat_vectors, kind,
        settings.server_search, settings.server_build_memory,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench stores")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--stores", default="local,hnsw,binary")
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    settings = RetrieveSettings()
    rows, queries = clustered(arguments.count, DIMENSIONS, QUERIES)
    # What both stores keep.
    rows = rows.astype(np.float16).astype(np.float32)
    print(f"{arguments.count:,} groups, {DIMENSIONS} dimensions", flush=True)
    results: dict[str, dict[str, str]] = {}
    engine: Callable[[], Engine]
    memory: Callable[[], float]
    for store in arguments.stores.split(","):
        with ExitStack() as stack:
            if store == "local":
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="linckia-stores-"))
                engine, memory = partial(_files, Path(folder), settings), own_memory_mb
            else:
                server = stack.enter_context(postgres(SERVER))
                engine, memory = partial(_on_server, server, store, settings), partial(server_memory_mb, server)
            results[store] = trio.run(measure, store, engine, rows, queries, arguments, memory)
            for label, figure in results[store].items():
                print(f"  {store}: {label}: {figure}", flush=True)
    print()
    for label in next(iter(results.values())):
        print(f"{label:32} " + " | ".join(f"{name} {found.get(label, '')}" for name, found in results.items()))


if __name__ == "__main__":
    main()
