"""Converts times as people and programs write them (`EXAMPLES`) to nanoseconds, and back to RFC 3339 in UTC."""

from __future__ import annotations

import calendar
import contextlib
import datetime
import re
import time
from decimal import Decimal, InvalidOperation

from proto.errors import InvalidParams
from proto.ops.retrieve import Filter
from services.shared import date_ranges

NS = 1_000_000_000
DAY_NS = 86_400 * NS

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MAX_NS = 2**63 - 1
_YEAR = re.compile(r"(?:19|20|21)\d{2}")
_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})")
_TIME = re.compile(
    r"(?P<date>\d{4}-\d{2}-\d{2})[Tt ](?P<clock>\d{2}:\d{2})(?::(?P<second>\d{2})(?:[.,](?P<part>\d+))?)?"
    r" ?(?P<zone>[Zz]|[+-]\d{2}:?\d{2}|[+-]\d{2})?"
)
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")

_DURATION = re.compile(r"(\d{1,6})\s*([^\W\d_]+)")
_SPELLINGS = {
    "s": "s sec secs second seconds", "min": "min mins minute minutes", "h": "h hr hrs hour hours", "d": "d day days",
    "w": "w wk wks week weeks", "mo": "mo month months", "q": "q quarter quarters", "y": "y yr yrs year years",
}  # fmt: skip
_UNITS = {word: unit for unit, words in _SPELLINGS.items() for word in words.split()}
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_MONTHS = {"mo": 1, "q": 3, "y": 12}

DURATIONS = "a number and s, min, h, d, w, mo (months), q (quarters) or y"

_MAX_WORDS = 100
_WORDS = re.compile(r"[^\W\d_]{2}")

EXAMPLES = (
    "`2024-06-15T10:30:00Z`, `2024-06-15T10:30`, `2024-06-15`, `2024`, Unix seconds, or words: `now`, `today`, "
    "`yesterday`, `2 hours ago`, `3 days ago`, `last 7 days`, `this week`, `last week`, `last month`, `last Monday`, "
    "`September 2024`; in UTC if no zone is given"
)


def parse(given: str | int | float, *, end: bool = False, now: float | None = None) -> int:
    """Return nanoseconds since 1970. A year, a date or a named period is its first instant, or its last with `end`.

    `now`, in Unix seconds, is the reference for words; by default the system's time. Days are UTC days. Raises
    ValueError if `given` is not a time.
    """
    text = str(given).strip()
    if _YEAR.fullmatch(text):
        following = f"{int(text) + 1}-01-01"
        return _bounded(_midnight(following) - 1 if end else _midnight(f"{text}-01-01"))
    if isinstance(given, int | float):
        return _unix(text)
    if match := _DATE.fullmatch(text):
        return _bounded(_midnight(text) + (DAY_NS - 1 if end else 0))
    if match := _TIME.fullmatch(text):
        return _bounded(_instant(match))
    if _NUMBER.fullmatch(text):
        return _unix(text)
    if len(text) <= _MAX_WORDS and _WORDS.search(text):
        with contextlib.suppress(ValueError, OverflowError):
            seconds = date_ranges.moment(text, time.time() if now is None else now, end=end)
            ns = round(Decimal(seconds) * 1_000_000) * 1000
            return _bounded(ns + 999 if end and ns % NS == NS - 1000 else ns)
    raise ValueError(f"{given[:100]!r} is not a time; write {EXAMPLES}")


def after(text: str, from_ns: int) -> int | None:
    """Return `from_ns` plus a duration ("30d", "6 months"), in nanoseconds since 1970; None if `text` is no duration.

    Months, quarters and years are calendar units: a month after 31 January is the last day of February. Raises
    ValueError for a number with an unknown unit, including "m", which could be minutes or months.
    """
    if (match := _DURATION.fullmatch(text.strip().lower())) is None:
        return None
    count, unit = int(match[1]), _UNITS.get(match[2])
    if unit is None:
        raise ValueError(f"{text[:80]!r} has an unknown unit; write {DURATIONS}")
    if unit in _SECONDS:
        return _bounded(from_ns + count * _SECONDS[unit] * NS)
    begun = _EPOCH + datetime.timedelta(seconds=from_ns // NS)
    years, month = divmod(begun.month - 1 + count * _MONTHS[unit], 12)
    if (year := begun.year + years) > datetime.MAXYEAR:
        return _MAX_NS
    day = min(begun.day, calendar.monthrange(year, month + 1)[1])
    since = begun.replace(year=year, month=month + 1, day=day) - _EPOCH
    return _bounded((since.days * 86_400 + since.seconds) * NS + from_ns % NS)


def instant(given: str | int | float | None, field: str, *, end: bool = False) -> int | None:
    """Parse an optional parameter with `parse`. Raises InvalidParams, which names the field."""
    if given is None:
        return None
    try:
        return parse(given, end=end)
    except ValueError as error:
        raise InvalidParams(f"`{field}`: {error}", field=field) from None


def between(field: str, since: str | int | float | None, until: str | int | float | None) -> list[Filter]:
    """Return filters on a field of Unix seconds for a search with `since` and `until`. Raises InvalidParams."""
    first, last = instant(since, "since"), instant(until, "until", end=True)
    # In whole microseconds: as a float, the last nanosecond of a day would be the next day.
    found = [] if first is None else [Filter(field=field, at_least=first / NS)]
    return found if last is None else [*found, Filter(field=field, at_most=last // 1000 / 1_000_000)]


def _unix(text: str) -> int:
    try:
        ns = Decimal(text) * NS
        return _bounded(int(ns))
    except (InvalidOperation, OverflowError, ValueError):
        raise ValueError(f"{text[:100]} is not a time in Unix seconds") from None


def _midnight(date: str) -> int:
    try:
        day = datetime.date.fromisoformat(date)
    except ValueError:
        raise ValueError(f"there is no day {date}") from None
    return (day - _EPOCH.date()).days * DAY_NS


def _instant(match: re.Match[str]) -> int:
    _midnight(match["date"])
    second = int(match["second"] or 0)
    try:
        minute = datetime.datetime.fromisoformat(f"{match['date']}T{match['clock']}{(match['zone'] or 'Z').upper()}")
    except ValueError:
        raise ValueError(f"there is no time {match[0]}") from None
    # A leap second is the last one of its minute.
    if second > 60:
        raise ValueError(f"there is no time {match[0]}")
    since = minute - _EPOCH
    return since.days * DAY_NS + (since.seconds + second) * NS + int((match["part"] or "")[:9].ljust(9, "0"))


def _bounded(ns: int) -> int:
    return max(-_MAX_NS, min(_MAX_NS, ns))


def rfc3339(ns: int) -> str:
    """Format as UTC, for example `2024-06-15T10:30:00Z`, with a fraction of a second if there is one."""
    seconds, part = divmod(ns, NS)
    # datetime ends with the year 9999, nanoseconds in 64 bits with 2262.
    text = (_EPOCH + datetime.timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{part:09d}".rstrip("0") + "Z" if part else f"{text}Z"


def rfc3339_or_none(ns: int | None) -> str | None:
    """Format with `rfc3339`; None stays None."""
    return None if ns is None else rfc3339(ns)
