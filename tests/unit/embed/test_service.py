"""The service with the model that everybody has: late interaction, and a rest between two calls."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import trio

from proto.errors import Unavailable
from proto.ops.embed import EmbedMaxSim, EmbedResult, EmbedTexts, TextKind
from services.embed import main as embed
from services.embed import model
from services.embed.encoder import Vectors
from services.embed.model import TorchEncoder
from services.embed.weights import ModelFiles
from services.runtime.models.device import Precision
from services.runtime.models.tokens import Ids
from services.runtime.testing import services_in_process

TEXTS = ["Sea stars regrow lost arms.", "The stock market fell on Monday.", "A lost limb of a starfish grows back."]


def row(result: EmbedResult) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.frombuffer(result.vectors.data, dtype=np.float32)


async def test_late_interaction_prefers_texts_whose_words_answer_the_querys(tmp_path: Path) -> None:
    async with services_in_process({"embed": embed.open_service}, tmp_path) as bench:
        asked = EmbedMaxSim(query="which animals regrow limbs", texts=[*TEXTS, "which animals regrow limbs"])
        scores = (await bench.call(asked)).scores
        assert scores[3] == pytest.approx(1.0, abs=0.02)
        assert scores[1] < min(scores[0], scores[2]) < scores[3]
        again = (await bench.call(EmbedMaxSim(query=asked.query, texts=TEXTS[1:2]))).scores
        # A text's score does not depend on what else is in the batch.
        assert again[0] == pytest.approx(scores[1], abs=0.01)


async def test_a_model_that_rested_answers_as_it_did_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []

    class Counted(TorchEncoder):
        def __init__(self, files: ModelFiles, *, device: str, precision: Precision) -> None:
            loads.append(device)
            super().__init__(files, device=device, precision=precision)

    monkeypatch.setattr(model, "TorchEncoder", Counted)
    settings = {"embed": {"unload_after_s": 0.1}}
    async with services_in_process({"embed": embed.open_service}, tmp_path, settings=settings) as bench:
        asked = EmbedTexts(texts=TEXTS[:1], kind=TextKind.QUERY)
        before = await bench.call(asked)
        with trio.fail_after(30):
            while len(loads) < 2:
                await trio.sleep(0.3)
                after = await bench.call(asked)
        assert float(row(before) @ row(after)) > 0.999


async def test_a_model_that_changed_while_it_rested_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other(TorchEncoder):
        def compute(self, sequences: Sequence[Ids]) -> Vectors:
            return -super().compute(sequences)

    settings = {"embed": {"unload_after_s": 0.1}}
    with pytest.RaisesGroup(pytest.RaisesExc(Unavailable, match="ended while"), flatten_subgroups=True):
        async with services_in_process({"embed": embed.open_service}, tmp_path, settings=settings) as bench:
            monkeypatch.setattr(model, "TorchEncoder", Other)
            with trio.fail_after(30):
                while True:
                    await trio.sleep(0.3)
                    await bench.call(EmbedTexts(texts=TEXTS[:1], kind=TextKind.QUERY))
