"""History and timeline: bounded, in order, and there again after a restart, also after a kill."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import trio

from kernel.chronicle import history
from kernel.chronicle.history import Recorder
from kernel.chronicle.line_file import LineFile
from kernel.chronicle.samples import Point, Sample, history_of
from proto.ops.observation import TimelineEvent

POINT = Point(0.5, 1024, 2.0, 0, 1, 3.0, 9.0)


async def recorded(recorder: Recorder, seconds: float) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(recorder.run)
        recorder.happened(TimelineEvent(service="echo", kind="died", cause="signal", text="killed by SIGKILL"))
        await trio.sleep(seconds)
        nursery.cancel_scope.cancel()


async def test_a_new_kernel_continues_the_old_ones_figures_and_events(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    await recorded(Recorder(tmp_path, lambda: {"echo": POINT}), history.INTERVAL_S * 3 + 1)
    again = Recorder(tmp_path, lambda: {"echo": POINT, "yaml": POINT})
    await recorded(again, history.INTERVAL_S + 1)
    found = history_of(again.samples(time.time()))
    assert len(found.at) == 4
    assert found.at == sorted(found.at)
    assert found.services["echo"].cpu == [0.5] * 4
    assert found.services["yaml"].p99_ms == [None, None, None, 9.0]
    assert [(each.service, each.kind) for each in again.events] == [("kernel", "started"), ("echo", "died")] * 2
    numbers = [each.number for each in again.events]
    assert numbers == sorted(set(numbers))
    assert again.events[1].text == "killed by SIGKILL"


async def test_number_of_an_event_that_a_killed_kernel_did_not_write_is_not_used_again(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await recorded(Recorder(tmp_path, dict), 2)
    file = tmp_path / "timeline.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    first = Recorder(tmp_path, dict)
    await recorded(first, 2)
    # As if that kernel had been killed before it wrote its events; the next one starts later.
    file.write_bytes(b"".join(lines))
    later_s = time.time() + 1
    monkeypatch.setattr(time, "time", lambda: later_s)
    second = Recorder(tmp_path, dict)
    await recorded(second, 2)
    known = [each.number for each in first.events]
    later, is_lost = second.since(known[-1], 100)
    assert [each.kind for each in later] == ["started", "died"]
    assert not is_lost
    assert second.since(0, 1)[0][0].number == known[0]


async def test_old_samples_and_half_lines_are_left_out(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    old = Sample(time.time() - history.WINDOW_S - 60, {"echo": POINT})
    new = Sample(time.time() - 60, {"echo": POINT})
    LineFile(tmp_path / "history.jsonl", Sample, history.MAX_BYTES).append([old, new], list)
    with (tmp_path / "history.jsonl").open("ab") as file:
        file.write(b'{"at": 12')
    recorder = Recorder(tmp_path, dict)
    await recorded(recorder, 0.1)
    assert [each.at for each in recorder.samples(time.time())] == [new.at]


async def test_the_files_are_bounded(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MAX_BYTES", 20_000)
    monkeypatch.setattr(history, "KEPT_EVENTS", 50)
    recorder = Recorder(tmp_path, lambda: {f"service{number}": POINT for number in range(20)})
    async with trio.open_nursery() as nursery:
        await nursery.start(recorder.run)
        for number in range(500):
            recorder.happened(TimelineEvent(service="echo", kind="died", generation=number, text="x" * 40))
            await trio.sleep(history.INTERVAL_S / 5)
        nursery.cancel_scope.cancel()
    assert (tmp_path / "timeline.jsonl").stat().st_size <= 20_000
    # The whole window fits, however small the limit for appending is.
    assert (tmp_path / "history.jsonl").stat().st_size <= 20_000 + 240 * 1_500
    assert len(recorder.events) == 50
    assert recorder.events[-1].generation == 499


async def test_a_folder_that_cannot_be_written_to_costs_only_the_file(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    (tmp_path / "history.jsonl").mkdir()
    (tmp_path / "timeline.jsonl").mkdir()
    recorder = Recorder(tmp_path, lambda: {"echo": POINT})
    await recorded(recorder, history.INTERVAL_S + 1)
    assert len(recorder.samples(time.time())) == 1
    assert recorder.events[-1].kind == "died"


@pytest.mark.parametrize("is_old", [False, True])
async def test_its_files_are_for_their_owner_only(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, is_old: bool
) -> None:
    files = [tmp_path / name for name in ("timeline.jsonl", "history.jsonl")]
    for file in files if is_old else ():
        file.touch(mode=0o644)
    before = os.umask(0o022)
    try:
        await recorded(Recorder(tmp_path, lambda: {"echo": POINT}), history.INTERVAL_S * 2)
    finally:
        os.umask(before)
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600, 0o600]
