"""A day by minutes and a month by hours: made once from the samples, also after a restart, and bounded."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kernel.chronicle import long_history
from kernel.chronicle.long_history import DAY_S, HOUR_S, LongHistory
from kernel.chronicle.samples import Point, Sample, merged

BEGIN = 1_800_000_000 // HOUR_S * HOUR_S


def samples(start: float, seconds: int, cpu: float = 0.5) -> list[Sample]:
    """Return a sample every 15 seconds."""
    return [Sample(start + each, {"echo": Point(cpu, 1024, 2.0, 1, 0, 3.0, 9.0)}) for each in range(0, seconds, 15)]


def test_figures_of_several_samples_are_added_or_averaged() -> None:
    one = Sample(
        15.0, {"echo": Point(0.1, 1000, 1.0, 2, 7, 3.0, 20.0), "yaml": Point(0.2, 1, None, None, None, None, None)}
    )
    other = Sample(30.0, {"echo": Point(None, 2000, 3.0, 1, 2, None, 30.0)})
    found = merged([one, other])
    assert found.at == 30.0
    assert found.services["echo"] == Point(0.1, 1500, 2.0, 3, 7, 3.0, 30.0)
    assert found.services["yaml"] == Point(0.2, 1, None, None, None, None, None)


def test_minutes_and_hours_are_written_once_also_by_the_next_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = float(BEGIN)
    monkeypatch.setattr(time, "time", lambda: now)
    first = LongHistory(tmp_path)
    for minute in range(1, 150):
        now = BEGIN + minute * 60 + 5
        if minute == 100:
            first = LongHistory(tmp_path)
        first.extend(samples(max(BEGIN, now - HOUR_S), int(min(HOUR_S, now - BEGIN))))
    assert [each.at // 60 * 60 for each in first.day(now)] == [BEGIN + each * 60 for each in range(149)]
    assert [each.at // HOUR_S * HOUR_S for each in first.month(now)] == [BEGIN, BEGIN + HOUR_S]
    assert first.month(now)[0].services["echo"] == Point(0.5, 1024, 2.0, 240, 0, 3.0, 9.0)
    assert first.day(now + DAY_S - 60 * 60)[0].at >= now - 60 * 60


def test_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_history, "DAY_BYTES", 150_000)
    now = float(BEGIN)
    monkeypatch.setattr(time, "time", lambda: now)
    kept = LongHistory(tmp_path)
    for minute in range(1, 5 * 24 * 60):
        now = BEGIN + minute * 60
        kept.extend(samples(now - 120, 120))
    assert (tmp_path / "history-day.jsonl").stat().st_size <= 150_000
    assert len(kept.day(now)) >= 24 * 60 - 2
    # The first samples are from the minute before.
    assert len(kept.month(now)) == 1 + 5 * 24 - 1
