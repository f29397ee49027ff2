"""`embed` and `retrieve` together over their links, with the real model: put, wait, find; kill one, and search on."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from proto.errors import InvalidParams
from proto.ops.embed import EmbedModelParams, EmbedTexts
from proto.ops.retrieve import (
    Fusion,
    Group,
    Item,
    RetrieveDelete,
    RetrieveGroups,
    RetrievePut,
    RetrieveSearch,
    RetrieveStatus,
    SearchResult,
)
from services.embed import weights
from services.embed.main import open_service as open_embed
from services.rerank.main import open_service as open_rerank
from services.retrieve.main import open_service as open_retrieve
from tests.in_process import Bench, services_in_process
from tests.unit.rerank.tiny import save_cross_encoder

pytest.importorskip(weights.PACKAGED[0], reason="the package with the model's weights is not installed")

SERVICES = {"embed": open_embed, "retrieve": open_retrieve}
NOTES = [
    Group(id="pets", items=[Item(key="0", text="A kitten is sleeping on the warm windowsill.")]),
    Group(id="code", items=[Item(key="0", text="def parseHttpRequest(raw): return os.path.join(root, raw)")]),
    Group(id="food", items=[Item(key="0", text="Simmer the tomatoes with basil for twenty minutes.")]),
]


async def all_embedded(bench: Bench) -> None:
    with trio.fail_after(60):
        while (await bench.call(RetrieveStatus(collection="notes"))).vectors_waiting:  # noqa: ASYNC110
            # The state is the service's; a client of it can only ask.
            await trio.sleep(0.01)


async def by_meaning(bench: Bench, query: str, *further: str) -> SearchResult:
    """The answer once all stages came in time: on a busy machine that may take more than one search."""
    with trio.fail_after(60):
        while True:
            found = await bench.call(RetrieveSearch(collection="notes", query=query))
            if {"vector", *further} <= set(found.stages):
                return found
            await trio.sleep(0.1)


@pytest.mark.slow
async def test_meaning_and_words_are_found_and_search_outlives_the_embedder(tmp_path: Path) -> None:
    async with services_in_process(SERVICES, tmp_path, settings={"retrieve": {"rerank": "off"}}) as bench:
        put = await bench.call(RetrievePut(collection="notes", groups=NOTES))
        assert put.vectors_waiting == 3
        code = await bench.call(
            RetrieveSearch(collection="notes", query="http request", fusion=Fusion(method="lexical"))
        )
        assert [hit.group for hit in code.hits] == ["code"]
        await all_embedded(bench)
        meaning = await by_meaning(bench, "young cat taking a nap")
        assert meaning.hits[0].group == "pets"
        assert (meaning.stages, meaning.source, meaning.degraded) == (["lexical", "vector"], "hybrid", [])
        await bench.stop("embed")
        words = await bench.call(RetrieveSearch(collection="notes", query="tomatoes and basil"))
        assert [hit.group for hit in words.hits] == ["food"]
        assert words.source == "lexical"
        assert words.degraded[0].startswith("vector: ")
        more = Group(id="more", items=[Item(key="0", text="Trains leave the station at noon.")])
        await bench.call(RetrievePut(collection="notes", groups=[more]))
        await bench.start("embed")
        await all_embedded(bench)
        again = await by_meaning(bench, "railway timetable")
        assert again.hits[0].group == "more"


@pytest.mark.slow
async def test_a_restart_of_retrieve_loses_nothing(tmp_path: Path) -> None:
    async with services_in_process(SERVICES, tmp_path) as bench:
        await bench.call(RetrievePut(collection="notes", groups=NOTES))
        await bench.stop("retrieve")
        await bench.start("retrieve")
        await all_embedded(bench)
        status = await bench.call(RetrieveStatus(collection="notes"))
        assert (status.groups, status.items, status.vectors, status.index) == (3, 3, 3, "flat")
        assert (await bench.call(RetrieveGroups(collection="notes"))).ids == ["code", "food", "pets"]
        await bench.call(RetrieveDelete(collection="notes", groups=["pets", "pets", "none"]))
        assert (await bench.call(RetrieveGroups(collection="notes"))).ids == ["code", "food"]


async def test_a_collection_that_was_never_written_is_empty_and_makes_no_file(tmp_path: Path) -> None:
    async with services_in_process({"retrieve": open_retrieve}, tmp_path) as bench:
        assert (await bench.call(RetrieveSearch(collection="ghost", query="x"))).hits == []
        assert (await bench.call(RetrieveStatus(collection="ghost"))).items == 0
        assert (await bench.call(RetrieveGroups(collection="ghost"))).ids == []
        assert (await bench.call(RetrieveDelete(collection="ghost", groups=["a"]))).epoch == ""
        assert list((tmp_path / "retrieve").iterdir()) == []


async def test_embed_returns_unit_vectors_and_reports_truncation(tmp_path: Path) -> None:
    async with services_in_process({"embed": open_embed}, tmp_path) as bench:
        model = await bench.call(EmbedModelParams())
        result = await bench.call(EmbedTexts(texts=["cat", "word " * 1000]))
        assert result.vectors.shape == (2, model.dimensions)
        assert (result.truncated, result.tokens) == ([1], 3 + model.max_tokens)
        assert result.fingerprint == model.fingerprint


async def test_a_setting_that_is_unknown_is_named(tmp_path: Path) -> None:
    with pytest.raises(BaseExceptionGroup) as caught:
        async with services_in_process({"embed": open_embed}, tmp_path, settings={"embed": {"modle": "auto"}}):
            pass
    assert caught.group_contains(InvalidParams, match="modle")


@pytest.mark.slow
async def test_a_search_is_reranked_by_the_cross_encoder_and_survives_its_death(tmp_path: Path) -> None:
    model = str(save_cross_encoder(tmp_path / "model"))
    services = {**SERVICES, "rerank": open_rerank}
    asked = RetrieveSearch(collection="notes", query="young cat taking a nap")
    async with services_in_process(services, tmp_path, settings={"rerank": {"model": model}}) as bench:
        await bench.call(RetrievePut(collection="notes", groups=NOTES))
        await all_embedded(bench)
        found = await by_meaning(bench, asked.query, "rerank")
        assert (found.reranked, found.source, found.degraded) == (True, "hybrid+rerank", [])
        assert all(hit.score == pytest.approx(hit.rerank, abs=1e-6) for hit in found.hits)
        await bench.stop("rerank")
        fused = await bench.call(asked)
        assert (fused.reranked, fused.source, fused.hits[0].group) == (False, "hybrid", "pets")
        assert fused.degraded == ["rerank: service rerank is not running"]


async def test_without_a_cross_encoder_the_fused_order_is_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    async with services_in_process({**SERVICES, "rerank": open_rerank}, tmp_path) as bench:
        await bench.call(RetrievePut(collection="notes", groups=NOTES))
        await all_embedded(bench)
        found = await bench.call(RetrieveSearch(collection="notes", query="young cat taking a nap"))
        assert (found.reranked, found.source, found.degraded) == (False, "hybrid", [])
