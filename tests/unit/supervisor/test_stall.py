"""Evidence against an event loop that owes a pong, and its excuses."""

from __future__ import annotations

import os

import pytest

from kernel.supervisor.processes import LOOK_S, Activity, activity, unexcused_s

LOOP, WORKER = "7", "8"


@pytest.mark.parametrize(
    ("state", "loop_ms", "worker_ms", "counts_s"),
    [
        ("S", 0, 0, LOOK_S),
        # It is blocked even if a worker is busy.
        ("S", 0, 90, LOOK_S),
        ("R", 0, 0, None),
        ("D", 0, 0, None),
        ("R", 90, 0, 0.09),
        # One of sixteen that want the processor.
        ("R", 6, 0, 0.006),
        # A worker holds the interpreter, for which the loop asks now and then.
        ("S", 1, 80, 0.08),
    ],
)
def test_sleep_and_processor_time_decide_whether_a_loop_is_blocked(
    state: str, loop_ms: int, worker_ms: int, counts_s: float | None
) -> None:
    before = Activity(state, {LOOP: 5_000_000, WORKER: 9_000_000})
    after = Activity(state, {LOOP: 5_000_000 + loop_ms * 1_000_000, WORKER: 9_000_000 + worker_ms * 1_000_000})
    found = unexcused_s(7, before, after)
    assert found == (None if counts_s is None else pytest.approx(counts_s))


def test_process_that_is_gone_has_no_activity() -> None:
    assert activity(2**22 + 1) is None
    mine = activity(os.getpid())
    assert mine is not None
    assert mine.state == "R"
    assert mine.used_ns[str(os.getpid())] > 0
