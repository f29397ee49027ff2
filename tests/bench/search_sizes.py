"""A whole search, from an MCP client through notes, words, vectors and fusion, at growing numbers of sections.

    scripts/bench search_sizes [--sizes 1000,10000,100000] [--queries 300]

For each size a data directory is made (see `_collections`), a real kernel is started over it, and `search_documents`
is called over HTTP, one query after the other, none twice.  Printed are the time from the start of the kernel to the
first whole answer, the first answer's own time, p50 and p99 of the rest, and the memory of `retrieve`.  The peer is
what one writes in one process: the same model, FTS5's BM25, and FAISS's exact flat index, with the same fusion.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from proto.ops.embed import TextKind
from services.embed.main import Loaded, Settings, load
from services.retrieve import fusion
from services.retrieve.lexical import Fts5
from tests.bench._collections import DIMENSIONS, Corpus, fill_knowledge, fill_retrieve, notes_of
from tests.bench._wire import Http
from tests.system.running import RunningKernel, running

CANDIDATES = 50


def body(number: int, query: str) -> bytes:
    params = {"name": "search_documents", "arguments": {"query": query}}
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}).encode()


def percentile(times: list[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * share))] * 1000


def whole(kernel: RunningKernel, query: str) -> dict[str, Any] | None:
    """The answer, if nothing is missing from it."""
    answer: dict[str, Any] = kernel.call("search_documents", {"query": query}, timeout_s=60)
    complete = answer["metadata"]["stages"] == ["lexical", "vector"] and not answer["metadata"]["degraded"]
    return answer if complete else None


def wait_for_tantivy(kernel: RunningKernel, size: int) -> float:
    began = time.monotonic()
    while size >= 50_000 and kernel.call("retrieve_status", {"collection": "notes"})["words"] != "tantivy":
        time.sleep(0.1)
    return time.monotonic() - began


def measure(folder: Path, size: int, queries: list[str], model: Loaded) -> None:
    sections = 10 if size <= 100_000 else 50
    root, data = folder / "notes", folder / "data"
    root.mkdir()
    paths = notes_of(size, sections)
    began = time.monotonic()
    corpus = Corpus(size)
    database = data / "services" / "retrieve" / "notes.db"
    fill_knowledge(data / "services" / "knowledge" / "notes.db", str(root), paths)
    fill_retrieve(database, corpus, sections, model.fingerprint, (str(root), paths))
    made_s = time.monotonic() - began
    options = ("--http", "127.0.0.1:0")
    with running(data, [root], options=options) as kernel:
        # Once: segments and the large word index are derived, and kept.
        while whole(kernel, queries[0]) is None:
            time.sleep(0.2)
        derived_s = wait_for_tantivy(kernel, size)
    began = time.monotonic()
    with running(data, [root], options=options, all_ready=False) as kernel:
        waited = 0
        while True:
            asked = time.perf_counter()
            if whole(kernel, queries[1 + waited % 5]) is not None:
                break
            waited += 1
            time.sleep(0.02)
        first_ms = (time.perf_counter() - asked) * 1000
        restart_s = time.monotonic() - began
        kernel.wait_ready()
        wait_for_tantivy(kernel, size)
        port = int(kernel.status()["http_url"].rsplit(":", 1)[1].split("/")[0])
        client = Http(port)
        times = []
        for number, query in enumerate(queries[10:]):
            request = body(number, query)
            start = time.perf_counter()
            answer = client.ask(request)
            times.append(time.perf_counter() - start)
            if b'"isError":true' in answer or b"note-" not in answer:
                raise AssertionError(answer[:500])
        client.close()
        service = kernel.service("retrieve")
        notes = kernel.service("knowledge")
        status = kernel.call("retrieve_status", {"collection": "notes"})
    peer = peer_ms(database, queries[10:40], model)
    p50 = percentile(times, 0.5)
    print(
        f"{size:>9} {restart_s:>9.2f} {first_ms:>8.1f} {p50:>8.2f} {percentile(times, 0.99):>8.2f} "
        f"{service['pss_bytes'] / 2**20:>9.0f} {service['rss_bytes'] / 2**20:>8.0f} {notes['pss_bytes'] / 2**20:>8.0f} "
        f"| {peer:>8.2f} {peer / p50:>6.2f} | {status['words']}, {status['index']}, "
        f"{status['size_bytes'] / 2**20:.0f} MiB, made in {made_s:.0f} s, derived in {derived_s:.0f} s",
        flush=True,
    )


def peer_ms(database: Path, queries: list[str], model: Loaded) -> float:
    """p50 of the same search in one process."""
    with closing(sqlite3.connect(database)) as db:
        rows = db.execute("SELECT item_id, vector FROM vectors").fetchall()
        vectors = np.frombuffer(b"".join(row[1] for row in rows), dtype="<f2").reshape(len(rows), DIMENSIONS)
        index = faiss.IndexFlatIP(DIMENSIONS)
        index.add(vectors.astype(np.float32))
        ids = [row[0] for row in rows]
        times = []
        for query in queries:
            start = time.perf_counter()
            vector = model.encoder.compute(model.tokenizer.encode([query], TextKind.QUERY).ids)
            scores, places = index.search(vector, CANDIDATES)
            cosines = {ids[place]: float(score) for place, score in zip(places[0], scores[0], strict=True)}
            fused = fusion.weighted(Fts5(db).search(query, CANDIDATES, None), cosines, 0.65)
            best = sorted(fused, key=lambda item: -fused[item])[:20]
            marks = ", ".join("?" * len(best))
            db.execute(f"SELECT text, title FROM items JOIN groups USING (group_id) WHERE item_id IN ({marks})", best)
            times.append(time.perf_counter() - start)
    return percentile(times, 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1000,10000,100000")
    parser.add_argument("--queries", type=int, default=300)
    given = parser.parse_args()
    model = load(Settings(), "cpu")
    faiss.omp_set_num_threads(1)
    print(
        " sections restart s first ms   p50 ms   p99 ms  PSS MiB  RSS MiB    notes |  peer ms  ratio"
        " (retrieve's memory; notes: that of knowledge)"
    )
    for size in map(int, given.sizes.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            measure(Path(folder), size, Corpus(1).queries(given.queries + 10), model)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
