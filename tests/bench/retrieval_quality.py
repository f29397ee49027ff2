"""How well `retrieve` finds: nDCG@10 and Recall@100 by words, by meaning, by both, and by both put in order by a
reranker, on labelled sets in BEIR layout, beside what was published for the same sets.

    scripts/bench retrieval_quality [SET…] [--code] [--cross-encoder FOLDER]

Given are sets, or folders of sets.  The real collection, index, fusion, rerankers and models, in this process, without
the kernel.  nDCG is computed with linear gains, as BEIR's tool (pytrec_eval) does.  Beside the sets' own queries, some
documents are asked for by a word that one or two of them have, as a name or a code is: printed is how often these come
first, and how often among the first 20.  How sure hits say they are is printed beside how many are right.  Ends
with 1 where a rule is broken: both together are never worse than the better half by more than 0.005 (of the rare words:
0.05), both of two documents with a word come first, and no reranker that costs more than that is on by default.
"""

from __future__ import annotations

import argparse
import csv
import functools
import math
import sys
import tempfile
import time
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
from services.runtime.models.device import Precision
from tests.bench import _code_set
from tests.bench._trials import RARE_WORDS, TWICE_WORDS, Calibration, words_of

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


class Found(msgspec.Struct, frozen=True):
    """What one way of searching is worth on one set."""

    ndcg: float
    recall: float
    ndcg_of_reranked: float
    """Of the queries that are reranked as well."""


async def places_of(
    words: Mapping[str, Sequence[str]], name: str, collection: Collection, embedder: InProcessEmbedder
) -> list[int]:
    """For each word the place of the last document that has it."""
    places: list[int] = []
    for word, ids in words.items():
        asked = RetrieveSearch(
            collection=collection.name, query=word, limit=SHOWN, candidates=RERANKED, fusion=METHODS[name]
        )
        result = await search(collection, asked, embedder.query, Patience(60.0), lambda: None)
        groups = [hit.group for hit in result.hits]
        places.append(max(groups.index(id_) if id_ in groups else SHOWN for id_ in ids))
    holders = len(next(iter(words.values()), ()))
    first, shown = (sum(place < depth for place in places) / max(1, len(places)) for depth in (holders, SHOWN))
    print(
        f"  {name:22} {len(words)} words of {holders} documents alone: those are first {first:.3f}, among {SHOWN} "
        f"{shown:.3f}"
    )
    return places


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

    async def by(
        name: str,
        fusion: Fusion,
        reranker: Reranker | LateReranker | None = None,
        calibration: Calibration | None = None,
    ) -> Found:
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
            if calibration is not None:
                calibration.add([(hit.group, hit.score) for hit in result.hits[:10]], relevant[query.id])
        found = Found(float(np.mean(gains)), float(np.mean(recalls)), float(np.mean(gains[:most])))
        middle = sorted(times)[len(times) // 2] * 1000
        print(
            f"  {name:22} nDCG@10 {found.ndcg:.3f}  Recall@{DEPTH} {found.recall:.3f}  p50 {middle:6.1f} ms", flush=True
        )
        return found

    calibration = Calibration()
    found = {
        name: await by(name, method, calibration=calibration if name == BOTH else None)
        for name, method in METHODS.items()
    }
    print(*(f"  {line}" for line in calibration.table()), sep="\n")
    texts = {each.id: f"{each.title} {each.text}" for each in documents}
    rare, twice = words_of(texts, 1, RARE_WORDS), words_of(texts, 2, TWICE_WORDS)
    first = {name: await places_of(rare, name, collection, embedder) for name in (WORDS, MEANING, BOTH)}
    both = await places_of(twice, BOTH, collection, embedder)
    # Here a reranker takes the time it needs: its worth is asked for, not this machine's speed.
    late = await by("weighted, then MaxSim", METHODS[BOTH], LateReranker(rerankers, Pace(600.0)))
    cross: Found | None = None
    if rerankers.cross is not None:
        cross = await by("then cross-encoder", METHODS[BOTH], Reranker(rerankers, Pace(600.0)))
    else:
        print("  then cross-encoder     there is none on this machine")
    print(f"  published              {PUBLISHED.get(folder.name, 'nothing for this corpus and these judgements')}")
    collection.close()
    return judge(found, first, both, late, cross)


def judge(
    found: Mapping[str, Found],
    rare: Mapping[str, Sequence[int]],
    twice: Sequence[int],
    late: Found,
    cross: Found | None,
) -> list[str]:
    """Print for each rule whether it is kept; answers those that are not.

    Args:
        rare: places, from 0, of documents that alone have a word, by how they were sought.
        twice: places of the second of two documents that alone have a word.
    """
    first = {name: sum(not place for place in places) / max(1, len(places)) for name, places in rare.items()}
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
    late_ones = sum(place > 1 for place in twice)
    rule(f"words of two documents: {late_ones} of {len(twice)} have one of them below the second place", not late_ones)
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
    folders: Sequence[Path], keep: Path | None, embedder: InProcessEmbedder, cross: str, most: int | None, *, code: bool
) -> int:
    """Measure each folder, and the set of code where asked for; the databases stay in `keep`, where given.  Answers the
    status to end with."""
    rerankers = InProcessRerankers(embedder, cross)
    print(f"{embedder.model.files.name}, {embedder.model.encoder.precision}; cross-encoder: {rerankers.name}")
    broken: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        made = [_code_set.write(Path(temporary) / "functions")] if code else []
        for folder in [*sets(folders), *made]:
            broken += await measure(folder, embedder, rerankers, keep or Path(temporary), most)
    return 1 if broken else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "folders", nargs="*", type=Path, help="sets (corpus.jsonl, queries.jsonl, qrels/test.tsv), or folders of them"
    )
    parser.add_argument("--keep", type=Path, help="a folder for the databases, so that a second run embeds nothing")
    parser.add_argument("--code", action="store_true", help="also a set of this interpreter's own functions")
    parser.add_argument("--precision", type=Precision, choices=list(Precision), default=Precision.AUTO)
    parser.add_argument("--backend", type=Backend, choices=list(Backend), default=Backend.AUTO)
    parser.add_argument("--cross-encoder", default="auto", help="as the setting `model` of [services.rerank]")
    parser.add_argument("--reranked", type=int, help="queries of each set that are reranked: the first; by default all")
    options = parser.parse_args()
    if options.reranked is not None and options.reranked < 1:
        parser.error("--reranked: at least 1")
    if not options.folders and not options.code:
        parser.error("name a set, or say --code")
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    ours = InProcessEmbedder(options.precision, options.backend)
    wanted = functools.partial(run, code=options.code)
    sys.exit(trio.run(wanted, options.folders, options.keep, ours, options.cross_encoder, options.reranked))
