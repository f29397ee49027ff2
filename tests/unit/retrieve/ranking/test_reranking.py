"""The cross-encoder orders the results within its own time limit; without it the fused order stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from proto.errors import LinckiaError, Timeout, Unavailable
from proto.operation import Params
from proto.ops.embed import EmbedMaxSim, MaxSimResult
from proto.ops.rerank import Ranked, RerankModel, RerankModelParams, RerankPairs, RerankResult
from proto.ops.retrieve import Fusion, RetrieveSearch, SearchResult
from services.retrieve.local_collection import LocalCollection
from services.retrieve.ranking.queries import Patience
from services.retrieve.ranking.reranking import LateReranker, Pace, Reranker
from services.retrieve.ranking.search import search
from tests.unit.retrieve.rig import WordEmbedder, embedded, group, opened

CORPUS = [group(f"g{n}", f"cats number{n} " + "word " * n, title=f"T{n}") for n in range(12)]


class ScriptedRerank:
    """Stands in for `rerank`; longer texts rank higher."""

    def __init__(self, *, available: bool = True, tokens_per_s: float = 1e6) -> None:
        self.model = RerankModel(
            available=available, model="scripted", max_tokens=512, tokens_per_s=tokens_per_s, device="cpu"
        )
        self.failure: LinckiaError | None = None
        self.hangs = False
        self.asked: list[RerankPairs] = []
        self.looked = 0

    async def __call__(self, params: Params[Any], *, timeout_s: float | None = None) -> Any:
        await trio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure
        if isinstance(params, RerankModelParams):
            self.looked += 1
            return self.model
        assert isinstance(params, RerankPairs)
        self.asked.append(params)
        if self.hangs:
            await trio.sleep_forever()
        order = sorted(range(len(params.texts)), key=lambda index: -len(params.texts[index]))
        ranked = [Ranked(index=index, score=1 / (2 + place)) for place, index in enumerate(order)]
        return RerankResult(ranked=ranked, model="scripted")


async def find(
    collection: LocalCollection,
    call: ScriptedRerank | None,
    *,
    within_s: float = 2.0,
    limit: int = 12,
    candidates: int = 50,
) -> SearchResult:
    embedder = WordEmbedder()
    if not len(collection.vectors):
        await collection.put(CORPUS)
        await embedded(collection, embedder)
    asked = RetrieveSearch(collection="notes", query="cats number3", limit=limit, candidates=candidates)
    reranker = None if call is None else Reranker(call, Pace(within_s))
    return await search(collection, asked, embedder.query, Patience(5), lambda: None, reranker)


def names(result: SearchResult) -> list[str]:
    return [hit.group for hit in result.hits]


async def test_the_best_come_in_the_order_of_the_cross_encoder(tmp_path: Path) -> None:
    call = ScriptedRerank()
    async with opened(tmp_path) as collection:
        result = await find(collection, call, limit=5)
    assert names(result) == ["g11", "g10", "g9", "g8", "g7"]
    assert (result.stages, result.source) == (["lexical", "vector", "rerank"], "hybrid+rerank")
    assert (result.reranked, result.degraded) == (True, [])
    assert [hit.rerank for hit in result.hits] == [1 / n for n in range(2, 7)]
    assert [hit.score for hit in result.hits] == [round(1 / n, 6) for n in range(2, 7)]
    assert call.asked[0].query == "cats number3"
    assert len(call.asked[0].texts) == 12
    assert any(text.startswith("T3\ncats number3") for text in call.asked[0].texts)


async def test_items_that_were_not_reranked_follow_in_their_order_with_lower_scores(tmp_path: Path) -> None:
    async with opened(tmp_path) as collection:
        fused = await find(collection, None, candidates=4)
        result = await find(collection, ScriptedRerank(), candidates=4)
    assert sorted(names(result)[:4]) == sorted(names(fused)[:4])
    assert names(result)[4:] == names(fused)[4:]
    assert [hit.rerank is None for hit in result.hits] == [False] * 4 + [True] * 8
    scores = [hit.score for hit in result.hits]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)


@pytest.mark.parametrize("late", [False, True])
async def test_items_rewritten_during_reranking_are_returned_in_their_new_form(tmp_path: Path, late: bool) -> None:
    call = ScriptedRerank()

    async def meanwhile(params: Params[Any], *, timeout_s: float | None = None) -> Any:
        answer = await call(params, timeout_s=timeout_s)
        if isinstance(params, RerankPairs):
            await collection.put([group("g3", "cats number3 in other words", title="T3")])
            await collection.delete(["g4"])
            if late:
                raise Timeout("too late")
        return answer

    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        await collection.put(CORPUS)
        await embedded(collection, embedder)
        asked = RetrieveSearch(collection="notes", query="cats number3", limit=12)
        reranker = Reranker(meanwhile, Pace(2.0))
        result = await search(collection, asked, embedder.query, Patience(5), lambda: None, reranker)
    assert sorted(names(result)) == sorted(each.id for each in CORPUS if each.id != "g4")
    assert next(hit.text for hit in result.hits if hit.group == "g3") == "cats number3 in other words"


async def test_without_a_model_the_fused_order_stands_and_nothing_is_degraded(tmp_path: Path) -> None:
    async with opened(tmp_path) as collection:
        fused = await find(collection, None)
        result = await find(collection, ScriptedRerank(available=False))
    assert result == fused
    assert (result.reranked, result.source, result.degraded) == (False, "hybrid", [])


@pytest.mark.parametrize("failure", [Unavailable("service rerank is failed: a crash loop"), Timeout("too late")])
async def test_while_the_reranker_is_down_the_fused_order_stands_with_the_reason(
    tmp_path: Path, failure: LinckiaError
) -> None:
    call = ScriptedRerank()
    call.failure = failure
    async with opened(tmp_path) as collection:
        fused = await find(collection, None)
        result = await find(collection, call)
    assert names(result) == names(fused)
    assert (result.stages, result.reranked) == (["lexical", "vector"], False)
    assert result.degraded == [f"rerank: {failure.failure.message}"]


async def test_a_search_waits_for_the_reranker_only_within_its_time_limit(tmp_path: Path) -> None:
    call = ScriptedRerank()
    call.hangs = True
    async with opened(tmp_path) as collection:
        result = await find(collection, call, within_s=0.05)
    assert result.degraded == ["rerank: no reply within 0.05 s"]
    assert len(result.hits) == 12
    assert not result.reranked


async def test_a_hanging_reranker_costs_one_search_its_time_limit_and_later_ones_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    call, pace = ScriptedRerank(), Pace(2.0)
    call.hangs = True
    started = trio.current_time()
    assert (await Reranker(call, pace).rank("q", ["a", "b"])).degraded == "no reply within 2 s"
    for _ in range(10):
        order = await Reranker(call, pace).rank("q", ["a", "b"])
        assert order.degraded == "skipped because it timed out recently"
    assert trio.current_time() - started == pytest.approx(2.0)
    call.hangs = False
    await trio.sleep(Pace.PAUSE_S)
    assert len((await Reranker(call, pace).rank("q", ["a", "b"])).ranked) == 2


async def test_a_slow_model_reranks_only_the_best_candidates_and_the_answer_says_so() -> None:
    # 200 tokens/s for 2 s, of which 0.6 are planned for: 240 tokens.
    order = await Reranker(ScriptedRerank(tokens_per_s=200), Pace(2.0)).rank("q", ["word " * 30] * 20)
    assert sorted(ranked.index for ranked in order.ranked) == [0, 1, 2, 3]
    assert order.degraded == "only the best 4 of 20 candidates could be read in time"
    order = await Reranker(ScriptedRerank(tokens_per_s=10), Pace(2.0)).rank("q", ["word " * 30] * 20)
    assert (order.ranked, order.degraded) == (
        [],
        "the model is too slow on this machine to read candidates in time",
    )


async def test_after_a_timeout_fewer_candidates_are_reranked_and_gradually_more_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    call, pace = ScriptedRerank(tokens_per_s=200), Pace(2.0)
    texts = ["word " * 30] * 20
    call.hangs = True
    await Reranker(call, pace).rank("q", texts)
    call.hangs = False
    await trio.sleep(Pace.PAUSE_S)
    for _ in range(20):
        await Reranker(call, pace).rank("q", texts)
    asked = [len(pairs.texts) for pairs in call.asked]
    assert asked[:2] == [4, 2]
    assert asked[-1] == 4


async def test_the_model_is_asked_about_now_and_then_and_not_for_each_search(
    autojump_clock: trio.testing.MockClock,
) -> None:
    call, pace = ScriptedRerank(available=False), Pace(2.0)
    for _ in range(20):
        assert (await Reranker(call, pace).rank("q", ["a", "b"])).ranked == []
        await trio.sleep(1)
    assert call.looked == 2
    call.model = ScriptedRerank().model
    await trio.sleep(10)
    assert len((await Reranker(call, pace).rank("q", ["a", "b"])).ranked) == 2


async def test_a_resting_reranker_without_a_model_does_not_degrade_a_search(
    autojump_clock: trio.testing.MockClock,
) -> None:
    call, pace = ScriptedRerank(available=False), Pace(2.0)
    await Reranker(call, pace).rank("q", ["a", "b"])
    call.failure = Unavailable("service rerank is starting")
    await trio.sleep(60)
    order = await Reranker(call, pace).rank("q", ["a", "b"])
    assert (order.ranked, order.degraded) == ([], "")
    call.failure, call.model = None, ScriptedRerank().model
    assert len((await Reranker(call, pace).rank("q", ["a", "b"])).ranked) == 2


async def test_a_search_by_words_alone_is_not_reranked(tmp_path: Path) -> None:
    call = ScriptedRerank()
    async with opened(tmp_path) as collection:
        await collection.put(CORPUS)
        asked = RetrieveSearch(collection="notes", query="cats", fusion=Fusion(method="lexical"))
        result = await search(
            collection, asked, WordEmbedder().query, Patience(5), lambda: None, Reranker(call, Pace(2.0))
        )
    assert (result.stages, result.source, result.reranked, call.asked) == (["lexical"], "lexical", False, [])


class ScriptedMaxSim:
    """Answers `embed_maxsim` with these scores, or fails."""

    def __init__(self, *scores: float, failure: LinckiaError | None = None) -> None:
        self.scores, self.failure = list(scores), failure

    async def __call__(self, params: Params[Any], *, timeout_s: float | None = None) -> Any:
        await trio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure
        return MaxSimResult(scores=self.scores)


async def test_late_interaction_has_half_a_say_in_the_order() -> None:
    order = await LateReranker(ScriptedMaxSim(0.1, 0.9, 0.5), Pace(2.0)).rank("q", ["a", "b", "c"], [1.0, 0.6, 0.0])
    assert [(each.index, round(each.score, 3)) for each in order.ranked] == [(1, 0.8), (0, 0.5), (2, 0.25)]


async def test_late_interaction_that_fails_leaves_the_fused_order_and_says_why() -> None:
    call = ScriptedMaxSim(failure=Unavailable("embed is down"))
    order = await LateReranker(call, Pace(2.0)).rank("q", ["a", "b"], [1.0, 0.5])
    assert (order.ranked, order.degraded) == ([], "embed is down")


async def test_slow_late_interaction_gets_fewer_texts_and_gradually_more_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    asked: list[int] = []

    async def call(params: Params[Any], *, timeout_s: float | None = None) -> Any:
        assert isinstance(params, EmbedMaxSim)
        asked.append(len(params.texts))
        # As long as 20 texts take, there is time.
        await trio.sleep(0.1 * len(params.texts) - 0.05)
        return MaxSimResult(scores=[index / 100 for index in range(len(params.texts))])

    pace, texts, fused = Pace(2.0), ["word"] * 50, [1 - index / 100 for index in range(50)]
    for _ in range(8):
        order = await LateReranker(call, pace).rank("q", texts, fused)
        if asked[-1] > 20:
            assert (order.ranked, order.degraded) == ([], "no reply within 2 s")
            await trio.sleep(Pace.PAUSE_S)
        else:
            assert len(order.ranked) == asked[-1]
            assert order.degraded == f"only the best {asked[-1]} of 50 candidates could be read in time"
    assert asked[:5] == [50, 25, 12, 14, 15]
    assert max(asked[2:]) <= 22


async def test_late_interaction_reports_the_number_of_texts_scored_in_time() -> None:
    order = await LateReranker(ScriptedMaxSim(0.1, 0.9), Pace(2.0)).rank("q", ["a", "b", "c"], [1.0, 0.6, 0.0])
    assert [each.index for each in order.ranked] == [1, 0]
    assert order.degraded == "only the best 2 of 3 candidates could be read in time"


async def test_a_search_by_late_interaction_says_so(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    async with opened(tmp_path) as collection:
        await collection.put([group("one", "cats purr"), group("two", "cats sleep")])
        await embedded(collection, embedder)
        found = await search(
            collection,
            RetrieveSearch(collection="notes", query="cats"),
            embedder.query,
            Patience(5.0),
            lambda: None,
            LateReranker(ScriptedMaxSim(0.2, 0.7), Pace(2.0)),
        )
        assert found.stages == ["lexical", "vector", "maxsim"]
        assert (found.source, found.reranked) == ("hybrid+rerank", True)
