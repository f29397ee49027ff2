"""Moments, and ranges as people write them: `2026-01`, `2026-01-01..2026-03-31`, `last 7 days`. All times are UTC."""

from __future__ import annotations

import datetime
import re

_YEAR = re.compile(r"\d{4}")
_MONTH = re.compile(r"(\d{4})-(\d{1,2})")
_LAST = re.compile(r"(?:the )?(?:last|past) (\d{1,5} )?(hour|day|week|month|year)s?")
_BETWEEN = re.compile(r"(?:between|from) (.+?) (?:and|to|until) (.+)")
_ONE_END = re.compile(r"(since|after|from|until|before|to) (.+)")
_TICK = datetime.timedelta(microseconds=1)
_DAY = datetime.timedelta(days=1)

Range = tuple[float | None, float | None]
"""First and last moment in Unix seconds; None where it is open."""


def instant(text: str, *, end_of_day: bool = False) -> float:
    """Unix seconds of RFC 3339 with any offset, `YYYY-MM-DDTHH:MM` (UTC where no zone is said) or a date.

    With `end_of_day` a bare date means its last moment instead of its first. Raises ValueError.
    """
    stripped = text.strip()
    moment = datetime.datetime.fromisoformat(stripped)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    if end_of_day and not re.search(r"[T ]\d", stripped):
        moment += datetime.timedelta(days=1) - datetime.timedelta(microseconds=1)
    return moment.timestamp()


def rfc3339(seconds: float | None, timespec: str = "auto") -> str | None:
    """Unix seconds as people read them; None where there are none, or none that a calendar has."""
    if seconds is None:
        return None
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec=timespec)
    except (ValueError, OverflowError, OSError):
        return None


def date_range(text: str, now: float) -> Range:
    """The range that `text` says; `now` is Unix seconds, for relative ranges.

    Raises ValueError: it is no range, or its end is before its beginning.
    """
    wanted = " ".join(text.lower().split())
    today = datetime.datetime.fromtimestamp(now, datetime.UTC)
    since, until = _range(wanted, today)
    if since is not None and until is not None and until < since:
        raise ValueError(f"{text!r} ends before it begins")
    return since, until


def _range(text: str, now: datetime.datetime) -> Range:
    if ".." in text:
        begin, _, end = text.partition("..")
        end = end.removeprefix(".")
        if not begin.strip() and not end.strip():
            raise ValueError("a range needs a beginning or an end")
        since = _span(begin.strip(), now)[0] if begin.strip() else None
        return since, _span(end.strip(), now)[1] if end.strip() else None
    if match := _BETWEEN.fullmatch(text):
        return _span(match[1], now)[0], _span(match[2], now)[1]
    if match := _ONE_END.fullmatch(text):
        first, last = _span(match[2], now)
        if match[1] in ("since", "from"):
            return first, None
        if match[1] == "after":
            return last + 1e-6, None
        return None, first - 1e-6 if match[1] == "before" else last
    return _span(text, now)


def _span(text: str, now: datetime.datetime) -> tuple[float, float]:
    """The first and the last moment of a year, a month, a day, a moment, or of `today` and its like."""
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    monday = -midnight.weekday()
    spans = {
        "today": (0, 1),
        "yesterday": (-1, 0),
        "this week": (monday, monday + 7),
        "last week": (monday - 7, monday),
    }
    if text in spans:
        begin, end = (midnight + offset * _DAY for offset in spans[text])
        return _ends(begin, end)
    if text in ("this month", "last month"):
        return _months(now.year, now.month - (text == "last month"))
    if text in ("this year", "last year"):
        return _months(now.year - (text == "last year"), 1, 12)
    if match := _LAST.fullmatch(text):
        days = {"hour": 1 / 24, "day": 1, "week": 7, "month": 30.4375, "year": 365.25}[match[2]]
        return (now - datetime.timedelta(days=days * int(match[1] or 1))).timestamp(), now.timestamp()
    if _YEAR.fullmatch(text):
        return _months(int(text), 1, 12)
    if match := _MONTH.fullmatch(text):
        month = int(match[2])
        if not 1 <= month <= 12:
            raise ValueError(f"{text!r}: there is no month {month}")
        return _months(int(match[1]), month)
    try:
        return instant(text.upper()), instant(text.upper(), end_of_day=True)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is no date and no range of dates") from None


def _months(year: int, month: int, count: int = 1) -> tuple[float, float]:
    """So many months from one on; one beyond 1 to 12 is of the year beside."""
    begin, end = (
        datetime.datetime(year + number // 12, number % 12 + 1, 1, tzinfo=datetime.UTC)
        for number in (month - 1, month - 1 + count)
    )
    return _ends(begin, end)


def _ends(begin: datetime.datetime, end: datetime.datetime) -> tuple[float, float]:
    return begin.timestamp(), (end - _TICK).timestamp()
