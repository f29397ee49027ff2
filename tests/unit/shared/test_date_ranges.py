"""Ranges of dates mean what people mean by them, to the last moment of the last day."""

from __future__ import annotations

import datetime

import pytest

from services.shared.date_ranges import date_range, range_in

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
        ("September 2025", "2025-09-01", "2025-10-01"),
        ("in Sept. 2025", "2025-09-01", "2025-10-01"),
        ("September", "2025-09-01", "2025-10-01"),
        ("this March", "2026-03-01", "2026-04-01"),
        ("last March", "2025-03-01", "2025-04-01"),
        ("14 September 2025", "2025-09-14", "2025-09-15"),
        ("September 14th, 2025", "2025-09-14", "2025-09-15"),
        ("from May 2025 to September 2025", "2025-05-01", "2025-10-01"),
        ("since January", "2026-01-01", None),
        ("3 days ago", "2026-03-15", "2026-03-16"),
        ("a week ago", "2026-03-09", "2026-03-16"),
        ("two months ago", "2026-01-01", "2026-02-01"),
        ("last Monday", "2026-03-16", "2026-03-17"),
        ("last Wednesday", "2026-03-11", "2026-03-12"),
        ("last quarter", "2025-10-01", "2026-01-01"),
        ("Q3 2025", "2025-07-01", "2025-10-01"),
        ("letzte Woche", "2026-03-09", "2026-03-16"),
        ("in der letzten Woche", "2026-03-09", "2026-03-16"),
        ("diesen Monat", "2026-03-01", "2026-04-01"),
        ("letztes Jahr", "2025-01-01", "2026-01-01"),
        ("gestern", "2026-03-17", "2026-03-18"),
        ("vor drei Tagen", "2026-03-15", "2026-03-16"),
        ("vor März 2026", None, "2026-03-01"),
        ("seit Februar", "2026-02-01", None),
        ("14. September 2025", "2025-09-14", "2025-09-15"),
        ("14.9.2025", "2025-09-14", "2025-09-15"),
        ("die letzten 7 Tage", "2026-03-11T15:30", "2026-03-18T15:30:00.000001"),
    ],
)
def test_a_range_in_words_has_the_right_start_and_end(text: str, since: str | None, until: str | None) -> None:
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
    "text",
    [
        "",
        "..",
        "someday",
        "2026-13",
        "2026-02-30",
        "2026-03..2026-01",
        "last",
        "last 99999 years",
        "0000",
        "31 February 2026",
        "Monday 2026",
    ],
)
def test_invalid_ranges_are_refused(text: str) -> None:
    with pytest.raises((ValueError, OverflowError)):
        date_range(text, NOW.timestamp())


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("what did we decide last week about the cache?", "last week"),
        ("Was haben wir letzte Woche beschlossen", "letzte Woche"),
        ("notes of September 2026 on pumps", "September 2026"),
        ("the meeting 3 days ago", "3 days ago"),
        ("we may march in 7 steps to the second law", None),
        ("how last works", None),
        ("", None),
    ],
)
def test_a_query_that_names_a_time_is_known_by_its_words(query: str, said: str | None) -> None:
    found = range_in(query, NOW.timestamp())
    assert (found and found[0]) == said
