"""Daily trends: deaths of each service and the size of its store, in `trends.jsonl`.

Each line has the deaths since the previous line and the current sizes. A line is appended when the kernel starts, every
hour, and when it ends if there were deaths. A killed kernel loses the deaths of an hour at most. A long file is reduced
to one line per day.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec
import trio

from kernel.chronicle.disk import folder_bytes
from kernel.chronicle.line_file import LineFile
from proto.ops.kernel import Trend

INTERVAL_S = 3600.0
WINDOW_S = 7 * 86_400
"""Period that reported trends cover."""

KEPT_DAYS = 400
MAX_BYTES = 512 * 1024

Deaths = Callable[[], Mapping[str, int]]
"""Returns the number of deaths of each service since the kernel started."""


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """Figures at one time (Unix seconds)."""

    at: float
    deaths: dict[str, int] = {}
    bytes: dict[str, int] = {}


class Trends:
    """The record for one data directory, while its kernel runs."""

    def __init__(self, data_dir: Path, deaths: Deaths) -> None:
        self._file = LineFile(data_dir / "trends.jsonl", Line, MAX_BYTES)
        self._services = data_dir / "services"
        self._deaths = deaths
        self._recorded: Mapping[str, int] = {}
        """Deaths that are already recorded."""
        self._lines: list[Line] = []

    async def run(self) -> None:
        """Record until cancelled; then write the deaths, without measuring stores again."""
        self._lines = await trio.to_thread.run_sync(self._file.read)
        try:
            while True:
                await self._note(await trio.to_thread.run_sync(self._held, abandon_on_cancel=True))
                await trio.sleep(INTERVAL_S)
        finally:
            with trio.CancelScope(shield=True):
                if any(self._since().values()):
                    await self._note({})

    def trends(self, now: float | None = None) -> list[Trend]:
        """Return the trend of each service over the last week, or the part of it that is on record."""
        at = time.time() if now is None else now
        new = Line(at, self._since())
        return trends([line for line in self._lines if at - WINDOW_S <= line.at <= at] + [new])

    def _since(self) -> dict[str, int]:
        # A service that was removed and added again starts without a history.
        return {name: max(0, count - self._recorded.get(name, 0)) for name, count in self._deaths().items()}

    def _held(self) -> dict[str, int]:
        """Return the size of each service's folder that the kernel can read. Blocks, possibly for long."""
        with contextlib.suppress(OSError):
            held = {entry.name: folder_bytes(Path(entry.path)) for entry in os.scandir(self._services)}
            return {name: int(size) for name, size in held.items() if size != math.inf}
        return {}

    async def _note(self, held: dict[str, int]) -> None:
        """Append a line. If the disk cannot be written to, the next line includes these deaths."""
        total = dict(self._deaths())
        since = {name: count for name, count in self._since().items() if count > 0}
        line = Line(time.time(), since, held)
        with contextlib.suppress(OSError):
            await trio.to_thread.run_sync(self._append, line)
            self._recorded = total
            self._lines = [*(one for one in self._lines if one.at >= line.at - WINDOW_S), line]

    def _append(self, line: Line) -> None:
        self._file.append([line], lambda: [*daily(self._file.read(), line.at - KEPT_DAYS * 86_400), line])


def daily(lines: Iterable[Line], since: float) -> list[Line]:
    """Return one line for each day (UTC) since then, with the day's deaths and the sizes at its end."""
    days: dict[int, Line] = {}
    for line in lines:
        if line.at >= since:
            before = days.get(int(line.at // 86_400), Line(line.at))
            deaths = dict(Counter(before.deaths) + Counter(line.deaths))
            days[int(line.at // 86_400)] = Line(line.at, deaths, line.bytes or before.bytes)
    return list(days.values())


def trends(lines: list[Line]) -> list[Trend]:
    """Return daily averages over these lines; a period shorter than a day counts as one day.

    Growth is the difference between the first and last size, or None if they are less than an hour apart.
    """
    names = sorted({name for line in lines for name in (*line.deaths, *line.bytes)})
    days = max(1.0, (lines[-1].at - lines[0].at) / 86_400) if lines else 1.0
    return [_trend(name, lines, days) for name in names]


def _trend(name: str, lines: list[Line], days: float) -> Trend:
    sizes = [(line.at, line.bytes[name]) for line in lines if name in line.bytes]
    growth = None
    if sizes and (apart_s := sizes[-1][0] - sizes[0][0]) >= INTERVAL_S:
        growth = (sizes[-1][1] - sizes[0][1]) / max(1.0, apart_s / 86_400)
    deaths = sum(line.deaths.get(name, 0) for line in lines)
    return Trend(
        name=name, days=days, deaths_per_day=deaths / days, bytes=sizes[-1][1] if sizes else None,
        growth_bytes_per_day=growth,
    )  # fmt: skip
