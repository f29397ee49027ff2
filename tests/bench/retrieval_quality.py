"""How well `retrieve` finds: nDCG@10 and Recall@100 by words, by meaning and by both, on labelled sets in BEIR layout.

    python -m tests.bench.retrieval_quality ../shared/cases/ir/scifact ../shared/cases/ir/cranfield

The real collection, index, fusion and model, in this process, without the kernel.  nDCG is computed with linear
gains, as BEIR's tool (pytrec_eval) does.
"""

from __future__ import annotations

import argparse
import csv
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import trio

from proto.arrays import pack
from proto.ops.embed import EmbedResult, EmbedTexts
from proto.ops.retrieve import Fusion, Group, Item, RetrieveSearch
from services.embed.main import Loaded, Settings, load
from services.retrieve.collection import Collection
from services.retrieve.outbox import embed_due
from services.retrieve.search import Patience, search
from services.runtime.models.device import Precision

METHODS = {
    "words": Fusion(method="lexical"),
    "meaning": Fusion(method="vector"),
    "rrf": Fusion(method="rrf"),
    "weighted": Fusion(method="weighted"),
}
DEPTH = 100


class Document(msgspec.Struct, frozen=True):
    """One line of `corpus.jsonl`."""

    id: str = msgspec.field(name="_id")
    text: str = ""
    title: str = ""


class Query(msgspec.Struct, frozen=True):
    """One line of `queries.jsonl`."""

    text: str
    id: str = msgspec.field(name="_id")


def ndcg(ranked: Sequence[str], relevant: Mapping[str, int], depth: int = 10) -> float:
    """Normalised discounted cumulative gain at `depth` (Järvelin and Kekäläinen, 2002), linear gains."""
    gain = sum(relevant.get(doc, 0) / math.log2(rank + 2) for rank, doc in enumerate(ranked[:depth]))
    best = sorted((value for value in relevant.values() if value > 0), reverse=True)[:depth]
    ideal = sum(value / math.log2(rank + 2) for rank, value in enumerate(best))
    return gain / ideal if ideal else 0.0


def recall(ranked: Sequence[str], relevant: Mapping[str, int], depth: int = DEPTH) -> float:
    """Share of the relevant documents among the first `depth`."""
    wanted = {doc for doc, value in relevant.items() if value > 0}
    return len(wanted.intersection(ranked[:depth])) / len(wanted) if wanted else 0.0


def judgements(folder: Path) -> dict[str, dict[str, int]]:
    """Relevance by query and document."""
    found: dict[str, dict[str, int]] = {}
    with (folder / "qrels" / "test.tsv").open(newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            found.setdefault(row["query-id"], {})[row["corpus-id"]] = int(row["score"])
    return found


class InProcessEmbedder:
    """The embedding model, called as the service would be."""

    def __init__(self, precision: Precision = Precision.AUTO) -> None:
        self.model: Loaded = load(Settings(precision=precision), "cpu")

    def embed(self, params: EmbedTexts) -> EmbedResult:
        tokens = self.model.tokenizer.encode(params.texts, params.kind)
        order = sorted(range(len(tokens.ids)), key=lambda index: len(tokens.ids[index]))
        vectors = np.empty((len(order), self.model.encoder.width), dtype=np.float32)
        for some in batches(order, [len(ids) for ids in tokens.ids], 2048):
            vectors[some] = self.model.encoder.compute([tokens.ids[index] for index in some])
        return EmbedResult(vectors=pack(vectors), fingerprint=self.model.fingerprint)

    async def passages(self, params: EmbedTexts) -> EmbedResult:
        return await trio.to_thread.run_sync(self.embed, params)

    async def query(self, params: EmbedTexts, timeout_s: float) -> EmbedResult:
        return await trio.to_thread.run_sync(self.embed, params)


def batches(order: Sequence[int], lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """`order` cut where the lengths add up to more than `budget`."""
    batch: list[int] = []
    spent = 0
    for index in order:
        if batch and spent + lengths[index] > budget:
            yield batch
            batch, spent = [], 0
        batch.append(index)
        spent += lengths[index]
    if batch:
        yield batch


async def fill(collection: Collection, documents: Sequence[Document], embedder: InProcessEmbedder) -> None:
    """Put all documents and give them their vectors."""
    for start in range(0, len(documents), 512):
        groups = [
            Group(id=each.id, title=each.title, items=[Item(key="0", text=each.text)])
            for each in documents[start : start + 512]
        ]
        await collection.put(groups)
    while due := (await collection.due(time.time(), 512))[0]:
        await embed_due(collection, due, embedder.passages, time.time)


async def measure(folder: Path, embedder: InProcessEmbedder, work: Path) -> None:
    """Print the figures of one set."""
    documents = [msgspec.json.decode(line, type=Document) for line in (folder / "corpus.jsonl").open()]
    queries = [msgspec.json.decode(line, type=Query) for line in (folder / "queries.jsonl").open()]
    relevant = judgements(folder)
    collection = Collection.open(folder.name, work, trio.CapacityLimiter(4))
    await collection.load()
    await collection.check_words()
    started = time.perf_counter()
    await fill(collection, documents, embedder)
    print(f"{folder.name}: {len(documents)} documents put and embedded in {time.perf_counter() - started:.1f} s")
    for name, method in METHODS.items():
        gains: list[float] = []
        recalls: list[float] = []
        times: list[float] = []
        for query in queries:
            if query.id not in relevant:
                continue
            asked = RetrieveSearch(
                collection=folder.name, query=query.text, limit=DEPTH, candidates=DEPTH, fusion=method
            )
            began = time.perf_counter()
            result = await search(collection, asked, embedder.query, Patience(60.0), lambda: None)
            times.append(time.perf_counter() - began)
            ranked = [hit.group for hit in result.hits]
            gains.append(ndcg(ranked, relevant[query.id]))
            recalls.append(recall(ranked, relevant[query.id]))
        middle = sorted(times)[len(times) // 2] * 1000
        print(
            f"  {name:9} nDCG@10 {np.mean(gains):.3f}  Recall@{DEPTH} {np.mean(recalls):.3f}"
            f"  {len(gains)} queries, p50 {middle:.1f} ms"
        )
    collection.close()


async def run(folders: Sequence[Path], keep: Path | None, precision: Precision) -> None:
    """Measure each folder; the databases stay in `keep`, where given."""
    embedder = InProcessEmbedder(precision)
    print(f"{embedder.model.files.name}, {embedder.model.encoder.precision}")
    with tempfile.TemporaryDirectory() as temporary:
        for folder in folders:
            await measure(folder, embedder, keep or Path(temporary))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "folders", nargs="+", type=Path, help="folders with corpus.jsonl, queries.jsonl, qrels/test.tsv"
    )
    parser.add_argument("--keep", type=Path, help="a folder for the databases, so that a second run embeds nothing")
    parser.add_argument("--precision", type=Precision, choices=list(Precision), default=Precision.AUTO)
    options = parser.parse_args()
    trio.run(run, options.folders, options.keep, options.precision)
