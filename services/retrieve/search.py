"""One search: words and meaning side by side, fused and grouped.

Either stage may fail, be slow or be absent; the other one answers and `degraded` says why. Only where both fail does
the search fail: an empty answer always means that nothing was found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import apsw
import numpy as np
import trio

from linckia.proto.errors import Kind, LinckiaError, Unavailable
from linckia.proto.ops.embed import EmbedResult, EmbedTexts, TextKind
from linckia.proto.ops.retrieve import Hit, RetrieveSearch, SearchResult
from linckia.services.retrieve import fusion, store
from linckia.services.retrieve.collection import Collection
from linckia.services.retrieve.filters import allowed_items, compile_filters
from linckia.services.retrieve.lexical import Fts5, WordsDamaged
from linckia.services.retrieve.live_vectors import NO_VECTORS, VectorIndex, VectorsLoading
from linckia.services.retrieve.queries import Patience, QueryCall
from linckia.services.retrieve.relevance import PACKAGED, falling, relevance
from linckia.services.retrieve.reranking import RERANK, LateReranker, Reranker
from linckia.services.retrieve.store import Found
from linckia.services.retrieve.vectors import Matrix
from linckia.services.retrieve.word_index import FoundWords

LEXICAL, VECTOR = "lexical", "vector"

MAX_CANDIDATES = 100_000

LOOKED_AT, LOOKED_AT_CHARS = 8, 600
"""Pieces of each stage, and characters of each, by which it is told what was found: code or prose."""

TOLD = 20
"""Hits of which it is told which words they hold."""

_MODELS = 3
"""That a query is embedded by at most: the one in use, the one that the vectors are of, the one that they are of then.
"""

_LOAD_WAIT_S = 2.0
_LOADING = "vector: the vectors are still being loaded"


async def search(
    collection: Collection,
    params: RetrieveSearch,
    embed: QueryCall,
    patience: Patience,
    repair: Callable[[], object],
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
    if reranker is not None and (not reranker.may_run or params.fusion.method == LEXICAL):
        reranker = None
    this = _Search(collection, params, embed, patience)
    # The reranker reads the texts of all candidates.
    this.wanted, this.texts = (params.limit, params.texts) if reranker is None else (this.depth, None)
    try:
        candidates = await this.candidates()
    finally:
        if this.words_failed:
            repair()
    if reranker is not None and candidates.best:
        candidates = await this.rerank(candidates, reranker)
    return this.result(candidates, reranker)


class Candidates(NamedTuple):
    """The best piece of each group, best first; of as many of them as are wanted, what is told of a hit."""

    best: list[tuple[int, float]]
    found: dict[int, Found]
    cosines: dict[int, float]
    held: dict[int, list[str]]
    """Words of the query that a piece holds, of the first of them."""


class _Search:
    """One search: what its stages have found so far, and what became of them."""

    def __init__(self, collection: Collection, params: RetrieveSearch, embed: QueryCall, patience: Patience) -> None:
        self.collection = collection
        self.params = params
        self.embed = embed
        self.patience = patience
        self.where = compile_filters(params.filters)
        self.depth = max(params.candidates, params.limit)
        """Pieces that each stage hands on, at first."""
        self.wanted = params.limit
        """Groups of which more than the id is read."""
        self.texts: int | None = None
        """Of these, so many with the text of their pieces; None: all."""
        self.lexical: list[tuple[int, float]] | None = None
        self.unchecked = False
        """Whether words may be missing from that."""
        self.words_failed = False
        self.vector: list[tuple[int, float]] | None = None
        self.query: Matrix | None = None
        self.vectors: VectorIndex = NO_VECTORS
        """What that is compared with."""
        self.background = PACKAGED
        """See `relevance`."""
        self.weights: dict[str, float] | None = None
        """The words of the query, and how much each says."""
        self.reranked: dict[int, float] = {}
        self.degraded = [collection.refilling] if collection.refilling else []

    @property
    def ran(self) -> list[str]:
        """The stages that found; what put that in order comes after."""
        return [name for name, found in ((LEXICAL, self.lexical), (VECTOR, self.vector)) if found is not None]

    # Finding

    async def candidates(self) -> Candidates:
        """Run the stages that are asked for, or those that stand in for them, and choose from what they found.

        Raises:
            Unavailable: none answers.
        """
        method = self.params.fusion.method
        # One stage stands in for the other.
        if method == LEXICAL:
            # Found and chosen in one turn of one thread: a second would come after all searches that wait.
            chosen: list[Candidates] = []
            await self._find_words(lambda db: chosen.append(self._choose(db)))
            if chosen:
                return chosen[0]
            await self._embed_query()
        elif method == VECTOR:
            await self._embed_query()
            if self.query is None:
                await self._find_words()
        else:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._find_words)
                nursery.start_soon(self._embed_query)
        if self.query is None and self.lexical is None:
            raise self._unanswered()
        return await self.collection.read(self._choose)

    async def _find_words(self, then: Callable[[apsw.Connection], object] = lambda _: None) -> None:
        def keep(db: apsw.Connection, found: FoundWords) -> None:
            self.lexical, self.unchecked = found
            then(db)

        try:
            await self.collection.find_words(self.params.query, self.depth, self.where, keep)
        except WordsDamaged as error:
            self._words_failed(error)
        except LinckiaError as error:
            self.degraded.append(f"lexical: {error.failure.message}")

    def _words_failed(self, error: WordsDamaged) -> None:
        self.words_failed = True
        self.degraded = [*dict.fromkeys((*self.degraded, f"lexical: {error}"))]

    async def _embed_query(self) -> None:
        """Make the query's vector; what keeps it from being made, or compared, is `degraded`."""
        try:
            self.query = await self._query_vector()
            if self.query is None and (awaited := self.collection.vectors_awaited):
                self.degraded.append(f"vector: {awaited}")
        except LinckiaError as error:
            self.degraded.append(f"vector: {error.failure.message}{self.collection.becoming}")
        except trio.TooSlowError:
            self.degraded.append(f"vector: the query's vector did not come in time{self.collection.becoming}")
        except VectorsLoading:
            self.degraded.append(_LOADING)

    async def _query_vector(self) -> Matrix | None:
        """The query's vector; None where the collection has no vector to compare it with."""
        collection = self.collection
        if not collection.loaded.is_set():
            with trio.move_on_after(_LOAD_WAIT_S):
                await collection.until_loaded()
            if not collection.loaded.is_set():
                raise VectorsLoading
        if not len(collection.vectors):
            return None
        for _ in range(_MODELS):
            earlier = "" if collection.coming is None else collection.fingerprint or ""
            result = await self._embedded(earlier)
            if not len(collection.vectors):
                await collection.adopt(result.fingerprint, result.vectors.shape[1])
                return None
            index = collection.vectors.loaded()
            if result.fingerprint == index.model.fingerprint:
                result.vectors.check()
                self.vectors = index
                self.background = result.background or PACKAGED
                return np.frombuffer(result.vectors.data, dtype=result.vectors.dtype).astype(np.float32)
            # Another model is in use than the vectors are of; or they were replaced while the query's was made.
            if not earlier:
                await collection.adopt(result.fingerprint, result.vectors.shape[1])
        raise VectorsLoading

    async def _embedded(self, fingerprint: str) -> EmbedResult:
        """The query's vector by the model in use, or by the earlier one of that fingerprint."""
        timeout_s = self.patience.timeout_s()
        asked = EmbedTexts(texts=[self.params.query], kind=TextKind.QUERY, fingerprint=fingerprint)
        try:
            with trio.fail_after(timeout_s):
                result = await self.embed(asked, timeout_s)
        except (trio.TooSlowError, LinckiaError) as error:
            if isinstance(error, trio.TooSlowError) or error.failure.kind is Kind.TIMEOUT:
                self.patience.learn(answered=False)
            raise
        self.patience.learn(answered=True)
        return result

    def _unanswered(self) -> Unavailable:
        return Unavailable("no stage of the search answers: " + "; ".join(self.degraded), retry_after_ms=1000)

    # Choosing, on one snapshot and in one go; all of it blocks

    def _choose(self, db: apsw.Connection) -> Candidates:
        """Everything from the query's vector to the texts of the best."""
        allowed = None if self.where is None or self.query is None else allowed_items(db, self.where)
        depth = self.depth
        looked_again = False
        while True:
            if self.query is not None:
                self.vector = self.vectors.near(self.query, depth, allowed)
            found = dict.fromkeys(item for stage in (self.lexical, self.vector) if stage for item, _ in stage)
            groups = store.groups_of(db, list(found))
            fused = self._fuse(db)
            if self.lexical is not None and not looked_again and any(item not in groups for item, _ in self.lexical):
                # While the query's vector was made, a note was replaced, and its pieces have other ids.
                looked_again = True
                self._search_words_again(db, depth)
                continue
            best = fusion.best_of_groups(fused, groups)
            full = any(stage is not None and len(stage) >= depth for stage in (self.lexical, self.vector))
            if len(best) >= self.params.limit or not full or depth >= MAX_CANDIDATES:
                break
            # Many of the pieces were of few groups: look further down.
            depth = min(4 * depth, MAX_CANDIDATES)
            self._search_words_again(db, depth)
        bare = store.never_embedded(db, [item for item, _ in best[: self.wanted]])
        best = fusion.telling(best, groups, self.lexical or (), bare)
        ids = [item for item, _ in best[: self.wanted]]
        cosines = {} if self.query is None else self.vectors.cosines(self.query, ids)
        return Candidates(best, store.items(db, ids, self.texts), cosines, self._held(db, ids[:TOLD]))

    def _held(self, db: apsw.Connection, ids: Sequence[int]) -> dict[int, list[str]]:
        words = Fts5(db)
        try:
            if self.weights is None:
                self.weights = words.weights(self.params.query)
            return words.held(self.weights, ids)
        except WordsDamaged as error:
            self._words_failed(error)
            return {}

    def _share(self, held: Sequence[str]) -> float:
        """Of what the words of the query say, as much as these do."""
        weights = self.weights or {}
        return sum(weights[term] for term in held) / sum(weights.values()) if weights else 0.0

    def _search_words_again(self, db: apsw.Connection, depth: int) -> None:
        if self.lexical is None:
            return
        try:
            self.lexical, self.unchecked = self.collection.words.search(db, self.params.query, depth, self.where)
        except WordsDamaged as error:
            # They answered a moment ago, and that counts.
            self._words_failed(error)

    def _fuse(self, db: apsw.Connection) -> dict[int, float]:
        if self.lexical is None or self.vector is None:
            return dict(self.lexical or self.vector or ())
        if self.params.fusion.method == "rrf":
            return fusion.reciprocal_rank(self.lexical, self.vector)
        cosines = dict(self.vector)
        if self.query is not None:
            by_words = [item for item, _ in self.lexical]
            cosines |= self.vectors.cosines(self.query, [item for item in by_words if item not in cosines])
            average = sum(cosines.values()) / max(1, len(cosines))
            lent = self._by_siblings(db, self.query, [item for item in by_words if item not in cosines])
            # What the rest is about need not be what this piece says: it is no reason to take it for less than the
            # average.
            cosines |= {item: max(average, cosine) for item, cosine in lent.items()}
        weight = self.params.fusion.vector_weight
        if weight is None:
            looked_at = [item for stage in (self.lexical, self.vector) for item, _ in stage[:LOOKED_AT]]
            weight = fusion.vector_weight(self.lexical, store.beginnings(db, looked_at, LOOKED_AT_CHARS))
        return fusion.weighted(self.lexical, cosines, weight, partial(self._shares, db))

    def _shares(self, db: apsw.Connection, items: Sequence[int]) -> dict[int, float]:
        return {item: self._share(held) for item, held in self._held(db, items).items()}

    def _by_siblings(self, db: apsw.Connection, query: Matrix, ids: Sequence[int]) -> dict[int, float]:
        """The best cosine of the rest of their group, for pieces without a vector."""
        siblings = store.siblings(db, ids) if ids else {}
        others = list({other for each in siblings.values() for other in each})
        cosines = self.vectors.cosines(query, others)
        known = {item: [cosines[other] for other in each if other in cosines] for item, each in siblings.items()}
        return {item: max(of_others) for item, of_others in known.items() if of_others}

    # Putting in order, and answering

    async def rerank(self, candidates: Candidates, reranker: Reranker | LateReranker) -> Candidates:
        """The candidates in the cross-encoder's order, where it answers, then the others in theirs."""
        best, found = candidates.best, candidates.found
        read = [(item, score) for item, score in best[: self.params.candidates] if item in found]
        texts = [reading(found[item]) for item, _ in read]
        order = await reranker.rank(self.params.query, texts, fusion.normalised([score for _, score in read]))
        if order.degraded:
            self.degraded.append(f"{reranker.stage}: {order.degraded}")
        self.reranked = {read[ranked.index][0]: ranked.score for ranked in order.ranked}
        # What the model has not read stays below what it has, in the order that it had.
        best = [*self.reranked.items(), *((item, score) for item, score in best if item not in self.reranked)]
        # That took a while: what was removed meanwhile is not answered.
        answered = [item for item, _ in best[: self.params.limit]]
        now = await self.collection.items(answered, self.params.texts)
        if gone := {item: found[item] for item in answered if item not in now and item in found}:
            # A note that was replaced is there, and is answered as it is now.
            now |= await self.collection.read(partial(store.successors, gone=gone))
        return candidates._replace(best=best, found=now)

    def result(self, candidates: Candidates, reranker: Reranker | LateReranker | None) -> SearchResult:
        """The answer, with all that is known to be missing from it."""
        ran = self.ran
        if LEXICAL in ran and self.unchecked:
            self.degraded.append("lexical: the word index is still being checked")
        if VECTOR in ran:
            self.degraded += [f"vector: {reason}"] if (reason := self.collection.vectors_awaited) else []
        there = [item for item, _ in candidates.best[: self.params.limit] if item in candidates.found]
        scores = self._scores(candidates, there, by_model=reranker is not None and reranker.stage == RERANK)
        likely = [item for item in there if scores[item] >= self.params.min_score]
        words = dict(self.lexical or ())
        return SearchResult(
            hits=[self._hit(candidates, item, scores[item], words.get(item)) for item in likely],
            best=max(scores.values(), default=None),
            unlikely=len(there) - len(likely),
            stages=[*ran, reranker.stage] if reranker is not None and self.reranked else ran,
            degraded=self.degraded,
            source=("hybrid" if len(ran) == 2 else ran[0]) + (f"+{RERANK}" if self.reranked else ""),
            reranked=bool(self.reranked),
            vectors_waiting=self.collection.progress.lacking,
        )

    def _scores(self, candidates: Candidates, items: Sequence[int], *, by_model: bool) -> dict[int, float]:
        """How sure each hit is, by the cross-encoder where that has read it; never surer than one ahead of it."""
        words = dict(self.lexical or ())
        first = next((item for item in items if item in words and candidates.held.get(item)), None)
        # Of hits further down, the share of words that they hold is told by their scores.
        share_of_one = 0.0 if first is None else self._share(candidates.held[first]) / words[first]

        def sure(item: int) -> float:
            if by_model and item in self.reranked:
                return min(1.0, max(0.0, self.reranked[item]))
            if item in candidates.held:
                share = self._share(candidates.held[item])
            else:
                share = min(1.0, words.get(item, 0.0) * share_of_one)
            return relevance(candidates.cosines.get(item), share, len(self.vectors), self.background)

        read = [item for item in items if by_model and item in self.reranked]
        by_reading = falling([sure(item) for item in read])
        rest = [item for item in items if item not in read]
        least = by_reading[-1] if by_reading else 1.0
        others = [min(least, score) for score in falling([*map(sure, rest)])]
        return dict(zip((*read, *rest), (*by_reading, *others), strict=True))

    def _hit(self, candidates: Candidates, item_id: int, score: float, lexical: float | None) -> Hit:
        cosine = candidates.cosines.get(item_id)
        shown = candidates.found[item_id]._asdict()
        del shown["item_id"]
        # More digits are read by a model and say nothing.
        return Hit(
            **shown,
            score=round(score, 6),
            lexical=lexical,
            vector=None if cosine is None else round(cosine, 4),
            rerank=self.reranked.get(item_id),
            matched=candidates.held.get(item_id, []),
        )


def reading(found: Found) -> str:
    """What the cross-encoder reads of an item: where it stands, then its text."""
    return "\n".join(part for part in (found.heading or found.title, found.text) if part)
