"""Ranges of dates mean what people mean by them, to the last moment of the last day."""

from __future__ import annotations

import datetime

import pytest

from services.knowledge.notes.dates import date_range

NOW = datetime.datetime(2026, 3, 18, 15, 30, tzinfo=datetime.UTC)
"""A Wednesday."""


@pytest.mark.parametrize(
    ("text", "since", "until"),
    [
        ("2026-01-17", "2026-01-17", "2026-01-18"),
        ("2026-01", "2026-01-01", "2026-02-01"),
        ("2026-12", "2026-12-01", "2027-01-01"),
        ("2025", "2025-01-01", "2026-01-01"),
        ("2026-01-01..2026-03", "2026-01-01", "2026-04-01"),
        ("2026-01-01...2026-01-01", "2026-01-01", "2026-01-02"),
        ("..2026-01-31", None, "2026-02-01"),
        ("2026-02..", "2026-02-01", None),
        ("From 2026-01 to 2026-02", "2026-01-01", "2026-03-01"),
        ("between yesterday and today", "2026-03-17", "2026-03-19"),
        ("today", "2026-03-18", "2026-03-19"),
        ("this week", "2026-03-16", "2026-03-23"),
        ("last week", "2026-03-09", "2026-03-16"),
        ("last month", "2026-02-01", "2026-03-01"),
        ("this year", "2026-01-01", "2027-01-01"),
        ("last 7 days", "2026-03-11T15:30", "2026-03-18T15:30:00.000001"),
        ("past hour", "2026-03-18T14:30", "2026-03-18T15:30:00.000001"),
        ("since 2026-02", "2026-02-01", None),
        ("after 2026-02", "2026-03-01", None),
        ("before 2026-02", None, "2026-02-01"),
        ("until 2026-02", None, "2026-03-01"),
        ("2026-01-17T12:00:00+02:00..", "2026-01-17T10:00", None),
    ],
)
def test_range_starts_and_ends_where_its_words_say(text: str, since: str | None, until: str | None) -> None:
    """`until` is the first moment that is not in the range any more."""

    def seconds(moment: str | None) -> float | None:
        if moment is None:
            return None
        return datetime.datetime.fromisoformat(moment).replace(tzinfo=datetime.UTC).timestamp()

    begin, end = date_range(text, NOW.timestamp())
    first, stop = seconds(since), seconds(until)
    assert begin == (None if first is None else pytest.approx(first, abs=2e-6))
    assert end == (None if stop is None else pytest.approx(stop - 1e-6, abs=2e-6))
    assert end is None or stop is None or end < stop


@pytest.mark.parametrize(
    "text", ["", "..", "someday", "2026-13", "2026-02-30", "2026-03..2026-01", "last", "last 99999 years", "0000"]
)
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises((ValueError, OverflowError)):
        date_range(text, NOW.timestamp())
