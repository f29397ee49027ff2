"""The service ranks, says what it cut, and without a model says that too."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from proto.errors import InvalidParams, OperationError, Unavailable
from proto.host import extras
from proto.ops.rerank import RerankModelParams, RerankPairs
from services.rerank import main as rerank
from services.rerank.checkpoint import Pair
from services.shared.models.batcher import Rows
from tests.in_process import services_in_process
from tests.unit.rerank.tiny import WORDS, save_cross_encoder

TEXTS = ["cats purr", "dogs bark", "fish swim in water", "cats " * 40]


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, dict[str, object]]:
    return {"rerank": {"model": str(save_cross_encoder(tmp_path / "model")), "precision": "fp32"}}


async def test_texts_come_best_first_and_truncation_is_reported(
    tmp_path: Path, settings: dict[str, dict[str, object]]
) -> None:
    async with services_in_process({"rerank": rerank.open_service}, tmp_path, settings=settings) as bench:
        model = await bench.call(RerankModelParams())
        assert (model.available, model.model, model.device) == (True, "model", "cpu")
        result = await bench.call(RerankPairs(query="who purr", texts=TEXTS))
        scores = [each.score for each in result.ranked]
        assert scores == sorted(scores, reverse=True)
        assert sorted(each.index for each in result.ranked) == [0, 1, 2, 3]
        assert (result.truncated, result.query_truncated) == ([3], False)
        best = await bench.call(RerankPairs(query="who purr", texts=TEXTS, limit=2, bulk=True))
        assert [each.index for each in best.ranked] == [each.index for each in result.ranked][:2]
        assert [each.score for each in best.ranked] == pytest.approx(scores[:2], abs=1e-5)


async def test_only_the_text_at_fault_fails(
    tmp_path: Path, settings: dict[str, dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from services.rerank.model import CrossEncoder

    compute = CrossEncoder.compute

    def failing(self: CrossEncoder, pairs: list[Pair]) -> Rows:
        if any(WORDS.index("bark") in pair.ids for pair in pairs):
            raise RuntimeError("cannot")
        return compute(self, pairs)

    monkeypatch.setattr(CrossEncoder, "compute", failing)
    async with services_in_process({"rerank": rerank.open_service}, tmp_path, settings=settings) as bench:
        with pytest.raises(OperationError, match="text 1 cannot be ranked") as caught:
            await bench.call(RerankPairs(query="who", texts=TEXTS))
        assert caught.value.failure.field == "texts[1]"
        assert len((await bench.call(RerankPairs(query="who", texts=["cats", "fish"]))).ranked) == 2


async def test_without_a_model_it_is_ready_and_says_so_without_any_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was attempted")

    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    async with services_in_process({"rerank": rerank.open_service}, tmp_path) as bench:
        model = await bench.call(RerankModelParams())
        assert not model.available
        assert "linckia models get" in model.reason
        with pytest.raises(Unavailable, match="no reranking model"):
            await bench.call(RerankPairs(query="who", texts=["cats"]))
        assert bench.running["rerank"].info == {"model": "none", "remedy": "linckia models"}


async def test_a_wrong_setting_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with services_in_process({"rerank": rerank.open_service}, tmp_path, settings={"rerank": {"modell": "x"}}):
            pass
    assert caught.group_contains(InvalidParams, match="modell")


async def test_without_torch_it_is_ready_and_names_the_command_that_adds_it(
    tmp_path: Path, settings: dict[str, dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "is_installed", lambda extra: False)
    async with services_in_process({"rerank": rerank.open_service}, tmp_path, settings=settings) as bench:
        model = await bench.call(RerankModelParams())
        assert not model.available
        assert extras.command_for(extras.TORCH) in model.reason
        with pytest.raises(Unavailable, match="need torch"):
            await bench.call(RerankPairs(query="who purr", texts=TEXTS))
