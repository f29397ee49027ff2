"""How the system has fared by day: deaths of each service and the size of its store, in `trends.jsonl`.

Each line has what was since the one before and how large the stores are; one is appended at the start of a kernel, each
hour, and at its end if there were deaths: one that is killed loses those of an hour at most. A
long file is shortened to a line a day.
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

from linckia.kernel.supervisor.disk import folder_bytes
from linckia.proto.durable import replace_file
from linckia.proto.ops.kernel import Trend

INTERVAL_S = 3600.0
WINDOW_S = 7 * 86_400
"""That trends are told of."""

KEPT_DAYS = 400
MAX_BYTES = 512 * 1024

Deaths = Callable[[], Mapping[str, int]]
"""Of each service, since the kernel began."""


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """Figures at a time (Unix seconds)."""

    at: float
    deaths: dict[str, int] = {}
    bytes: dict[str, int] = {}


class Trends:
    """The record of one data directory, for as long as its kernel runs."""

    def __init__(self, data_dir: Path, deaths: Deaths) -> None:
        self._file = data_dir / "trends.jsonl"
        self._services = data_dir / "services"
        self._deaths = deaths
        self._told: Mapping[str, int] = {}
        """The deaths that are in the record."""
        self._lines: list[Line] = []

    async def run(self) -> None:
        """Until cancelled; then deaths are written, and no store is looked at any more."""
        self._lines = await trio.to_thread.run_sync(self._read)
        try:
            while True:
                await self._note(await trio.to_thread.run_sync(self._held, abandon_on_cancel=True))
                await trio.sleep(INTERVAL_S)
        finally:
            with trio.CancelScope(shield=True):
                if any(self._since().values()):
                    await self._note({})

    def trends(self, now: float | None = None) -> list[Trend]:
        """Of each service, in the days that are on record of the last week."""
        at = time.time() if now is None else now
        new = Line(at, self._since())
        return trends([line for line in self._lines if at - WINDOW_S <= line.at <= at] + [new])

    def _since(self) -> dict[str, int]:
        return {name: count - self._told.get(name, 0) for name, count in self._deaths().items()}

    def _held(self) -> dict[str, int]:
        """Bytes of each service's folder, of those that are open to the kernel; blocks, perhaps for long."""
        with contextlib.suppress(OSError):
            held = {entry.name: folder_bytes(Path(entry.path)) for entry in os.scandir(self._services)}
            return {name: int(size) for name, size in held.items() if size != math.inf}
        return {}

    async def _note(self, held: dict[str, int]) -> None:
        """Append a line. Where the disk takes none, the next one has these deaths too."""
        total = dict(self._deaths())
        since = {name: count for name, count in self._since().items() if count > 0}
        line = Line(time.time(), since, held)
        with contextlib.suppress(OSError):
            await trio.to_thread.run_sync(self._append, line)
            self._told = total
            self._lines = [*(one for one in self._lines if one.at >= line.at - WINDOW_S), line]

    def _append(self, line: Line) -> None:
        if self._file.exists() and self._file.stat().st_size > MAX_BYTES:
            shortened = daily(self._read(), line.at - KEPT_DAYS * 86_400)
            replace_file(self._file, b"".join(map(_encoded, shortened)), sync=False)
        with self._file.open("ab") as file:
            file.write(_encoded(line))

    def _read(self) -> list[Line]:
        found: list[Line] = []
        with contextlib.suppress(OSError):
            for text in self._file.read_bytes().splitlines():
                # The last line of a kernel that was killed may be cut.
                with contextlib.suppress(msgspec.DecodeError):
                    found.append(msgspec.json.decode(text, type=Line))
        return found


def _encoded(line: Line) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def daily(lines: Iterable[Line], since: float) -> list[Line]:
    """A line for each day (UTC) since then, with its deaths added up and the sizes at its end."""
    days: dict[int, Line] = {}
    for line in lines:
        if line.at >= since:
            before = days.get(int(line.at // 86_400), Line(line.at))
            deaths = dict(Counter(before.deaths) + Counter(line.deaths))
            days[int(line.at // 86_400)] = Line(line.at, deaths, line.bytes or before.bytes)
    return list(days.values())


def trends(lines: list[Line]) -> list[Trend]:
    """What a day brings by these lines, of less than a day as if it were one. Growth is between the first and the last
    size, None where they are less than an hour apart."""
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
