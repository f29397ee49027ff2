"""How well `retrieve` finds: nDCG@10 and Recall@100 by words, by meaning, by both, and by both put in order by a
reranker, on labelled sets in BEIR layout, beside what was published for the same sets.

    scripts/bench retrieval_quality ../shared/cases/ir [--cross-encoder FOLDER]

Given are sets, or folders of sets.  The real collection, index, fusion, rerankers and models, in this process, without
the kernel.  nDCG is computed with linear gains, as BEIR's tool (pytrec_eval) does.  Beside the sets' own queries, some
documents are asked for by a word that no other has, as a name or a code is: printed is how often the document comes
first, and how often it is among the first 20.  Ends with 1 where a rule is broken: both together are never worse than
the better half by more than 0.005 (of the rare words: 0.05), and no reranker that costs more than that is on by
default.
"""

from __future__ import annotations

import argparse
import csv
import math
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import trio

from proto.operation import Params
from proto.ops.embed import (
    EmbedMaxSim,
    EmbedModel,
    EmbedModelParams,
    EmbedResult,
    EmbedTexts,
    MaxSimResult,
    TextKind,
    pack,
)
from proto.ops.rerank import Ranked, RerankModel, RerankModelParams, RerankPairs, RerankResult
from proto.ops.retrieve import Fusion, Group, Item, RetrieveSearch
from services.embed.backends import Backend
from services.embed.encoder import LateInteraction, LatePair
from services.embed.main import Loaded, Settings, load
from services.rerank import main as cross_encoder
from services.retrieve.collection import Collection
from services.retrieve.main import Settings as RetrieveSettings
from services.retrieve.outbox import VectorFeed
from services.retrieve.patience import Patience
from services.retrieve.reranking import LateReranker, Pace, Reranker
from services.retrieve.search import search
from services.retrieve.terms import indexed
from services.runtime.models.device import Precision

WORDS, MEANING, BOTH = "words", "meaning", "weighted"
METHODS = {
    WORDS: Fusion(method="lexical"),
    MEANING: Fusion(method="vector"),
    "rrf": Fusion(method="rrf"),
    BOTH: Fusion(method="weighted"),
}
DEPTH = 100
RERANKED = 50
"""Candidates that a reranker reads, as searches of notes have it."""

SLACK, RARE_SLACK = 0.005, 0.05
RARE_WORDS = 80
SHOWN = 20

# Thakur et al., "BEIR", 2021, tables 2 and 9; MTEB's results for all-MiniLM-L6-v2.  Of Cranfield nobody publishes
# nDCG@10 over this corpus with these judgements.
PUBLISHED = {
    "scifact": (
        "BM25 .665 (Recall@100 .908), all-MiniLM-L6-v2 .645, TAS-B .643 (.891), ColBERT .671 (.878), "
        "BM25 and a MiniLM cross-encoder .688"
    )
}


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

    def __init__(self, precision: Precision = Precision.AUTO, backend: Backend = Backend.AUTO) -> None:
        self.model: Loaded = load(Settings(precision=precision, backend=backend), "cpu", Path(tempfile.gettempdir()))

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

    def max_sim(self, params: EmbedMaxSim) -> MaxSimResult:
        query = self.model.tokenizer.encode([params.query], TextKind.QUERY).ids[0]
        texts = self.model.tokenizer.encode(params.texts, TextKind.PASSAGE).ids
        late = LateInteraction(self.model.encoder)
        return MaxSimResult(scores=late.compute([LatePair(query, ids) for ids in texts])[:, 0].tolist())


class InProcessRerankers:
    """`embed` and `rerank` as a search calls them to have its candidates put in order."""

    def __init__(self, embedder: InProcessEmbedder, model: str) -> None:
        self._embedder = embedder
        self.cross: cross_encoder.Loaded | None = cross_encoder.load(cross_encoder.Settings(model=model), "cpu")

    @property
    def name(self) -> str:
        return "none" if self.cross is None else self.cross.files.name

    async def __call__(self, params: Params[Any], *, timeout_s: float | None = None) -> Any:
        return await trio.to_thread.run_sync(self._answer, params)

    def _answer(self, params: Params[Any]) -> MaxSimResult | RerankModel | RerankResult:
        if isinstance(params, EmbedMaxSim):
            return self._embedder.max_sim(params)
        if self.cross is None:
            return RerankModel(available=False)
        if isinstance(params, RerankModelParams):
            return RerankModel(
                available=True, model=self.name, max_tokens=self.cross.files.max_tokens, tokens_per_s=1e9, device="cpu"
            )  # fmt: skip
        assert isinstance(params, RerankPairs)
        scores = self.cross.encoder.compute(self.cross.tokenizer.encode(params.query, params.texts).pairs)[:, 0]
        order = np.argsort(-scores, kind="stable")
        return RerankResult(
            ranked=[Ranked(index=int(index), score=float(scores[index])) for index in order], model=self.name
        )


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


async def unasked(params: EmbedModelParams) -> EmbedModel:
    raise AssertionError("the vectors name their model")


async def fill(collection: Collection, documents: Sequence[Document], embedder: InProcessEmbedder) -> None:
    """Put all documents and give them their vectors."""
    for start in range(0, len(documents), 512):
        groups = [
            Group(id=each.id, title=each.title, items=[Item(key="0", text=each.text)])
            for each in documents[start : start + 512]
        ]
        await collection.put(groups)
    feed = VectorFeed(collection, embedder.passages, unasked)
    while due := await feed.take():
        await feed.deliver(due)


def rare_words(documents: Sequence[Document]) -> dict[str, str]:
    """For some documents a word that no other has, as the index parts words; always the same ones."""
    words = {each.id: set(indexed(f"{each.title} {each.text}").split()) for each in documents}
    counts = Counter(word for own in words.values() for word in own)
    rare = {id_: sorted(word for word in own if counts[word] == 1 and len(word) > 4) for id_, own in words.items()}
    dice = random.Random(1)
    chosen = dice.sample(sorted(id_ for id_, own in rare.items() if own), RARE_WORDS)
    return {id_: dice.choice(rare[id_]) for id_ in chosen}


class Found(msgspec.Struct, frozen=True):
    """What one way of searching is worth on one set."""

    ndcg: float
    recall: float
    ndcg_of_reranked: float
    """Of the queries that are reranked as well."""


async def measure(
    folder: Path, embedder: InProcessEmbedder, rerankers: InProcessRerankers, work: Path, most: int | None
) -> list[str]:
    """Print the figures of one set; answers the rules that it breaks.

    Args:
        most: queries that are reranked; None: all.
    """
    documents = [msgspec.json.decode(line, type=Document) for line in (folder / "corpus.jsonl").open()]
    queries = [msgspec.json.decode(line, type=Query) for line in (folder / "queries.jsonl").open()]
    relevant = judgements(folder)
    queries = [query for query in queries if query.id in relevant]
    collection = Collection(folder.name, work, trio.CapacityLimiter(4))
    await collection.load()
    await collection.words.check()
    started = time.perf_counter()
    await fill(collection, documents, embedder)
    print(
        f"\n{folder.name}: {len(documents)} documents put and embedded in {time.perf_counter() - started:.1f} s, "
        f"{len(queries)} queries"
    )

    async def by(name: str, fusion: Fusion, reranker: Reranker | LateReranker | None = None) -> Found:
        gains: list[float] = []
        recalls: list[float] = []
        times: list[float] = []
        for query in queries if reranker is None else queries[:most]:
            asked = RetrieveSearch(
                collection=folder.name,
                query=query.text,
                limit=DEPTH,
                candidates=DEPTH if reranker is None else RERANKED,
                fusion=fusion,
            )
            began = time.perf_counter()
            result = await search(collection, asked, embedder.query, Patience(60.0), lambda: None, reranker)
            times.append(time.perf_counter() - began)
            if result.degraded or result.reranked is (reranker is None):
                raise AssertionError(f"{name}: {result.stages}, {result.degraded}")
            ranked = [hit.group for hit in result.hits]
            gains.append(ndcg(ranked, relevant[query.id]))
            recalls.append(recall(ranked, relevant[query.id]))
        found = Found(float(np.mean(gains)), float(np.mean(recalls)), float(np.mean(gains[:most])))
        middle = sorted(times)[len(times) // 2] * 1000
        print(
            f"  {name:22} nDCG@10 {found.ndcg:.3f}  Recall@{DEPTH} {found.recall:.3f}  p50 {middle:6.1f} ms", flush=True
        )
        return found

    async def by_rare_words(name: str) -> float:
        places: list[int] = []
        for id_, word in rare.items():
            asked = RetrieveSearch(
                collection=folder.name, query=word, limit=SHOWN, candidates=RERANKED, fusion=METHODS[name]
            )
            result = await search(collection, asked, embedder.query, Patience(60.0), lambda: None)
            groups = [hit.group for hit in result.hits]
            places.append(groups.index(id_) if id_ in groups else SHOWN)
        first, shown = (sum(place < depth for place in places) / len(places) for depth in (1, SHOWN))
        print(f"  {name:22} a word of one document alone: it is first {first:.3f}, among {SHOWN} {shown:.3f}")
        return first

    found = {name: await by(name, method) for name, method in METHODS.items()}
    rare = rare_words(documents)
    first = {name: await by_rare_words(name) for name in (WORDS, MEANING, BOTH)}
    # Here a reranker takes the time it needs: its worth is asked for, not this machine's speed.
    late = await by("weighted, then MaxSim", METHODS[BOTH], LateReranker(rerankers, Pace(600.0)))
    cross: Found | None = None
    if rerankers.cross is not None:
        cross = await by("then cross-encoder", METHODS[BOTH], Reranker(rerankers, Pace(600.0)))
    else:
        print("  then cross-encoder     there is none on this machine")
    print(f"  published              {PUBLISHED.get(folder.name, 'nothing for this corpus and these judgements')}")
    collection.close()
    return judge(found, first, late, cross)


def judge(found: Mapping[str, Found], first: Mapping[str, float], late: Found, cross: Found | None) -> list[str]:
    """Print for each rule whether it is kept; answers those that are not."""
    broken: list[str] = []

    def rule(text: str, kept: bool) -> None:
        print(f"  {'pass' if kept else 'FAIL'}: {text}")
        if not kept:
            broken.append(text)

    for measure_ in ("ndcg", "recall"):
        both = getattr(found[BOTH], measure_)
        half = max(getattr(found[name], measure_) for name in (WORDS, MEANING))
        rule(f"{measure_}: both together {both:.3f}, the better half {half:.3f}", both >= half - SLACK)
    half = max(first[WORDS], first[MEANING])
    rule(f"rare words: both together {first[BOTH]:.3f}, the better half {half:.3f}", first[BOTH] >= half - RARE_SLACK)
    default = RetrieveSettings().rerank
    fused = found[BOTH].ndcg_of_reranked
    rule(
        f"MaxSim is worth {late.ndcg - fused:+.3f} and is {'on' if default == 'maxsim' else 'off'} by default",
        late.ndcg >= fused - SLACK or default != "maxsim",
    )
    if cross is not None:
        rule(
            f"the cross-encoder is worth {cross.ndcg - fused:+.3f} and is {'on' if default == 'auto' else 'off'} by "
            "default",
            cross.ndcg >= fused - SLACK or default != "auto",
        )
    return broken


def sets(folders: Sequence[Path]) -> list[Path]:
    """The sets that `folders` are or hold."""
    found: list[Path] = []
    for folder in folders:
        inside = [folder] if (folder / "corpus.jsonl").exists() else sorted(folder.glob("*/corpus.jsonl"))
        if not inside:
            raise SystemExit(f"{folder} holds no set: there is no corpus.jsonl in it")
        found += (path if path.is_dir() else path.parent for path in inside)
    return found


async def run(
    folders: Sequence[Path], keep: Path | None, embedder: InProcessEmbedder, cross: str, most: int | None
) -> int:
    """Measure each folder; the databases stay in `keep`, where given.  Answers the status to end with."""
    rerankers = InProcessRerankers(embedder, cross)
    print(f"{embedder.model.files.name}, {embedder.model.encoder.precision}; cross-encoder: {rerankers.name}")
    broken: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        for folder in sets(folders):
            broken += await measure(folder, embedder, rerankers, keep or Path(temporary), most)
    return 1 if broken else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "folders", nargs="+", type=Path, help="sets (corpus.jsonl, queries.jsonl, qrels/test.tsv), or folders of them"
    )
    parser.add_argument("--keep", type=Path, help="a folder for the databases, so that a second run embeds nothing")
    parser.add_argument("--precision", type=Precision, choices=list(Precision), default=Precision.AUTO)
    parser.add_argument("--backend", type=Backend, choices=list(Backend), default=Backend.AUTO)
    parser.add_argument("--cross-encoder", default="auto", help="as the setting `model` of [services.rerank]")
    parser.add_argument("--reranked", type=int, help="queries of each set that are reranked: the first; by default all")
    options = parser.parse_args()
    if options.reranked is not None and options.reranked < 1:
        parser.error("--reranked: at least 1")
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    ours = InProcessEmbedder(options.precision, options.backend)
    sys.exit(trio.run(run, options.folders, options.keep, ours, options.cross_encoder, options.reranked))
