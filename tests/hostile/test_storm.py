"""With the implant in all services at once, the kernel lives, answers, and stays within its memory."""

from __future__ import annotations

from tests.hostile.storm import MOST_BYTES, storm


def test_kernel_outlives_an_attacker_in_every_service() -> None:
    outcome = storm(seconds=8, seed=1)
    assert outcome.lives
    assert outcome.answered > 0
    assert outcome.deaths.get("protocol", 0) > 0, outcome.deaths
    assert outcome.peak_bytes <= MOST_BYTES
