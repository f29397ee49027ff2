"""The service with the model of the package: late interaction."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from proto.ops.embed import EmbedMaxSim, EmbedModelParams, EmbedResult, EmbedTexts, TextKind
from services.embed import main as embed
from services.embed.weights import ModelFiles
from tests.in_process import services_in_process

TEXTS = ["Sea stars regrow lost arms.", "The stock market fell on Monday.", "A lost limb of a starfish grows back."]


async def test_late_interaction_prefers_texts_whose_words_answer_the_querys(tmp_path: Path) -> None:
    async with services_in_process({"embed": embed.open_service}, tmp_path) as bench:
        asked = EmbedMaxSim(query="which animals regrow limbs", texts=[*TEXTS, "which animals regrow limbs"])
        scores = (await bench.call(asked)).scores
        assert scores[3] == pytest.approx(1.0, abs=0.02)
        assert scores[1] < min(scores[0], scores[2]) < scores[3]
        again = (await bench.call(EmbedMaxSim(query=asked.query, texts=TEXTS[1:2]))).scores
        # A text's score does not depend on what else is in the batch.
        assert again[0] == pytest.approx(scores[1], abs=0.01)
        # Long texts are more than can be compared in a millisecond, so the first ones are.
        many = EmbedMaxSim(query=asked.query, texts=[*TEXTS, "word " * 200] * 20, within_ms=1)
        in_time = (await bench.call(many)).scores
        assert 1 <= len(in_time) < len(many.texts)
        assert in_time[0] == pytest.approx(scores[0], abs=0.01)


async def test_vectors_have_the_dimensions_of_the_settings_and_earlier_ones_are_still_computed(
    tmp_path: Path, packaged: ModelFiles
) -> None:
    folder = shutil.copytree(packaged.folder, tmp_path / "matryoshka")
    config = folder / "config.json"
    stated = msgspec.json.decode(config.read_bytes(), type=dict[str, Any])
    config.write_bytes(msgspec.json.encode(stated | {"matryoshka_dimensions": [384, 128]}))
    texts = ["a sea star", "the harbour at night"]

    async def asked(dimensions: int | None, fingerprint: str = "") -> tuple[int, EmbedResult]:
        settings = {"embed": {"model": str(folder), "dimensions": dimensions}}
        async with services_in_process({"embed": embed.open_service}, tmp_path / "data", settings=settings) as bench:
            model = await bench.call(EmbedModelParams())
            given = EmbedTexts(texts=texts, kind=TextKind.PASSAGE, fingerprint=fingerprint)
            return model.dimensions, await bench.call(given)

    width, whole = await asked(None)
    assert width == 384
    shorter, cut = await asked(128)
    assert shorter == 128
    assert cut.fingerprint != whole.fingerprint
    vectors = np.frombuffer(cut.vectors.data, np.float32).reshape(cut.vectors.shape)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3)
    expected = np.frombuffer(whole.vectors.data, np.float32).reshape(2, 384)[:, :128]
    assert (vectors * expected).sum(1) / np.linalg.norm(expected, axis=1) == pytest.approx(1, abs=1e-3)
    _, earlier = await asked(128, whole.fingerprint)
    assert earlier.vectors.shape == whole.vectors.shape
