"""Trends: what a day brings, by a record that outlives kernels, stays small, and loses nothing to a full disk."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing

from kernel.chronicle import trends
from kernel.chronicle.trends import INTERVAL_S, Line, Trends, daily
from kernel.cli.status import trend

DAY_S = 86_400.0
NOW = 1_800_000_000.0


def lines_of(folder: Path) -> list[Line]:
    return [msgspec.json.decode(text, type=Line) for text in (folder / "trends.jsonl").read_bytes().splitlines()]


async def written(folder: Path, count: int, clock: trio.testing.MockClock, *, jump_s: float = 0.0) -> None:
    """After a jump of the clock, which stands still otherwise, so many lines are there."""
    clock.autojump_threshold = float("inf")
    clock.jump(jump_s)
    while not (folder / "trends.jsonl").is_file() or len(lines_of(folder)) < count:
        await trio.to_thread.run_sync(time.sleep, 0.005)
    await trio.testing.wait_all_tasks_blocked()


@pytest.fixture
def stores(tmp_path: Path) -> Path:
    (tmp_path / "services" / "yaml").mkdir(parents=True)
    (tmp_path / "services" / "yaml" / "a").write_bytes(bytes(40_000))
    return tmp_path


def test_deaths_and_growth_are_summed_up_by_day() -> None:
    lines = [
        Line(NOW, {"yaml": 3, "embed": 1}, {"yaml": 1000}),
        Line(NOW + 2 * DAY_S, {"yaml": 3}, {"yaml": 5000, "files": 10}),
        Line(NOW + 4 * DAY_S, {"yaml": 2}, {}),
    ]
    found = {one.name: one for one in trends.trends(lines)}
    assert (found["yaml"].days, found["yaml"].deaths_per_day) == (4.0, 2.0)
    assert (found["yaml"].bytes, found["yaml"].growth_bytes_per_day) == (5000, 2000.0)
    assert (found["files"].bytes, found["files"].growth_bytes_per_day) == (10, None)
    assert (found["embed"].bytes, found["embed"].deaths_per_day) == (None, 0.25)
    assert trend(found["yaml"]) == ["yaml", "2.0", "4.9 KiB", "+2.0 KiB", "4"]
    assert trends.trends([]) == []


def test_less_than_a_day_counts_as_one() -> None:
    lines = [Line(NOW, {}, {"yaml": 0}), Line(NOW + 2 * INTERVAL_S, {"yaml": 5}, {"yaml": 4096})]
    (found,) = trends.trends(lines)
    assert (found.days, found.deaths_per_day, found.growth_bytes_per_day) == (1.0, 5.0, 4096.0)


async def test_hourly_and_final_samples_are_written_and_continued_by_the_next_kernel(
    stores: Path, autojump_clock: trio.testing.MockClock
) -> None:
    deaths = {"yaml": 0}
    record = Trends(stores, lambda: deaths)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(record.run)
        await written(stores, 1, autojump_clock)
        deaths["yaml"] = 2
        # Not written yet, and told all the same.
        assert record.trends()[0].deaths_per_day == 2.0
        await written(stores, 2, autojump_clock, jump_s=INTERVAL_S)
        deaths["yaml"] = 3
        nursery.cancel_scope.cancel()
    assert [line.deaths for line in lines_of(stores)] == [{}, {"yaml": 2}, {"yaml": 1}]
    assert all(40_000 <= line.bytes["yaml"] < 60_000 for line in lines_of(stores)[:2])
    with (stores / "trends.jsonl").open("ab") as file:
        file.write(b'{"at": 1, "dea\n')
    again = Trends(stores, lambda: {"yaml": 0})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(again.run)
        while not again.trends()[0].deaths_per_day:
            await trio.to_thread.run_sync(time.sleep, 0.005)
        assert again.trends()[0].deaths_per_day == 3.0
        nursery.cancel_scope.cancel()


async def test_deaths_wait_for_a_disk_that_takes_nothing(stores: Path, autojump_clock: trio.testing.MockClock) -> None:
    autojump_clock.autojump_threshold = float("inf")
    (stores / "trends.jsonl").mkdir()
    record = Trends(stores, lambda: {"yaml": 4})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(record.run)
        await trio.testing.wait_all_tasks_blocked()
        (stores / "trends.jsonl").rmdir()
        await written(stores, 1, autojump_clock, jump_s=INTERVAL_S)
        nursery.cancel_scope.cancel()
    assert sum(line.deaths.get("yaml", 0) for line in lines_of(stores)) == 4


async def test_a_long_record_becomes_a_line_a_day_and_the_oldest_go(
    stores: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    autojump_clock.autojump_threshold = float("inf")
    monkeypatch.setattr(trends, "MAX_BYTES", 1000)
    monkeypatch.setattr(time, "time", lambda: NOW)
    hours = [Line(NOW - 600 * DAY_S + hour * 3600, {"yaml": 1}, {"yaml": hour}) for hour in range(24 * 600)]
    (stores / "trends.jsonl").write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in hours))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Trends(stores, lambda: {}).run)
        while len(lines_of(stores)) == len(hours):
            await trio.to_thread.run_sync(time.sleep, 0.005)
        nursery.cancel_scope.cancel()
    kept = lines_of(stores)
    assert trends.KEPT_DAYS <= len(kept) <= trends.KEPT_DAYS + 4
    assert kept[1].deaths == {"yaml": 24}
    assert sum(sum(line.deaths.values()) for line in kept[1:]) == pytest.approx(trends.KEPT_DAYS * 24, abs=24)
    assert daily([], 0.0) == []


def test_its_file_is_for_its_owner_only(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        Trends(tmp_path, dict)._append(Line(NOW))
    finally:
        os.umask(before)
    assert (tmp_path / "trends.jsonl").stat().st_mode & 0o777 == 0o600
