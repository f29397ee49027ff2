"""With the implant in all services at once, the kernel lives, answers, and stays within its memory."""

from __future__ import annotations

from tests.hostile.storm import MAX_BYTES, storm, storm_of_mounts


def test_kernel_outlives_an_attacker_in_every_service() -> None:
    outcome = storm(seconds=8, seed=1)
    assert outcome.lives
    assert outcome.answered > 0
    assert outcome.deaths.get("protocol", 0) > 0, outcome.deaths
    assert outcome.peak_bytes <= MAX_BYTES


def test_kernel_serves_its_clients_among_hostile_mounts_and_users_of_tasks() -> None:
    outcome = storm_of_mounts(seconds=15, seed=1)
    assert outcome.lives
    assert not outcome.wrong, outcome.wrong
    assert outcome.answered > 10, outcome.told
    assert outcome.peak_bytes <= MAX_BYTES
