"""A day of figures by minutes, and a month by hours, made from the samples of the last hour.

Both are files only, and are read when somebody asks: the kernel keeps nothing of them in memory. Each minute is
appended to `history-day.jsonl` once its samples are complete, and each hour to `history-month.jsonl`. The files are
shortened when they exceed their limit. A minute or hour without samples has no line. Neither file is part of a backup.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from kernel.chronicle.line_file import LineFile
from kernel.chronicle.samples import Sample, merged

MINUTE_S: Final = 60
HOUR_S: Final = 3600
DAY_S: Final = 86_400
MONTH_S: Final = 31 * DAY_S

DAY_BYTES: Final = 4 * 1024 * 1024
"""Two days with thirty services."""
MONTH_BYTES: Final = 2 * 1024 * 1024


class LongHistory:
    """The two files. All methods block."""

    def __init__(self, data_dir: Path) -> None:
        self._day = LineFile(data_dir / "history-day.jsonl", Sample, DAY_BYTES)
        self._month = LineFile(data_dir / "history-month.jsonl", Sample, MONTH_BYTES)
        self._minute = self._hour = -1
        """Start of the latest minute and hour that are written; -1 until the files have been read."""

    def extend(self, samples: Sequence[Sample]) -> None:
        """Write the minutes and hours that are complete. Raises OSError."""
        now = time.time()
        if self._minute < 0:
            self._minute, self._hour = _latest(self._day.read(), MINUTE_S), _latest(self._month.read(), HOUR_S)
        minutes = list(_complete(samples, MINUTE_S, self._minute, now))
        if not minutes:
            return
        self._day.append(minutes, lambda: [*self.day(now), *minutes])
        self._minute = _start(minutes[-1].at, MINUTE_S)
        if self._hour < _start(now, HOUR_S) - HOUR_S:
            hours = list(_complete(self.day(now), HOUR_S, self._hour, now))
            self._month.append(hours, lambda: [*self.month(now), *hours])
            # An hour without samples is not looked for again.
            self._hour = _start(now, HOUR_S) - HOUR_S

    def day(self, now: float) -> list[Sample]:
        """Return the minutes of the last day."""
        return [each for each in self._day.read() if now - DAY_S <= each.at <= now]

    def month(self, now: float) -> list[Sample]:
        """Return the hours of the last month."""
        return [each for each in self._month.read() if now - MONTH_S <= each.at <= now]


def _start(at: float, span_s: int) -> int:
    return int(at // span_s) * span_s


def _latest(samples: Sequence[Sample], span_s: int) -> int:
    return _start(samples[-1].at, span_s) if samples else 0


def _complete(samples: Iterable[Sample], span_s: int, after: int, now: float) -> Iterator[Sample]:
    """Yield one sample for each complete span that begins after this one."""
    for start, group in itertools.groupby(samples, lambda each: _start(each.at, span_s)):
        if after < start <= now - span_s:
            yield merged(list(group))
