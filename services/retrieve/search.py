"""One search: words and meaning side by side, fused, grouped, and honest about what ran.

Either stage may fail, be slow or be absent; the other one answers and `degraded` says why. Only where both fail does
the search fail: an empty answer always means that nothing was found.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np
import trio

from proto.errors import Kind, LinckiaError, Unavailable
from proto.ops.embed import EmbedResult, EmbedTexts, TextKind
from proto.ops.retrieve import Hit, RetrieveSearch, SearchResult
from services.retrieve import fusion, store
from services.retrieve.collection import Collection, VectorsLoading, is_index_damage
from services.retrieve.filters import Where, compile_filters
from services.retrieve.reranking import RERANK, Reranker
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
    vector: list[tuple[int, float]] | None = None
    query: Matrix | None = None
    reranked: dict[int, float] = {}
    degraded: list[str] = []

    @property
    def ran(self) -> list[str]:
        """The stages that found; whoever was asked to put that in order comes after."""
        return [name for name, found in ((LEXICAL, self.lexical), (VECTOR, self.vector)) if found is not None]


async def search(
    collection: Collection,
    params: RetrieveSearch,
    embed: QueryCall,
    patience: Patience,
    repair: Callable[[], None],
    reranker: Reranker | None = None,
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
    limit = max(params.candidates, params.limit)
    if params.fusion.method == LEXICAL:
        reranker = None
    shown = params.limit if reranker is None else params.candidates
    stages = await _run(collection, params, embed, patience, limit, where, repair)
    while True:
        fused = await _fuse(collection, params, stages)
        best, found = await collection.read(partial(_look_up, fused, shown))
        full = any(stage is not None and len(stage) >= limit for stage in (stages.lexical, stages.vector))
        if len(best) >= params.limit or not full or limit >= MAX_CANDIDATES:
            break
        # Many of the pieces were of few groups: look further down rather than answer with fewer groups than there are.
        limit = min(4 * limit, MAX_CANDIDATES)
        await _deepen(collection, params, stages, limit, where)
    if reranker is not None and best:
        best = await _rerank(params, best, found, stages, reranker)
        # That took a while: what was removed meanwhile is not answered.
        found = await collection.items([item for item, _ in best[: params.limit]])
    best = best[: params.limit]
    if LEXICAL in stages.ran and not collection.words_checked.is_set():
        stages.degraded.append("lexical: the word index is still being checked")
    waiting = collection.waiting
    if VECTOR in stages.ran and (awaited := collection.vectors_awaited):
        stages.degraded.append(f"vector: {awaited}")
    if VECTOR in stages.ran and (behind := collection.vectors_behind):
        stages.degraded.append(f"vector: {behind}")
    ran = stages.ran
    return SearchResult(
        hits=await _hits(best, found, stages, collection),
        stages=[*ran, RERANK] if stages.reranked else ran,
        degraded=stages.degraded,
        source=("hybrid" if len(ran) == 2 else ran[0]) + (f"+{RERANK}" if stages.reranked else ""),
        reranked=bool(stages.reranked),
        vectors_waiting=waiting,
    )


async def _run(
    collection: Collection,
    params: RetrieveSearch,
    embed: QueryCall,
    patience: Patience,
    limit: int,
    where: Where | None,
    repair: Callable[[], None],
) -> _Stages:
    stages = _Stages()
    method = params.fusion.method

    async def lexical() -> None:
        try:
            stages.lexical = await collection.find_words(params.query, limit, where)
        except sqlite3.Error as error:
            if is_index_damage(error):
                repair()
            stages.degraded.append(f"lexical: {error}")

    async def vector() -> None:
        try:
            stages.query = await _query_vector(collection, params.query, embed, patience)
            if stages.query is not None:
                stages.vector = await collection.find_vectors(stages.query, limit, where)
            elif awaited := collection.vectors_awaited:
                stages.degraded.append(f"vector: {awaited}")
        except LinckiaError as error:
            stages.degraded.append(f"vector: {error.failure.message}")
        except trio.TooSlowError:
            stages.degraded.append("vector: the query's vector did not come in time")
        except VectorsLoading:
            stages.degraded.append("vector: the vectors are still being loaded")
        except sqlite3.Error as error:
            stages.degraded.append(f"vector: {error}")

    async with trio.open_nursery() as nursery:
        if method != VECTOR:
            nursery.start_soon(lexical)
        if method != LEXICAL:
            nursery.start_soon(vector)
    if method == VECTOR and stages.vector is None:
        await lexical()
    if method == LEXICAL and stages.lexical is None:
        await vector()
    if not stages.ran:
        raise Unavailable("no stage of the search answers: " + "; ".join(stages.degraded), retry_after_ms=1000)
    return stages


async def _query_vector(collection: Collection, query: str, embed: QueryCall, patience: Patience) -> Matrix | None:
    """The query's vector; None where the collection has no vector to compare it with."""
    if not collection.loaded.is_set():
        with trio.move_on_after(_LOAD_WAIT_S):
            await collection.loaded.wait()
        if not collection.loaded.is_set():
            raise VectorsLoading
    if not collection.vector_count:
        if collection.vectors_behind:
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
    return vector if collection.vector_count else None


async def _deepen(
    collection: Collection, params: RetrieveSearch, stages: _Stages, limit: int, where: Where | None
) -> None:
    async def lexical() -> None:
        stages.lexical = await collection.find_words(params.query, limit, where)

    async def vector(query: Matrix) -> None:
        stages.vector = await collection.find_vectors(query, limit, where)

    async with trio.open_nursery() as nursery:
        if stages.lexical is not None:
            nursery.start_soon(lexical)
        if stages.vector is not None and stages.query is not None:
            nursery.start_soon(vector, stages.query)


async def _rerank(
    params: RetrieveSearch,
    best: list[tuple[int, float]],
    found: Mapping[int, Found],
    stages: _Stages,
    reranker: Reranker,
) -> list[tuple[int, float]]:
    """The candidates in the cross-encoder's order, then the others in theirs; as they were where it does not answer."""
    texts = {item: reading(found[item]) for item, _ in best[: params.candidates] if item in found}
    order = await reranker.rank(params.query, list(texts.values()))
    if order.degraded:
        stages.degraded.append(f"{RERANK}: {order.degraded}")
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


async def _fuse(collection: Collection, params: RetrieveSearch, stages: _Stages) -> dict[int, float]:
    if stages.lexical is None or stages.vector is None:
        return fusion.single(stages.lexical or stages.vector or ())
    if params.fusion.method == "rrf":
        return fusion.reciprocal_rank(stages.lexical, stages.vector)
    cosines = dict(stages.vector)
    if stages.query is not None:
        cosines |= await collection.cosines(stages.query, [item for item, _ in stages.lexical if item not in cosines])
    return fusion.weighted(stages.lexical, cosines, params.fusion.vector_weight)


def _look_up(
    fused: Mapping[int, float], shown: int, db: sqlite3.Connection
) -> tuple[list[tuple[int, float]], dict[int, Found]]:
    """The best of each group, and what the first `shown` of them hold: in one go, since each costs a thread's turn."""
    best = _best_of_groups(fused, store.groups_of(db, list(fused)))
    return best, store.items(db, [item for item, _ in best[:shown]])


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


async def _hits(
    best: Sequence[tuple[int, float]], found: Mapping[int, Found], stages: _Stages, collection: Collection
) -> list[Hit]:
    words = dict(stages.lexical or ())
    cosines: dict[int, float] = {}
    if stages.vector is not None and stages.query is not None:
        cosines = await collection.cosines(stages.query, [item for item, _ in best])
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
            vector=cosines.get(item_id),
            rerank=stages.reranked.get(item_id),
        )
        for item_id, score in best
        if (item := found.get(item_id)) is not None
    ]
