"""The quality of `retrieve`: nDCG@10 and Recall@100 by words, by meaning, by both, and by both with a reranker.

    scripts/bench retrieval_quality [SET…] [--code] [--as notes] [--cross-encoder FOLDER]

The arguments are labelled sets in BEIR layout, or folders of sets; published figures for the same sets are printed too.
Documents are stored whole, or cut like notes or stored documents. The real collection, index, fusion, rerankers and
models run in this process, without the kernel. nDCG uses linear gains, as BEIR's tool (pytrec_eval) does; in brackets
is its 95 % confidence interval. In addition
to the sets' queries, some documents are searched by a word that only one or two of them have, such as a name or a code:
printed is how often these come first, and how often they are among the first 20. The stated confidence of hits is
printed next to the share that is right. Exits with 1 if a rule is violated: both together are never worse than the
better half by more than 0.005 (0.05 for rare words), two documents that share a word both come first, and no reranker
that costs more than that is on by default.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import trio

from proto.ops.embed import EmbedModel, EmbedModelParams
from proto.ops.retrieve import Fusion, Group, Item, RetrieveSearch
from services.documents.text.file_names import tells
from services.documents.text.passages import passages
from services.embed.backends import Backend
from services.knowledge.ingest.index import PATH_SEPARATOR, group_of
from services.knowledge.notes.files import Place
from services.knowledge.notes.markdown import parse
from services.retrieve.local_collection import LocalCollection
from services.retrieve.open_collections import RetrieveSettings
from services.retrieve.ranking.queries import Patience
from services.retrieve.ranking.reranking import LateReranker, Pace, Reranker
from services.retrieve.ranking.search import search
from services.retrieve.vector_outbox import VectorFeed
from services.shared.models.device import Precision
from services.shared.models.measure import measure as measure_of
from tests.bench.parts import code_set as _code_set
from tests.bench.parts.models import InProcessEmbedder, InProcessRerankers
from tests.bench.parts.trials import RARE_WORDS, TWICE_WORDS, Calibration, words_of

WORDS, MEANING, BOTH = "words", "meaning", "weighted"
METHODS = {
    WORDS: Fusion(method="lexical"),
    MEANING: Fusion(method="vector"),
    "rrf": Fusion(method="rrf"),
    BOTH: Fusion(method="weighted"),
}
DEPTH = 100
RESAMPLES = 2000
MEASURE = measure_of({})
RERANKED = 50
"""Candidates that a reranker reads, as in searches of notes."""

SLACK, RARE_SLACK = 0.005, 0.05
SHOWN = 20

# Thakur et al., "BEIR", 2021, tables 2 and 9; MTEB's results for all-MiniLM-L6-v2. Nobody publishes nDCG@10 for
# Cranfield with this corpus and these judgements.
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
    """Return the normalised discounted cumulative gain at `depth` (Järvelin and Kekäläinen, 2002), linear gains."""
    gain = sum(relevant.get(doc, 0) / math.log2(rank + 2) for rank, doc in enumerate(ranked[:depth]))
    best = sorted((value for value in relevant.values() if value > 0), reverse=True)[:depth]
    ideal = sum(value / math.log2(rank + 2) for rank, value in enumerate(best))
    return gain / ideal if ideal else 0.0


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the mean, by bootstrap over the queries."""
    given = np.asarray(values)
    drawn = np.random.default_rng(0).integers(0, len(given), (RESAMPLES, len(given)))
    low, high = np.percentile(given[drawn].mean(axis=1), (2.5, 97.5))
    return float(low), float(high)


def recall(ranked: Sequence[str], relevant: Mapping[str, int], depth: int = DEPTH) -> float:
    """Return the share of the relevant documents among the first `depth`."""
    wanted = {doc for doc, value in relevant.items() if value > 0}
    return len(wanted.intersection(ranked[:depth])) / len(wanted) if wanted else 0.0


def judgements(folder: Path) -> dict[str, dict[str, int]]:
    """Read the relevance by query and document."""
    found: dict[str, dict[str, int]] = {}
    with (folder / "qrels" / "test.tsv").open(newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            found.setdefault(row["query-id"], {})[row["corpus-id"]] = int(row["score"])
    return found


async def unasked(params: EmbedModelParams) -> EmbedModel:
    raise AssertionError("the vectors name their model")


def whole(each: Document) -> Group:
    """Return the document as one piece, of which the model reads the beginning."""
    return Group(id=each.id, title=each.title, items=[Item(key="0", text=each.text)])


def as_note(each: Document) -> Group:
    """Return the pieces of the document as a note."""
    place = Place("/", f"{each.id}.md")
    return group_of(each.id, place, 0.0, parse(f"# {each.title}\n\n{each.text}\n", place, MEASURE))


def as_document(each: Document) -> Group:
    """Return the pieces of the document as a stored text; without a title, as Python."""
    text, mime = (f"{each.title}\n\n{each.text}\n", "text/plain") if each.title else (each.text, "text/x-python")
    items = [
        Item(key=str(number), text=piece.text, heading=PATH_SEPARATOR.join(piece.path))
        for number, piece in enumerate(passages(text, mime, each.id, MEASURE))
    ]
    return Group(id=each.id, title=each.id if tells(each.id) else "", names=each.id, items=items)


SHAPES = {"whole": whole, "notes": as_note, "documents": as_document}


async def fill(
    collection: LocalCollection,
    documents: Sequence[Document],
    embedder: InProcessEmbedder,
    shape: Callable[[Document], Group],
) -> None:
    """Store all documents and their vectors."""
    for start in range(0, len(documents), 512):
        await collection.put([shape(each) for each in documents[start : start + 512]])
    feed = VectorFeed(collection, embedder.passages, unasked)
    while due := await feed.take():
        await feed.deliver(due)


class SearchFigures(msgspec.Struct, frozen=True):
    """The figures of one search method on one set."""

    ndcg: float
    recall: float
    ndcg_of_reranked: float
    """nDCG over the queries that are also reranked."""


async def places_of(
    words: Mapping[str, Sequence[str]], name: str, collection: LocalCollection, embedder: InProcessEmbedder
) -> list[int]:
    """Return, for each word, the rank of the last document that has it."""
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
        f"  {name:22} {len(words)} words of {holders} documents only: those are first {first:.3f}, among {SHOWN} "
        f"{shown:.3f}"
    )
    return places


async def alone(
    words: Mapping[str, list[str]], most: int, collection: LocalCollection, embedder: InProcessEmbedder
) -> dict[str, list[str]]:
    """Return up to `most` of the words that no other document has in any form that the index treats as equal."""
    found: dict[str, list[str]] = {}
    for word, ids in words.items():
        if len(found) == most:
            break
        asked = RetrieveSearch(collection=collection.name, query=word, limit=SHOWN, fusion=METHODS[WORDS])
        result = await search(collection, asked, embedder.query, Patience(60.0), lambda: None)
        if {hit.group for hit in result.hits} == set(ids):
            found[word] = ids
    return found


async def measure(
    folder: Path,
    embedder: InProcessEmbedder,
    rerankers: InProcessRerankers,
    work: Path,
    shape: Callable[[Document], Group],
    most: int | None,
) -> list[str]:
    """Print the figures of one set. Returns the rules that it violates.

    Args:
        shape: how a document is stored.
        most: number of queries that are reranked; None for all.
    """
    documents = [msgspec.json.decode(line, type=Document) for line in (folder / "corpus.jsonl").open()]
    queries = [msgspec.json.decode(line, type=Query) for line in (folder / "queries.jsonl").open()]
    relevant = judgements(folder)
    queries = [query for query in queries if query.id in relevant]
    collection = LocalCollection(folder.name, work, trio.CapacityLimiter(4))
    await collection.load()
    await collection.words.check()
    started = time.perf_counter()
    await fill(collection, documents, embedder, shape)
    print(
        f"\n{folder.name}: {len(documents)} documents put and embedded in {time.perf_counter() - started:.1f} s, "
        f"{len(queries)} queries"
    )

    async def by(
        name: str,
        fusion: Fusion,
        reranker: Reranker | LateReranker | None = None,
        calibration: Calibration | None = None,
    ) -> SearchFigures:
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
        found = SearchFigures(float(np.mean(gains)), float(np.mean(recalls)), float(np.mean(gains[:most])))
        middle = sorted(times)[len(times) // 2] * 1000
        low, high = interval(gains)
        print(
            f"  {name:22} nDCG@10 {found.ndcg:.4f} [{low:.3f}, {high:.3f}]  Recall@{DEPTH} {found.recall:.3f}  "
            f"p50 {middle:6.1f} ms",
            flush=True,
        )
        return found

    calibration = Calibration()
    found = {
        name: await by(name, method, calibration=calibration if name == BOTH else None)
        for name, method in METHODS.items()
    }
    print(*(f"  {line}" for line in calibration.table()), sep="\n")
    texts = {each.id: f"{each.title} {each.text}" for each in documents}
    rare, twice = [
        await alone(words_of(texts, holders, 4 * most_words), most_words, collection, embedder)
        for holders, most_words in ((1, RARE_WORDS), (2, TWICE_WORDS))
    ]
    first = {name: await places_of(rare, name, collection, embedder) for name in (WORDS, MEANING, BOTH)}
    both = await places_of(twice, BOTH, collection, embedder)
    # The reranker gets as much time as it needs, since its quality is measured here, not this machine's speed.
    late = await by("weighted, then MaxSim", METHODS[BOTH], LateReranker(rerankers, Pace(600.0)))
    cross: SearchFigures | None = None
    if rerankers.cross is not None:
        cross = await by("then cross-encoder", METHODS[BOTH], Reranker(rerankers, Pace(600.0)))
    else:
        print("  then cross-encoder     not available on this machine")
    print(f"  published              {PUBLISHED.get(folder.name, 'nothing for this corpus and these judgements')}")
    collection.close()
    return judge(found, first, both, late, cross)


def judge(
    found: Mapping[str, SearchFigures],
    rare: Mapping[str, Sequence[int]],
    twice: Sequence[int],
    late: SearchFigures,
    cross: SearchFigures | None,
) -> list[str]:
    """Print the result of each rule. Returns the rules that are violated.

    Args:
        rare: ranks, from 0, of documents that alone have a word, by search method.
        twice: ranks of the second of two documents that alone have a word.
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
    """Return the sets that `folders` are or contain."""
    found: list[Path] = []
    for folder in folders:
        inside = [folder] if (folder / "corpus.jsonl").exists() else sorted(folder.glob("*/corpus.jsonl"))
        if not inside:
            raise SystemExit(f"{folder} contains no set: it has no corpus.jsonl")
        found += (path if path.is_dir() else path.parent for path in inside)
    return found


async def run(options: argparse.Namespace) -> int:
    """Measure each requested set. Returns the exit status."""
    embedder = InProcessEmbedder(options.precision, options.backend)
    rerankers = InProcessRerankers(embedder, options.cross_encoder)
    print(f"{embedder.model.files.name}, {embedder.model.encoder.precision}; cross-encoder: {rerankers.name}")
    broken: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        made = [_code_set.write(Path(temporary) / "functions")] if options.code else []
        made += [_code_set.write_packages(Path(temporary) / "packages")] if options.code else []
        for folder in [*sets(options.folders), *made]:
            work, shape = options.keep or Path(temporary), SHAPES[options.shape]
            broken += await measure(folder, embedder, rerankers, work, shape, options.reranked)
    return 1 if broken else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "folders", nargs="*", type=Path, help="sets (corpus.jsonl, queries.jsonl, qrels/test.tsv), or folders of them"
    )
    parser.add_argument("--code", action="store_true", help="also measure sets of Python functions")
    parser.add_argument("--as", dest="shape", choices=list(SHAPES), default="whole", help="how documents are stored")
    parser.add_argument("--keep", type=Path, help="a folder for the databases, so that a second run embeds nothing")
    parser.add_argument("--precision", type=Precision, choices=list(Precision), default=Precision.AUTO)
    parser.add_argument("--backend", type=Backend, choices=list(Backend), default=Backend.AUTO)
    parser.add_argument("--cross-encoder", default="auto", help="as the setting `model` of [services.rerank]")
    parser.add_argument("--reranked", type=int, help="number of queries of each set that are reranked; all by default")
    wanted = parser.parse_args()
    if not wanted.folders and not wanted.code:
        parser.error("name a set, or use --code")
    if wanted.reranked is not None and wanted.reranked < 1:
        parser.error("--reranked: at least 1")
    if wanted.keep is not None:
        wanted.keep.mkdir(parents=True, exist_ok=True)
    sys.exit(trio.run(run, wanted))
