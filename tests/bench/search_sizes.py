"""A complete search, from an MCP client through notes, words, vectors and fusion, at growing numbers of sections.

    scripts/bench search_sizes [--sizes 1000,10000,100000] [--queries 300] [--rerank off,maxsim] [--keep DIR]

For each size, a data directory is created (see `parts.collections`), a real kernel is started on it, and `notes_search`
is called over HTTP, one query after the other, each once. Printed are p50 and p99, the memory of `retrieve`, and two
restarts. `start` restarts everything, and measures until a search is answered by words, and until it is answered
completely (the model loads last, whatever the size). `kill` kills `retrieve` alone, and measures until the next answer
and the next complete one; the median of five. `scan` is only the comparison with all vectors, in this process, done as
in `retrieve`. With several values for `--rerank` there is one line for each, with the share of searches that were
really reranked. The peer is a typical single process: the same model, FTS5's BM25, and FAISS's exact flat index, with
the same fusion; that index is also measured alone. Amalfa, which these tools come from, was measured at 3 ms over 1,000
and 55 ms over 10,000 for the scan alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterable
from contextlib import closing
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

# The services use the same setting.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import apsw
import faiss
import numpy as np
import trio

from proto.control.client import CallFailed
from proto.ops.embed import TextKind
from services.embed.main import load
from services.embed.serving import EmbedSettings, Loaded
from services.retrieve.index.lexical import Fts5
from services.retrieve.index.vectors import Matrix
from services.retrieve.local_collection import LocalCollection
from services.retrieve.ranking import fusion
from tests.bench.parts.collections import DIMENSIONS, Corpus, fill_knowledge, fill_retrieve, notes_of
from tests.bench.parts.wire import Http
from tests.system.running import HTTP, RunningKernel, running

CANDIDATES = 50


def search_for(query: str) -> dict[str, Any]:
    """Return the parameters of a search; random words are relevant to nothing, so any hit counts."""
    return {"query": query, "min_score": 0}


def body(number: int, query: str) -> bytes:
    params = {"name": "notes_search", "arguments": search_for(query)}
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}).encode()


def percentile(times: list[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * share))] * 1000


class Waited(NamedTuple):
    """Seconds until a search was answered, and until one was answered completely."""

    any_s: float
    whole_s: float


def answered(kernel: RunningKernel, query: str) -> tuple[bool, bool]:
    """Return whether a search finds anything, and whether nothing is missing from it except perhaps the reranking."""
    try:
        answer: dict[str, Any] = kernel.call("notes_search", search_for(query), timeout_s=60)
    except CallFailed:
        return False, False
    metadata = answer["metadata"]
    lacking = [reason for reason in metadata["degraded"] if not reason.startswith(("rerank:", "maxsim:"))]
    return bool(answer["results"]), {"lexical", "vector"} <= set(metadata["stages"]) and not lacking


def until_whole(kernel: RunningKernel, queries: Iterable[str], began: float) -> Waited:
    any_s: float | None = None
    for query in cycle(queries):
        some, whole = answered(kernel, query)
        now_s = time.monotonic() - began
        any_s = now_s if any_s is None and some else any_s
        if whole:
            return Waited(any_s or now_s, now_s)
        time.sleep(0.01)
    raise AssertionError("there are no queries")


def killed(kernel: RunningKernel, queries: list[str], times: int = 5) -> Waited:
    """Return the waiting times of searches after `retrieve` is killed; medians."""
    waited = []
    for n in range(times):
        began = time.monotonic()
        kernel.kill("retrieve")
        waited.append(until_whole(kernel, queries[n:], began))
        # A restart immediately after another is delayed on purpose.
        time.sleep(3)
    return Waited(*(statistics.median(column) for column in zip(*waited, strict=True)))


def wait_for_tantivy(kernel: RunningKernel, size: int) -> float:
    began = time.monotonic()
    while size >= 50_000 and kernel.call("retrieve_status", {"collection": "notes"})["words"] != "tantivy":
        time.sleep(0.1)
    return time.monotonic() - began


def make(folder: Path, size: int, model: Loaded) -> None:
    """Create a root with notes, and the databases of the services."""
    sections = 10 if size <= 100_000 else 50
    root, services = folder / "notes", folder / "data" / "services"
    root.mkdir(parents=True)
    paths = notes_of(size, sections)
    fill_knowledge(services / "knowledge" / "notes.db", str(root), paths)
    fill_retrieve(services / "retrieve" / "notes.db", Corpus(size), sections, model.fingerprint, (str(root), paths))


def share_reranked(kernel: RunningKernel, queries: list[str]) -> float:
    """Return the share of complete searches that were reranked."""
    answers = [kernel.call("notes_search", search_for(query), timeout_s=60)["metadata"] for query in queries]
    return sum(not {"rerank", "maxsim"}.isdisjoint(each["stages"]) for each in answers) / len(answers)


def measure(folder: Path, size: int, queries: list[str], model: Loaded, rerank: str) -> None:
    """Print one line.

    Args:
        rerank: the setting of `retrieve`.
    """
    root, data = folder / "notes", folder / "data"
    began = time.monotonic()
    if not root.exists():
        make(folder, size, model)
    made_s = time.monotonic() - began
    environment = {"LINCKIA_SERVICES__RETRIEVE__RERANK": rerank}
    with running(data, [root], options=HTTP, environment=environment) as kernel:
        # Measured once: segments and the large word index are derived and then kept.
        began = time.monotonic()
        until_whole(kernel, queries[:1], began)
        wait_for_tantivy(kernel, size)
        derived_s = time.monotonic() - began
    began = time.monotonic()
    with running(data, [root], options=HTTP, environment=environment, all_ready=False) as kernel:
        start = until_whole(kernel, queries[:5], began)
        kernel.wait_ready()
        wait_for_tantivy(kernel, size)
        kill = killed(kernel, queries[:10])
        wait_for_tantivy(kernel, size)
        port = int(kernel.status()["http_url"].rsplit(":", 1)[1].split("/")[0])
        client = Http(port)
        times = []
        for number, query in enumerate(queries[10:]):
            request = body(number, query)
            asked = time.perf_counter()
            answer = client.ask(request)
            times.append(time.perf_counter() - asked)
            if b'"isError":true' in answer or b"note-" not in answer:
                raise AssertionError(answer[:500])
        client.close()
        reranked = share_reranked(kernel, queries[:10])
        service = kernel.service("retrieve")
        notes = kernel.service("knowledge")
        status = kernel.call("retrieve_status", {"collection": "notes"})
    vectors = [model.encoder.compute(model.tokenizer.encode([query], TextKind.QUERY).ids)[0] for query in queries[:40]]
    scan = scan_ms(data / "services" / "retrieve", vectors)
    peer, flat = peer_ms(data / "services" / "retrieve" / "notes.db", queries[10:40], model)
    p50 = percentile(times, 0.5)
    print(
        f"{size:>9} {rerank:>7} {reranked:>5.0%} {p50:>8.2f} {percentile(times, 0.99):>8.2f} {scan:>8.2f} "
        f"{start.any_s:>8.2f} {start.whole_s:>6.2f} "
        f"{kill.any_s:>7.2f} {kill.whole_s:>6.2f} "
        f"{service['pss_bytes'] / 2**20:>9.0f} {service['rss_bytes'] / 2**20:>8.0f} {notes['pss_bytes'] / 2**20:>8.0f} "
        f"| {peer:>8.2f} {flat:>8.2f} {peer / p50:>6.2f} | {status['words']}, {status['index']}, "
        f"{status['size_bytes'] / 2**20:.0f} MiB, made in {made_s:.0f} s, derived in {derived_s:.0f} s",
        flush=True,
    )


def scan_ms(folder: Path, queries: list[Matrix]) -> float:
    """Return the p50 of finding the nearest of all vectors, in the collection left by the run."""

    async def scan() -> list[float]:
        collection = LocalCollection("notes", folder, trio.CapacityLimiter(1))
        await collection.load()
        times = []
        for query in queries:
            start = time.perf_counter()
            collection.vectors.loaded().nearest(query, CANDIDATES, None)
            times.append(time.perf_counter() - start)
        collection.close()
        return times

    return percentile(trio.run(scan), 0.5)


def peer_ms(database: Path, queries: list[str], model: Loaded) -> tuple[float, float]:
    """Return the p50 of the same search in one process, and of the flat index alone."""
    with closing(apsw.Connection(str(database))) as db:
        rows = list(db.execute("SELECT item_id, vector FROM vectors"))
        vectors = np.frombuffer(b"".join(row[1] for row in rows), dtype="<f2").reshape(len(rows), DIMENSIONS)
        index = faiss.IndexFlatIP(DIMENSIONS)
        index.add(vectors.astype(np.float32))
        ids = [row[0] for row in rows]
        times, scans = [], []
        for query in queries:
            start = time.perf_counter()
            vector = model.encoder.compute(model.tokenizer.encode([query], TextKind.QUERY).ids)
            began = time.perf_counter()
            scores, places = index.search(vector, CANDIDATES)
            scans.append(time.perf_counter() - began)
            cosines = {ids[place]: float(score) for place, score in zip(places[0], scores[0], strict=True)}
            fused = fusion.weighted(Fts5(db).search(query, CANDIDATES, None), cosines, fusion.PROSE)
            best = sorted(fused, key=lambda item: -fused[item])[:20]
            marks = ", ".join("?" * len(best))
            db.execute(f"SELECT text, title FROM items JOIN groups USING (group_id) WHERE item_id IN ({marks})", best)
            times.append(time.perf_counter() - start)
    return percentile(times, 0.5), percentile(scans, 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1000,10000,100000")
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--rerank", default="off,maxsim", help="auto, off or maxsim, or several of them")
    parser.add_argument("--keep", type=Path, help="a folder for the data, so that a second run can reuse it")
    given = parser.parse_args()
    model = load(EmbedSettings(), "cpu", Path(tempfile.gettempdir()))
    faiss.omp_set_num_threads(1)
    print(
        " sections  rerank truly   p50 ms   p99 ms  scan ms  start s  whole  kill s  whole  PSS MiB  RSS MiB    notes |"
        "  peer ms  flat ms  ratio (retrieve's memory; notes: that of knowledge)"
    )
    for size in map(int, given.sizes.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            where = (given.keep or Path(folder)) / str(size)
            for rerank in given.rerank.split(","):
                measure(where, size, Corpus(1).queries(given.queries + 10), model, rerank)


if __name__ == "__main__":
    main()
