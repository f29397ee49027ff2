"""How quick a backlog is said to be."""

from __future__ import annotations

from proto.wire.frames import Backlog
from services.retrieve.rate import Rate


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def after(self, seconds: float) -> None:
        self.now_s += seconds


def test_a_backlog_says_how_quick_it_is_and_how_long_the_rest_takes() -> None:
    clock = Clock()
    rate = Rate(clock)
    assert rate.backlog(0, 300) == Backlog(done=0, total=300)
    for _ in range(2):
        clock.after(2)
        rate.add(100)
    assert rate.backlog(200, 100) == Backlog(done=200, total=300, per_s=50.0, left_s=2.0)


def test_the_rate_covers_recent_vectors_and_is_absent_without_any() -> None:
    clock = Clock()
    rate = Rate(clock)
    for count in (1000, 10, 10, 10):
        clock.after(15)
        rate.add(count)
    assert rate.backlog(1030, 1).per_s == round(20 / 30, 2)
    clock.after(31)
    assert rate.backlog(1030, 1).per_s is None


def test_time_without_a_backlog_counts_for_nothing() -> None:
    clock = Clock()
    rate = Rate(clock)
    clock.after(1)
    rate.add(100)
    clock.after(20)
    rate.begin()
    clock.after(1)
    rate.add(100)
    assert rate.backlog(200, 100).per_s == 100
