"""Hybrid search: words and vectors in parallel, fused and grouped.

If one stage fails, is slow or is absent, the other one supplies the results and `degraded` says why. The search fails
only if both do, so an empty result always means that nothing was found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import trio

from proto.errors import Kind, LinckiaError, Unavailable
from proto.ops.embed import EmbedResult, EmbedTexts, TextKind
from proto.ops.retrieve import NEAREST, UNLIKELY, Hit, RetrieveSearch, SearchResult
from services.retrieve.collection import Collection
from services.retrieve.index.lexical import WordsDamaged
from services.retrieve.index.vectors import Matrix
from services.retrieve.item_store import ItemDetails
from services.retrieve.ranking import fusion
from services.retrieve.ranking.queries import Patience, QueryCall
from services.retrieve.ranking.relevance import LEAST_SPREAD, PACKAGED, non_increasing, relevance
from services.retrieve.ranking.reranking import RERANK, LateReranker, Reranker
from services.retrieve.ranking.surroundings import MEANING, NEAR, Around, look_around, raised
from services.retrieve.store import FoundWords, SearchedVectors, Snapshot, VectorsLoading

LEXICAL, VECTOR = "lexical", "vector"

MAX_CANDIDATES = 100_000

SAMPLED_PIECES, SAMPLED_CHARS = 8, 600
"""Pieces per stage, and characters of each, that are examined to tell code from prose."""

MATCHED_HITS = 20
"""Number of hits that list the query words they hold."""

_MODELS = 3
"""Maximum number of embedding attempts: the model in use, the model of the vectors, and another if that has changed."""

_LOAD_WAIT_S = 2.0
_LOADING = "vector: vectors are still being loaded"


async def search(
    collection: Collection,
    params: RetrieveSearch,
    embed: QueryCall,
    patience: Patience,
    repair: Callable[[], object],
    reranker: Reranker | LateReranker | None = None,
) -> SearchResult:
    """Run one search on a collection.

    Args:
        embed: embeds the query.
        repair: called if the word index is damaged.
        reranker: reorders the best candidates.  If it is None or only words are searched, the fused order stays.

    Raises:
        Unavailable: all requested stages failed.
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
    """The best piece of each group, best first, with details of as many as are wanted."""

    best: list[tuple[int, float]]
    found: dict[int, ItemDetails]
    cosines: dict[int, float]
    held: dict[int, list[str]]
    """The query words that each of the first pieces holds."""


class _Search:
    """The state of one search."""

    def __init__(self, collection: Collection, params: RetrieveSearch, embed: QueryCall, patience: Patience) -> None:
        self.collection = collection
        self.params = params
        self.embed = embed
        self.patience = patience
        self.depth = max(params.candidates, params.limit)
        """Initial number of pieces that each stage returns."""
        self.wanted = params.limit
        """Number of groups whose details are read."""
        self.texts: int | None = None
        """Number of groups read with the text of their pieces; None means all wanted ones."""
        self.lexical: list[tuple[int, float]] | None = None
        self.unchecked = False
        """Whether `lexical` may be incomplete because the index is not checked yet."""
        self.words_failed = False
        self.vector: list[tuple[int, float]] | None = None
        self.query: Matrix | None = None
        self.vectors: SearchedVectors | None = None
        """The vectors that the query is compared with; None if there is no query vector."""
        self.background = PACKAGED
        """See `relevance`."""
        self.fluency = 1.0
        """See `fusion.fluency`."""
        self.weights: dict[str, float] | None = None
        """Weights of the query's words."""
        self.reranked: dict[int, float] = {}
        self.degraded = [collection.refilling] if collection.refilling else []

    @property
    def ran(self) -> list[str]:
        """The retrieval stages that ran, without reranking."""
        return [name for name, found in ((LEXICAL, self.lexical), (VECTOR, self.vector)) if found is not None]

    # Finding

    async def candidates(self) -> Candidates:
        """Run the requested stages, with the other one as fallback, and choose from their results.

        Raises:
            Unavailable: no stage succeeded.
        """
        method = self.params.fusion.method
        if method == LEXICAL:
            # Find and choose in one thread call: a second would queue behind all waiting searches.
            chosen: list[Candidates] = []
            await self._find_words(lambda store: chosen.append(self._choose(store)))
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

    async def _find_words(self, then: Callable[[Snapshot], object] = lambda _: None) -> None:
        def keep(store: Snapshot, found: FoundWords) -> None:
            self.lexical, self.unchecked = found
            then(store)

        try:
            await self.collection.find_words(self.params.query, self.depth, self.params.filters, keep)
        except WordsDamaged as error:
            self._words_failed(error)
        except LinckiaError as error:
            self.degraded.append(f"lexical: {error.failure.message}")

    def _words_failed(self, error: WordsDamaged) -> None:
        self.words_failed = True
        self.degraded = [*dict.fromkeys((*self.degraded, f"lexical: {error}"))]

    async def _embed_query(self) -> None:
        """Embed the query; on failure, say why in `degraded`."""
        try:
            self.query = await self._query_vector()
            if self.query is None and (awaited := self.collection.vectors_awaited):
                self.degraded.append(f"vector: {awaited}")
        except LinckiaError as error:
            self.degraded.append(f"vector: {error.failure.message}{self.collection.coming_progress}")
        except trio.TooSlowError:
            self.degraded.append(f"vector: embedding the query timed out{self.collection.coming_progress}")
        except VectorsLoading:
            self.degraded.append(_LOADING)

    async def _query_vector(self) -> Matrix | None:
        """Return the query's vector; None if the collection has no vectors yet."""
        collection = self.collection
        if not collection.loaded.is_set():
            with trio.move_on_after(_LOAD_WAIT_S):
                await collection.until_loaded()
            if not collection.loaded.is_set():
                raise VectorsLoading
        if not collection.vector_count:
            return None
        for _ in range(_MODELS):
            earlier = "" if collection.coming is None else collection.fingerprint or ""
            result = await self._embedded(earlier)
            if not collection.vector_count:
                await collection.adopt(result.fingerprint, result.vectors.shape[1])
                return None
            index = collection.searched_vectors()
            if result.fingerprint == index.model.fingerprint:
                result.vectors.check()
                self.vectors = index
                self.background = result.background or PACKAGED
                self.fluency = fusion.fluency(result.tokens_per_letter)
                return np.frombuffer(result.vectors.data, dtype=result.vectors.dtype).astype(np.float32)
            # The vectors are of another model, or were replaced while the query was embedded.
            if not earlier:
                await collection.adopt(result.fingerprint, result.vectors.shape[1])
        raise VectorsLoading

    async def _embedded(self, fingerprint: str) -> EmbedResult:
        """Embed the query with the model in use, or with the earlier model `fingerprint`."""
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
        return Unavailable("all search stages failed: " + "; ".join(self.degraded), retry_after_ms=1000)

    # Choosing, on one snapshot in one thread call; these methods block

    def _choose(self, store: Snapshot) -> Candidates:
        """Run everything between the query's vector and the texts of the best pieces."""
        depth = self.depth
        looked_again = False
        while True:
            if self.query is not None and self.vectors is not None:
                self.vector = store.nearest(self.vectors, self.query, depth, self.params.filters)
            found = dict.fromkeys(item for stage in (self.lexical, self.vector) if stage for item, _ in stage)
            groups = store.groups_of(list(found))
            around: Around | None = None
            if self.params.around is not None:
                first = {item for stage in (self.lexical, self.vector) if stage for item, _ in stage[:NEAR]}
                nearest = {groups[item] for item in first if item in groups}
                around = look_around(store, [*nearest], self.params.around, self.params.filters)
                groups |= around.pieces
            fused = self._fuse(store, around)
            if self.lexical is not None and not looked_again and any(item not in groups for item, _ in self.lexical):
                # A note was replaced while the query was embedded, so its pieces have new ids.
                looked_again = True
                self._search_words_again(store, depth)
                continue
            if around is not None and self.params.around is not None:
                wholes = store.values([*{*groups.values()}], self.params.around.whole)
                fused = raised(fused, groups, around, wholes)
            best = fusion.best_of_groups(fused, groups)
            full = any(stage is not None and len(stage) >= depth for stage in (self.lexical, self.vector))
            if len(best) >= self.params.limit or not full or depth >= MAX_CANDIDATES:
                break
            # The pieces belong to too few groups: look deeper.
            depth = min(4 * depth, MAX_CANDIDATES)
            self._search_words_again(store, depth)
        bare = store.never_embedded([item for item, _ in best[: self.wanted]])
        best = fusion.prefer_embedded(best, groups, self.lexical or (), bare)
        ids = [item for item, _ in best[: self.wanted]]
        return Candidates(
            best, store.items(ids, self.texts), self._cosines(store, ids), self._held(store, ids[:MATCHED_HITS])
        )

    def _cosines(self, store: Snapshot, ids: Sequence[int]) -> dict[int, float]:
        if self.query is None or self.vectors is None:
            return {}
        return store.cosines(self.vectors, self.query, ids)

    def _held(self, store: Snapshot, ids: Sequence[int]) -> dict[int, list[str]]:
        try:
            if self.weights is None:
                self.weights = store.weights(self.params.query)
            return store.held(self.weights, ids)
        except WordsDamaged as error:
            self._words_failed(error)
            return {}

    def _share(self, held: Sequence[str]) -> float:
        """Return the weight of these words as a share of the whole query's."""
        weights = self.weights or {}
        return sum(weights[term] for term in held) / sum(weights.values()) if weights else 0.0

    def _search_words_again(self, store: Snapshot, depth: int) -> None:
        if self.lexical is None:
            return
        try:
            self.lexical, self.unchecked = store.find_words(self.params.query, depth, self.params.filters)
        except WordsDamaged as error:
            # Keep the earlier results.
            self._words_failed(error)

    def _fuse(self, store: Snapshot, around: Around | None) -> dict[int, float]:
        if self.lexical is None or self.vector is None:
            alone = dict(self.lexical or self.vector or ())
            return alone if around is None else fusion.standardised(alone)
        if self.params.fusion.method == "rrf":
            return fusion.reciprocal_rank(self.lexical, self.vector)
        cosines = dict(self.vector)
        if self.query is not None:
            by_words = [item for item, _ in self.lexical]
            others = by_words if around is None else [*by_words, *around.pieces]
            cosines |= self._cosines(store, [item for item in others if item not in cosines])
            average = sum(cosines.values()) / max(1, len(cosines))
            lent = self._by_siblings(store, [item for item in by_words if item not in cosines])
            # The rest of the group may be about something else, so it never lowers a piece below the average.
            cosines |= {item: max(average, cosine) for item, cosine in lent.items()}
        weight = self.params.fusion.vector_weight
        if weight is None:
            looked_at = [item for stage in (self.lexical, self.vector) for item, _ in stage[:SAMPLED_PIECES]]
            texts = store.beginnings(looked_at, SAMPLED_CHARS)
            weight = fusion.vector_weight(self.lexical, cosines, max(self.background[1], LEAST_SPREAD), texts)
            weight *= self.fluency if around is None else self.fluency * MEANING
        return fusion.weighted(self.lexical, cosines, weight, partial(self._shares, store))

    def _shares(self, store: Snapshot, items: Sequence[int]) -> dict[int, float]:
        return {item: self._share(held) for item, held in self._held(store, items).items()}

    def _by_siblings(self, store: Snapshot, ids: Sequence[int]) -> dict[int, float]:
        """Return the best cosine among the siblings of each piece that has no vector."""
        siblings = store.siblings(ids) if ids else {}
        others = list({other for each in siblings.values() for other in each})
        cosines = self._cosines(store, others)
        known = {item: [cosines[other] for other in each if other in cosines] for item, each in siblings.items()}
        return {item: max(of_others) for item, of_others in known.items() if of_others}

    # Reranking and results

    async def rerank(self, candidates: Candidates, reranker: Reranker | LateReranker) -> Candidates:
        """Return the reranked candidates, followed by the others in their fused order."""
        best, found = candidates.best, candidates.found
        read = [(item, score) for item, score in best[: self.params.candidates] if item in found]
        texts = [reading(found[item]) for item, _ in read]
        order = await reranker.rank(self.params.query, texts, fusion.normalised([score for _, score in read]))
        if order.degraded:
            self.degraded.append(f"{reranker.stage}: {order.degraded}")
        self.reranked = {read[ranked.index][0]: ranked.score for ranked in order.ranked}
        # Items that were not reranked keep their order, below those that were.
        best = [*self.reranked.items(), *((item, score) for item, score in best if item not in self.reranked)]
        # Reranking takes a while: leave out items removed in the meantime.
        answered = [item for item, _ in best[: self.params.limit]]
        now = await self.collection.items(answered, self.params.texts)
        if gone := {item: found[item] for item in answered if item not in now and item in found}:
            # Return the current content of a note that was replaced.
            now |= await self.collection.read(lambda store: store.successors(gone))
        return candidates._replace(best=best, found=now)

    def result(self, candidates: Candidates, reranker: Reranker | LateReranker | None) -> SearchResult:
        """Build the result, with everything that is known to be missing."""
        ran = self.ran
        if LEXICAL in ran and self.unchecked:
            self.degraded.append("lexical: the word index is still being checked")
        if VECTOR in ran:
            self.degraded += [f"vector: {reason}"] if (reason := self.collection.vectors_awaited) else []
        there = [item for item, _ in candidates.best[: self.params.limit] if item in candidates.found]
        scores = self._scores(candidates, there, by_model=reranker is not None and reranker.stage == RERANK)
        likely = [item for item in there if scores[item] >= self.params.min_score]
        if not likely and self.params.min_score <= UNLIKELY:
            likely = there[:NEAREST]
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
        """Return the relevance of each hit, from the cross-encoder if it read the hit.  Scores never increase."""
        words = dict(self.lexical or ())
        first = next((item for item in items if item in words and candidates.held.get(item)), None)
        # For hits further down, the share of words is estimated from their scores.
        share_of_one = 0.0 if first is None else self._share(candidates.held[first]) / words[first]

        def sure(item: int) -> float:
            if by_model and item in self.reranked:
                return min(1.0, max(0.0, self.reranked[item]))
            if item in candidates.held:
                share = self._share(candidates.held[item])
            else:
                share = min(1.0, words.get(item, 0.0) * share_of_one)
            compared = 0 if self.vectors is None else len(self.vectors)
            return relevance(candidates.cosines.get(item), share, compared, self.background)

        read = [item for item in items if by_model and item in self.reranked]
        by_reading = non_increasing([sure(item) for item in read])
        rest = [item for item in items if item not in read]
        least = by_reading[-1] if by_reading else 1.0
        others = [min(least, score) for score in non_increasing([*map(sure, rest)])]
        return dict(zip((*read, *rest), (*by_reading, *others), strict=True))

    def _hit(self, candidates: Candidates, item_id: int, score: float, lexical: float | None) -> Hit:
        cosine = candidates.cosines.get(item_id)
        shown = candidates.found[item_id]._asdict()
        del shown["item_id"]
        # More digits would only cost the model tokens.
        return Hit(
            **shown,
            score=round(score, 6),
            lexical=lexical,
            vector=None if cosine is None else round(cosine, 4),
            rerank=self.reranked.get(item_id),
            matched=candidates.held.get(item_id, []),
        )


def reading(found: ItemDetails) -> str:
    """Return the text that the cross-encoder reads for an item: its heading or title, then its text."""
    return "\n".join(part for part in (found.heading or found.title, found.text) if part)
