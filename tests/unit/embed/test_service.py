"""The service with the model of the package: late interaction."""

from __future__ import annotations

from pathlib import Path

import pytest

from linckia.proto.ops.embed import EmbedMaxSim
from linckia.services.embed import main as embed
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
