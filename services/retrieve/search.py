"""One search: words and meaning side by side, fused, grouped, and honest about what ran.

Either stage may fail, be slow or be absent; the other one answers and `degraded` says why. Only where both fail does
the search fail: an empty answer always means that nothing was found.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np
import trio

from proto.errors import Kind, LinckiaError, Unavailable
from proto.ops.embed import EmbedResult, EmbedTexts, TextKind
from proto.ops.retrieve import Hit, RetrieveSearch, SearchResult
from services.retrieve import fusion, store
from services.retrieve.collection import Collection, is_index_damage
from services.retrieve.filters import Where, allowed_items, compile_filters
from services.retrieve.lexical import Fts5
from services.retrieve.live_vectors import VectorsLoading
from services.retrieve.reranking import RERANK, LateReranker, Reranker
from services.retrieve.store import Found
from services.retrieve.vectors import Matrix

QueryCall = Callable[[EmbedTexts, float], Awaitable[EmbedResult]]
"""Embeds a query within so many seconds."""

LEXICAL, VECTOR = "lexical", "vector"

MAX_CANDIDATES = 100_000

_LOAD_WAIT_S = 2.0


class Patience:
    """How long a search waits for the query's vector: in full, or briefly once that was waited for in vain.

    Words answer in milliseconds; while the embedder hangs, not every search shall pay for it.
    """

    BRIEF_S, BRIEF_FOR_S = 0.1, 5.0

    def __init__(self, full_s: float) -> None:
        self._full_s = full_s
        self._brief_until = -np.inf

    def timeout_s(self) -> float:
        return min(self.BRIEF_S, self._full_s) if trio.current_time() < self._brief_until else self._full_s

    def learn(self, answered: bool) -> None:
        self._brief_until = -np.inf if answered else trio.current_time() + self.BRIEF_FOR_S


class _Stages(msgspec.Struct):
    """What the stages found, and what became of them."""

    lexical: list[tuple[int, float]] | None = None
    unchecked: bool = False
    """Whether words may be missing from that."""
    vector: list[tuple[int, float]] | None = None
    query: Matrix | None = None
    reranked: dict[int, float] = {}
    degraded: list[str] = []

    @property
    def ran(self) -> list[str]:
        """The stages that found; whoever was asked to put that in order comes after."""
        return [name for name, found in ((LEXICAL, self.lexical), (VECTOR, self.vector)) if found is not None]


class _Candidates(NamedTuple):
    """The best piece of each group, best first; texts and cosines of as many of them as are wanted."""

    best: list[tuple[int, float]]
    found: dict[int, Found]
    cosines: dict[int, float]


async def search(
    collection: Collection,
    params: RetrieveSearch,
    embed: QueryCall,
    patience: Patience,
    repair: Callable[[], None],
    reranker: Reranker | LateReranker | None = None,
) -> SearchResult:
    """Answer `params` on its collection.

    Args:
        embed: how the query becomes a vector.
        repair: called where the word index is found damaged.
        reranker: puts the best in order; None leaves them as they were fused, and so does asking for words alone.

    Raises:
        Unavailable: every stage that was asked for failed.
    """
    where = compile_filters(params.filters)
    depth = max(params.candidates, params.limit)
    stages = _Stages()
    reranks = reranker is not None and reranker.may_run and params.fusion.method != LEXICAL
    read, texts = (depth, None) if reranks else (params.limit, params.texts)
    choose = partial(_choose, collection, params, stages, where, depth, read, texts)
    candidates: _Candidates | None = None
    if params.fusion.method == LEXICAL:
        candidates = await _by_words(collection, params, stages, where, depth, choose, repair)
    if candidates is None:
        await _run(collection, params, stages, embed, patience, depth, where, repair)
        candidates = await collection.read(choose)
    if not stages.ran:
        # The words were left out for the vectors, and these cannot be read.
        raise _unanswered(stages)
    best = candidates.best
    if reranker is not None and reranks and best:
        best = await _rerank(params, candidates, stages, reranker)
        # That took a while: what was removed meanwhile is not answered.
        found = await collection.items([item for item, _ in best[: params.limit]], params.texts)
        kept = (item for item, _ in best[: params.limit] if item not in found)
        if gone := {item: candidates.found[item] for item in kept if item in candidates.found}:
            # A note that was written anew is there, and is answered as it is now.
            found |= await collection.read(partial(store.successors, gone=gone))
        candidates = candidates._replace(found=found)
    best = best[: params.limit]
    if LEXICAL in stages.ran and stages.unchecked:
        stages.degraded.append("lexical: the word index is still being checked")
    waiting = collection.waiting
    if VECTOR in stages.ran and (awaited := collection.vectors_awaited):
        stages.degraded.append(f"vector: {awaited}")
    if VECTOR in stages.ran and (behind := collection.vectors.behind):
        stages.degraded.append(f"vector: {behind}")
    ran = stages.ran
    return SearchResult(
        hits=_hits(best, candidates, stages),
        stages=[*ran, reranker.stage] if reranker is not None and stages.reranked else ran,
        degraded=stages.degraded,
        source=("hybrid" if len(ran) == 2 else ran[0]) + (f"+{RERANK}" if stages.reranked else ""),
        reranked=bool(stages.reranked),
        vectors_waiting=waiting,
    )


async def _by_words(
    collection: Collection,
    params: RetrieveSearch,
    stages: _Stages,
    where: Where | None,
    limit: int,
    choose: Callable[[sqlite3.Connection], _Candidates],
    repair: Callable[[], None],
) -> _Candidates | None:
    """The candidates by words alone, which nobody has to be waited for: found and chosen by one thread in one turn.

    None where the words do not answer.
    """

    def find(db: sqlite3.Connection) -> _Candidates:
        stages.lexical, stages.unchecked = collection.words.search(db, params.query, limit, where)
        return choose(db)

    await collection.trust_words()
    try:
        return await collection.read(find)
    except sqlite3.Error as error:
        if stages.lexical is not None:
            raise
        _words_failed(stages, error, repair)
        return None


def _words_failed(stages: _Stages, error: sqlite3.Error, repair: Callable[[], None]) -> None:
    if is_index_damage(error):
        repair()
    stages.degraded.append(f"lexical: {error}")


async def _run(
    collection: Collection,
    params: RetrieveSearch,
    stages: _Stages,
    embed: QueryCall,
    patience: Patience,
    limit: int,
    where: Where | None,
    repair: Callable[[], None],
) -> None:
    """What is asked of the vectors, and of the words beside them."""
    method = params.fusion.method

    async def lexical() -> None:
        try:
            stages.lexical, stages.unchecked = await collection.find_words(params.query, limit, where)
        except sqlite3.Error as error:
            _words_failed(stages, error, repair)

    async def vector() -> None:
        try:
            stages.query = await _query_vector(collection, params.query, embed, patience)
            if stages.query is None and (awaited := collection.vectors_awaited):
                stages.degraded.append(f"vector: {awaited}")
        except LinckiaError as error:
            stages.degraded.append(f"vector: {error.failure.message}")
        except trio.TooSlowError:
            stages.degraded.append("vector: the query's vector did not come in time")
        except VectorsLoading:
            stages.degraded.append("vector: the vectors are still being loaded")

    if method in (VECTOR, LEXICAL):
        await vector()
        if method == VECTOR and stages.query is None:
            await lexical()
    else:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lexical)
            nursery.start_soon(vector)
    if stages.query is None and stages.lexical is None:
        raise _unanswered(stages)


def _unanswered(stages: _Stages) -> Unavailable:
    return Unavailable("no stage of the search answers: " + "; ".join(stages.degraded), retry_after_ms=1000)


async def _query_vector(collection: Collection, query: str, embed: QueryCall, patience: Patience) -> Matrix | None:
    """The query's vector; None where the collection has no vector to compare it with."""
    if not collection.loaded.is_set():
        with trio.move_on_after(_LOAD_WAIT_S):
            await collection.until_loaded()
        if not collection.loaded.is_set():
            raise VectorsLoading
    if not len(collection.vectors):
        if collection.vectors.behind:
            raise VectorsLoading
        return None
    timeout_s = patience.timeout_s()
    try:
        with trio.fail_after(timeout_s):
            result = await embed(EmbedTexts(texts=[query], kind=TextKind.QUERY), timeout_s)
    except (trio.TooSlowError, LinckiaError) as error:
        if isinstance(error, trio.TooSlowError) or error.failure.kind is Kind.TIMEOUT:
            patience.learn(answered=False)
        raise
    patience.learn(answered=True)
    if result.fingerprint != collection.fingerprint:
        await collection.adopt(result.fingerprint, result.vectors.shape[1])
    result.vectors.check()
    vector = np.frombuffer(result.vectors.data, dtype=result.vectors.dtype).astype(np.float32)
    return vector if len(collection.vectors) else None


def _choose(
    collection: Collection,
    params: RetrieveSearch,
    stages: _Stages,
    where: Where | None,
    depth: int,
    read: int,
    texts: int | None,
    db: sqlite3.Connection,
) -> _Candidates:
    """Everything from the query's vector to the texts of the best, on one snapshot and in one go: blocks.

    Args:
        depth: pieces that each stage hands on, at first.
        read: groups that are wanted.
        texts: of these, so many with what their pieces say; None: all.
    """
    allowed = None if where is None or stages.query is None else allowed_items(db, where)
    looked_again = False

    def words_again() -> None:
        try:
            stages.lexical, stages.unchecked = collection.words.search(db, params.query, depth, where)
        except sqlite3.Error as error:
            # They answered a moment ago, and that counts.
            stages.degraded.append(f"lexical: {error}")

    while True:
        if stages.query is not None:
            try:
                stages.vector = collection.vectors.near(stages.query, depth, allowed)
            except VectorsLoading:
                stages.degraded.append("vector: the vectors are still being loaded")
                stages.query = None
        found = dict.fromkeys(item for stage in (stages.lexical, stages.vector) if stage for item, _ in stage)
        groups = store.groups_of(db, list(found))
        fused = _fuse(collection, params, stages, groups, db)
        if stages.lexical is not None and not looked_again and any(item not in groups for item, _ in stages.lexical):
            # While the query's vector was made, a note was written anew, and its pieces have other ids.
            looked_again = True
            words_again()
            continue
        best = _best_of_groups(fused, groups)
        full = any(stage is not None and len(stage) >= depth for stage in (stages.lexical, stages.vector))
        if len(best) >= params.limit or not full or depth >= MAX_CANDIDATES:
            break
        # Many of the pieces were of few groups: look further down rather than answer with fewer groups than there are.
        depth = min(4 * depth, MAX_CANDIDATES)
        if stages.lexical is not None:
            words_again()
    best = _telling(best, groups, stages.lexical or (), store.never_embedded(db, [item for item, _ in best[:read]]))
    ids = [item for item, _ in best[:read]]
    cosines = {} if stages.query is None else collection.vectors.cosines(stages.query, ids)
    return _Candidates(best, store.items(db, ids, texts), cosines)


async def _rerank(
    params: RetrieveSearch, candidates: _Candidates, stages: _Stages, reranker: Reranker | LateReranker
) -> list[tuple[int, float]]:
    """The candidates in the cross-encoder's order, then the others in theirs; as they were where it does not answer."""
    best, found = candidates.best, candidates.found
    texts = {item: reading(found[item]) for item, _ in best[: params.candidates] if item in found}
    fused = [score for item, score in best[: params.candidates] if item in texts]
    order = await reranker.rank(params.query, list(texts.values()), fused)
    if order.degraded:
        stages.degraded.append(f"{reranker.stage}: {order.degraded}")
    items = list(texts)
    stages.reranked = {items[ranked.index]: ranked.score for ranked in order.ranked}
    if not stages.reranked:
        return best
    # What the model has not read stays below what it has, in the order that it had.
    least = min(stages.reranked.values())
    rest = [(item, score * least) for item, score in best if item not in stages.reranked]
    return list(stages.reranked.items()) + rest


def reading(found: Found) -> str:
    """What the cross-encoder reads of an item: where it stands, then its text."""
    return "\n".join(part for part in (found.heading or found.title, found.text) if part)


def _fuse(
    collection: Collection,
    params: RetrieveSearch,
    stages: _Stages,
    groups: Mapping[int, int],
    db: sqlite3.Connection,
) -> dict[int, float]:
    if stages.lexical is None or stages.vector is None:
        return fusion.single(stages.lexical or stages.vector or ())
    if params.fusion.method == "rrf":
        return fusion.reciprocal_rank(stages.lexical, stages.vector)
    cosines = dict(stages.vector)
    if stages.query is not None:
        by_words = [item for item, _ in stages.lexical]
        cosines |= collection.vectors.cosines(stages.query, [item for item in by_words if item not in cosines])
        average = sum(cosines.values()) / max(1, len(cosines))
        lent = _by_siblings(collection, stages.query, [item for item in by_words if item not in cosines], db)
        # What the rest is about need not be what this piece says: it is no reason to take it for less than the average.
        cosines |= {item: max(average, cosine) for item, cosine in lent.items()}
    least = fusion.outstanding(stages.lexical, groups)
    try:
        # One that holds a third of the query's words stands for a third of what is asked.
        held = Fts5(db).shares_held(params.query, list(least))
        least = {item: share * held[item] for item, share in least.items()}
    except sqlite3.Error as error:
        if (reason := f"lexical: {error}") not in stages.degraded:
            stages.degraded.append(reason)
    return fusion.weighted(stages.lexical, cosines, params.fusion.vector_weight, least)


def _by_siblings(collection: Collection, query: Matrix, ids: Sequence[int], db: sqlite3.Connection) -> dict[int, float]:
    """The best cosine of the rest of their group, for pieces without a vector: front matter, a section just written."""
    siblings = store.siblings(db, ids) if ids else {}
    cosines = collection.vectors.cosines(query, list({other for others in siblings.values() for other in others}))
    known = {item: [cosines[other] for other in others if other in cosines] for item, others in siblings.items()}
    return {item: max(of_others) for item, of_others in known.items() if of_others}


def _telling(
    best: list[tuple[int, float]], groups: Mapping[int, int], lexical: Sequence[tuple[int, float]], bare: Set[int]
) -> list[tuple[int, float]]:
    """`best`, where a piece that is never embedded (`bare`: front matter) steps back for another piece of its group.

    It is short, and the title counts for each piece: by that alone it would often be the best of its group. Where the
    words are half as well met elsewhere in the group, that is what a reader wants to see.
    """
    words = dict(lexical)
    fullest: dict[int, int] = {}
    for item, _ in lexical:
        if item in groups and item not in bare:
            fullest.setdefault(groups[item], item)
    told: list[tuple[int, float]] = []
    for item, score in best:
        other = fullest.get(groups[item]) if item in bare else None
        told.append((item if other is None or words[other] < words.get(item, 0.0) / 2 else other, score))
    return told


def _best_of_groups(fused: Mapping[int, float], group_of: Mapping[int, int]) -> list[tuple[int, float]]:
    """The best item of each group, best first; items that are gone by now are left out."""
    best: list[tuple[int, float]] = []
    seen: set[int] = set()
    for item_id, score in sorted(fused.items(), key=lambda pair: (-pair[1], pair[0])):
        group = group_of.get(item_id)
        if group is not None and group not in seen:
            seen.add(group)
            best.append((item_id, score))
    return best


def _hits(best: Sequence[tuple[int, float]], candidates: _Candidates, stages: _Stages) -> list[Hit]:
    words = dict(stages.lexical or ())
    return [
        Hit(
            group=item.group,
            key=item.key,
            score=min(1.0, max(0.0, score)),
            title=item.title,
            heading=item.heading,
            text=item.text,
            group_metadata=item.group_metadata,
            item_metadata=item.item_metadata,
            lexical=words.get(item_id),
            vector=candidates.cosines.get(item_id),
            rerank=stages.reranked.get(item_id),
        )
        for item_id, score in best
        if (item := candidates.found.get(item_id)) is not None
    ]
