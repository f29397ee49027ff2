"""The last hour's figures of each service, and the timeline of deaths and recoveries; both outlive the kernel.

Samples are taken every `INTERVAL_S` and appended to `history.jsonl` once a minute; a killed kernel loses a minute.
`long_history` makes longer spans from them.
Events are appended to `timeline.jsonl` as they happen, with numbers that ascend over all kernels. Both files are
shortened when they exceed `MAX_BYTES`. Neither file is part of a backup.
"""

from __future__ import annotations

import collections
import contextlib
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import trio

from kernel.chronicle.isolation import isolated
from kernel.chronicle.line_file import LineFile
from kernel.chronicle.long_history import LongHistory
from kernel.chronicle.samples import Point, Sample
from proto.ops.observation import TimelineEvent

INTERVAL_S: Final = 15.0
"""Four points a minute: fine enough for a chart of an hour, and an idle machine wakes rarely."""

WINDOW_S: Final = 3600.0
WRITE_S: Final = 60.0
MAX_BYTES: Final = 1024 * 1024
KEPT_EVENTS: Final = 1_000


class Recorder:
    """Keeps history and timeline; `run` must be running. `measure` returns the current figures by service."""

    def __init__(self, data_dir: Path, measure: Callable[[], Mapping[str, Point]]) -> None:
        self._measure = measure
        self._samples_file = LineFile(data_dir / "history.jsonl", Sample, MAX_BYTES)
        self._events_file = LineFile(data_dir / "timeline.jsonl", TimelineEvent, MAX_BYTES)
        self._samples: collections.deque[Sample] = collections.deque(maxlen=int(WINDOW_S / INTERVAL_S))
        self._unwritten: list[Sample] = []
        self.long = LongHistory(data_dir)
        self._first = 0
        self.events: collections.deque[TimelineEvent] = collections.deque(maxlen=KEPT_EVENTS)
        self._unwritten_events: list[TimelineEvent] = []
        self._news = trio.Event()
        self.changed = trio.Event()
        """Set at the next event, and then replaced."""

    @property
    def last(self) -> int:
        """Number of the latest event; 0 if there is none."""
        return self.events[-1].number if self.events else 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Read what earlier kernels left, then record until cancelled; then write the rest."""
        before, events = await trio.to_thread.run_sync(self._read)
        self._samples.extend(before)
        for each in events:
            self.events.append(msgspec.structs.replace(each, number=max(each.number, self.last + 1)))
        # Readers keep numbers. An earlier kernel may have given some that it did not write before it was killed.
        self._first = int(time.time() * 1000)
        self.happened(TimelineEvent(service="kernel", kind="started"))
        task_status.started()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write_events)
                await self._take_samples()
        finally:
            with isolated("the history of the last minute"):
                self._append()

    def happened(self, event: TimelineEvent) -> None:
        """Add an event, which gets its number and the time. Never blocks."""
        event = msgspec.structs.replace(event, number=max(self._first, self.last + 1), at=time.time())
        self.events.append(event)
        self._unwritten_events.append(event)
        self._news.set()
        self.changed.set()
        self.changed = trio.Event()

    def since(self, number: int, limit: int) -> tuple[list[TimelineEvent], bool]:
        """Return the events after one, oldest first, and whether some in between are no longer kept."""
        found = [each for each in self.events if each.number > number]
        is_full = len(self.events) == self.events.maxlen
        is_lost = number > 0 and bool(self.events) and self.events[0].number > number and is_full
        return found[:limit], is_lost

    def samples(self, now: float) -> list[Sample]:
        """Return the samples of the last hour."""
        return [each for each in self._samples if each.at >= now - WINDOW_S]

    async def _take_samples(self) -> None:
        written_at = trio.current_time()
        while True:
            await trio.sleep(INTERVAL_S)
            with isolated("a sample of the history"):
                sample = Sample(round(time.time(), 1), dict(self._measure()))
                self._samples.append(sample)
                self._unwritten.append(sample)
            if trio.current_time() - written_at >= WRITE_S:
                written_at = trio.current_time()
                with isolated("the history"):
                    await trio.to_thread.run_sync(self._append)

    async def _write_events(self) -> None:
        while True:
            await self._news.wait()
            self._news = trio.Event()
            with isolated("the timeline"):
                await trio.to_thread.run_sync(self._append)
            # Deaths that come together are written together.
            await trio.sleep(1)

    def _append(self) -> None:
        """Write what is not yet on disk. If that fails, it stays in memory only. Blocks."""
        samples, self._unwritten = self._unwritten, []
        events, self._unwritten_events = self._unwritten_events, []
        with contextlib.suppress(OSError):
            # Copies, since events may be added meanwhile.
            self._samples_file.append(samples, lambda: tuple(self._samples))
            self._events_file.append(events, lambda: tuple(self.events))
            self.long.extend(tuple(self._samples))

    def _read(self) -> tuple[list[Sample], list[TimelineEvent]]:
        oldest = time.time() - WINDOW_S
        samples = [each for each in self._samples_file.read() if each.at >= oldest]
        return samples, self._events_file.read()[-KEPT_EVENTS:]


def rounded(figure: float | None, digits: int = 2) -> float | None:
    """Return the figure with this many decimals; None if it is unknown."""
    return None if figure is None or math.isnan(figure) else round(figure, digits)
