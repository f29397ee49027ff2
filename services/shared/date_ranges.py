"""Parses moments and date ranges as people write them, in English and German.

Examples: `2026-01`, `September 2026`, `2026-01-01..2026-03-31`, `last 7 days`, `letzte Woche`. All times are UTC.
"""

from __future__ import annotations

import datetime
import re
from calendar import monthrange
from collections.abc import Iterator, Sequence

_YEAR = re.compile(r"\d{4}")
_MONTH = re.compile(r"(\d{4})-(\d{1,2})")
_LAST = re.compile(r"(?:the )?(?:last|past) (\d{1,5} )?(second|minute|hour|day|week|month|year)")
_CALENDAR = re.compile(r"(this|last) (week|month|quarter|year)")
_DAYS_BACK = {"today": 0, "yesterday": 1, "day before yesterday": 2, "vorgestern": 2, "tomorrow": -1}
_AGO = re.compile(r"(\d{1,5}) (second|minute|hour|day|week|month|year) ago")
_EXACT = ("second", "minute", "hour")
_NAMED = re.compile(r"(?:(last|this) )?(?:(\d{1,2}) )?([a-z]+)(?: (\d{1,2}))?(?: (\d{4}))?")
_QUARTER = re.compile(r"q([1-4]) (\d{4})|(\d{4})-q([1-4])")
_GERMAN_DAY = re.compile(r"(\d{1,2})\. ?(\d{1,2})\. ?(\d{4})")
_BETWEEN = re.compile(r"(?:between|from) (.+?) (?:and|to|until) (.+)")
_ONE_END = re.compile(r"(since|after|from|until|before|to) (.+)")
_WORD = re.compile(r"[^\W_]+(?:[-.:+]+[^\W_]+)*")

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_ENGLISH = {
    english: words.split()
    for english, words in {
        "last": "letzte letzter letzten letztes letztem vorige voriger vorigen voriges vergangene vergangenen previous",
        "this": "diese dieser diesen dieses diesem current", "past": "", "ago": "", "and": "und", "to": "bis",
        "second": "seconds sekunde sekunden", "minute": "minutes minuten", "now": "jetzt", "tomorrow": "morgen",
        "hour": "hours stunde stunden", "day": "days tag tage tagen", "week": "weeks woche wochen",
        "month": "months monat monate monaten monats", "year": "years jahr jahre jahren jahres",
        "quarter": "quarters quartal quartals", "today": "heute", "yesterday": "gestern", "since": "seit",
        "after": "nach", "before": "vor", "between": "zwischen", "from": "von", "until": "",
        "1": "a an one ein eine einem einer", "2": "two zwei", "3": "three drei", "4": "four vier", "5": "five fünf",
        "6": "six sechs", "7": "seven sieben",
        "": "in on during the of im am der die den dem des",
        "jan": "january januar", "feb": "february februar", "mar": "march märz", "apr": "april", "may": "mai",
        "jun": "june juni", "jul": "july juli", "aug": "august", "sep": "september sept", "oct": "october oktober okt",
        "nov": "november", "dec": "december dezember dez", "monday": "montag", "tuesday": "dienstag",
        "wednesday": "mittwoch", "thursday": "donnerstag", "friday": "freitag", "saturday": "samstag sonnabend",
        "sunday": "sonntag",
    }.items()
}  # fmt: skip
_MEANT = {word: english for english, words in _ENGLISH.items() for word in (english, *words)}
_ORDINAL = re.compile(r"(\d{1,2})(?:st|nd|rd|th|\.)?,?")
_MOST_WORDS = 6

_TICK = datetime.timedelta(microseconds=1)
_DAY = datetime.timedelta(days=1)

Range = tuple[float | None, float | None]
"""First and last moment in Unix seconds; None for an open end."""


def instant(text: str, *, end_of_day: bool = False) -> float:
    """Parse RFC 3339 with any offset, `YYYY-MM-DDTHH:MM` (UTC if no zone is given) or a date, to Unix seconds.

    With `end_of_day`, a bare date means its last moment instead of its first. Raises ValueError.
    """
    stripped = text.strip()
    moment = datetime.datetime.fromisoformat(stripped)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    if end_of_day and not re.search(r"[T ]\d", stripped):
        moment += _DAY - _TICK
    return moment.timestamp()


def rfc3339(seconds: float | None, timespec: str = "auto") -> str | None:
    """Format Unix seconds for people. Returns None for None and for times outside the calendar."""
    if seconds is None:
        return None
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec=timespec)
    except (ValueError, OverflowError, OSError):
        return None


def date_range(text: str, now: float) -> Range:
    """Parse a date range; `now`, in Unix seconds, is the reference for relative ranges.

    Raises ValueError if `text` is not a range or ends before it begins.
    """
    today = datetime.datetime.fromtimestamp(now, datetime.UTC)
    since, until = _range(_normal(text), today)
    if since is not None and until is not None and until < since:
        raise ValueError(f"{text!r} ends before it begins")
    return since, until


def moment(text: str, now: float, *, end: bool = False) -> float:
    """Return the first (with `end`, the last) moment of what `text` names, such as `yesterday`, in Unix seconds.

    A number of hours ago is that exact moment; a number of days ago is that whole day. Raises ValueError if `text` does
    not name a time.
    """
    today = datetime.datetime.fromtimestamp(now, datetime.UTC)
    normal = _normal(text)
    if normal == "now":
        return now
    if match := _AGO.fullmatch(normal):
        then = _back(today, match[2], int(match[1]))
        if match[2] in _EXACT:
            return then.timestamp()
        return _calendar("day", then)[end]
    return _span(normal, today)[end]


def range_in(query: str, now: float) -> tuple[str, Range] | None:
    """Find the first words of a query that name a time. Returns these words and the range they mean, or None.

    A month name by itself may be an ordinary word and does not count.
    """
    words = list(_WORD.finditer(query[:1000]))
    for start, first in enumerate(words):
        for last in reversed(words[start : start + _MOST_WORDS]):
            said = query[first.start() : last.end()]
            if _is_vague(said.casefold().split(), _normal(said)):
                continue
            try:
                return said, date_range(said, now)
            except (ValueError, OverflowError):
                continue
    return None


def _is_vague(words: Sequence[str], normal: str) -> bool:
    """Return True if the words may not be about time: `may` and `march` are verbs, `7` is a number."""
    verb = normal.split(" ", maxsplit=1)[0] in ("may", "mar") and not re.search(r"\d{4}", normal)
    return verb or normal in _MONTHS + _WEEKDAYS or normal.isdigit() or "" in map(_MEANT.get, (words[0], words[-1]))


def _normal(text: str) -> str:
    """Normalize to the English words that the parser knows: `vor 3 Tagen` becomes `3 day ago`."""
    words = list(_spoken(text))
    ago = [*words[1:], "ago"]
    return " ".join(ago if words[:1] == ["before"] and _AGO.fullmatch(" ".join(ago)) else words)


def _spoken(text: str) -> Iterator[str]:
    for word in text.casefold().split():
        ordinal = _ORDINAL.fullmatch(word)
        meant = ordinal[1] if ordinal is not None else _MEANT.get(word.rstrip(",."), word)
        if meant:
            yield meant


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
    """Return the first and last moment of a year, month, day or moment, or of words such as `today`."""
    if text in _DAYS_BACK:
        return _calendar("day", now, _DAYS_BACK[text])
    if match := _CALENDAR.fullmatch(text):
        return _calendar(match[2], now, int(match[1] == "last"))
    if match := _LAST.fullmatch(text):
        return (now - _length(match[2], int(match[1] or 1))).timestamp(), now.timestamp()
    if match := _AGO.fullmatch(text):
        moment = now - _length(match[2], int(match[1]))
        if match[2] in _EXACT:
            return (moment - _length(match[2], 1)).timestamp(), moment.timestamp()
        return _calendar(match[2], moment)
    if _YEAR.fullmatch(text):
        return _months(int(text), 1, 12)
    if match := _QUARTER.fullmatch(text):
        return _months(int(match[2] or match[3]), 3 * int(match[1] or match[4]) - 2, 3)
    if match := _MONTH.fullmatch(text):
        month = int(match[2])
        if not 1 <= month <= 12:
            raise ValueError(f"{text!r}: there is no month {month}")
        return _months(int(match[1]), month)
    if match := _GERMAN_DAY.fullmatch(text):
        return _day(int(match[3]), int(match[2]), int(match[1]))
    if (match := _NAMED.fullmatch(text)) and match[3] in (*_MONTHS, *_WEEKDAYS):
        return _named(match, now)
    try:
        return instant(text.upper()), instant(text.upper(), end_of_day=True)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a date or a date range") from None


def _named(match: re.Match[str], now: datetime.datetime) -> tuple[float, float]:
    """Parse a month, a day of a month or a weekday by name; without a year, the most recent one that has begun."""
    which, before, name, after, year = match.groups()
    if name in _WEEKDAYS:
        if before or after or year:
            raise ValueError(f"{match[0]!r} is not a date")
        back = (now.weekday() - _WEEKDAYS.index(name)) % 7
        return _calendar("day", now, 7 if which == "last" and not back else back)
    month = _MONTHS.index(name) + 1
    latest = now.year - (month > now.month or (which == "last" and month == now.month))
    if before or after:
        return _day(int(year or latest), month, int(before or after))
    return _months(int(year or latest), month)


def _calendar(unit: str, moment: datetime.datetime, back: int = 0) -> tuple[float, float]:
    """Return the day, week, month, quarter or year that contains a moment, or the one `back` units earlier."""
    if unit in ("day", "week"):
        days = 1 if unit == "day" else 7
        begin = moment.replace(hour=0, minute=0, second=0, microsecond=0)
        begin -= (back * days + (begin.weekday() if unit == "week" else 0)) * _DAY
        return _ends(begin, begin + days * _DAY)
    months = {"month": 1, "quarter": 3, "year": 12}[unit]
    return _months(moment.year, moment.month - (moment.month - 1) % months - back * months, months)


def _length(unit: str, count: int) -> datetime.timedelta:
    seconds = {"second": 1, "minute": 60, "hour": 3600}
    days = {"day": 1, "week": 7, "month": 30.4375, "year": 365.25}
    return (
        datetime.timedelta(seconds=seconds[unit] * count) if unit in seconds else datetime.timedelta(days[unit] * count)
    )


def _back(moment: datetime.datetime, unit: str, count: int) -> datetime.datetime:
    """Go back `count` units; for months and years, to the same day or the last day of a shorter month."""
    if unit not in ("month", "year"):
        return moment - _length(unit, count)
    month = moment.month - 1 - count * (12 if unit == "year" else 1)
    year = moment.year + month // 12
    return moment.replace(year=year, month=month % 12 + 1, day=min(moment.day, monthrange(year, month % 12 + 1)[1]))


def _day(year: int, month: int, day: int) -> tuple[float, float]:
    begin = datetime.datetime(year, month, day, tzinfo=datetime.UTC)
    return _ends(begin, begin + _DAY)


def _months(year: int, month: int, count: int = 1) -> tuple[float, float]:
    """Return the span of `count` months; a month outside 1 to 12 belongs to the previous or next year."""
    begin, end = (
        datetime.datetime(year + number // 12, number % 12 + 1, 1, tzinfo=datetime.UTC)
        for number in (month - 1, month - 1 + count)
    )
    return _ends(begin, end)


def _ends(begin: datetime.datetime, end: datetime.datetime) -> tuple[float, float]:
    return begin.timestamp(), (end - _TICK).timestamp()
