"""Times in words, wherever an operation takes a time: days are those of UTC, and unknown phrases are refused."""

from __future__ import annotations

import datetime

import pytest

from proto.errors import InvalidParams
from services.shared import times

NOW = datetime.datetime(2026, 3, 18, 15, 30, 0, 500_000, tzinfo=datetime.UTC)
"""A Wednesday."""


@pytest.mark.parametrize(
    ("words", "first", "last"),
    [
        ("now", "2026-03-18T15:30:00.5Z", "2026-03-18T15:30:00.5Z"),
        ("today", "2026-03-18T00:00:00Z", "2026-03-18T23:59:59.999999999Z"),
        ("Yesterday", "2026-03-17T00:00:00Z", "2026-03-17T23:59:59.999999999Z"),
        (" the day  before yesterday", "2026-03-16T00:00:00Z", "2026-03-16T23:59:59.999999999Z"),
        ("gestern", "2026-03-17T00:00:00Z", "2026-03-17T23:59:59.999999999Z"),
        ("vor 3 Tagen", "2026-03-15T00:00:00Z", "2026-03-15T23:59:59.999999999Z"),
        ("3 days ago", "2026-03-15T00:00:00Z", "2026-03-15T23:59:59.999999999Z"),
        ("two weeks ago", "2026-03-04T00:00:00Z", "2026-03-04T23:59:59.999999999Z"),
        ("a month ago", "2026-02-18T00:00:00Z", "2026-02-18T23:59:59.999999999Z"),
        ("2 years ago", "2024-03-18T00:00:00Z", "2024-03-18T23:59:59.999999999Z"),
        ("2 hours ago", "2026-03-18T13:30:00.5Z", "2026-03-18T13:30:00.5Z"),
        ("45 minutes ago", "2026-03-18T14:45:00.5Z", "2026-03-18T14:45:00.5Z"),
        ("last week", "2026-03-09T00:00:00Z", "2026-03-15T23:59:59.999999999Z"),
        ("this month", "2026-03-01T00:00:00Z", "2026-03-31T23:59:59.999999999Z"),
        ("last 7 days", "2026-03-11T15:30:00.5Z", "2026-03-18T15:30:00.5Z"),
        ("last Monday", "2026-03-16T00:00:00Z", "2026-03-16T23:59:59.999999999Z"),
        ("2025", "2025-01-01T00:00:00Z", "2025-12-31T23:59:59.999999999Z"),
        ("September 2025", "2025-09-01T00:00:00Z", "2025-09-30T23:59:59.999999999Z"),
        ("14 September 2025", "2025-09-14T00:00:00Z", "2025-09-14T23:59:59.999999999Z"),
    ],
)
def test_a_time_in_words_is_its_first_moment_or_its_last(words: str, first: str, last: str) -> None:
    now = NOW.timestamp()
    assert [times.rfc3339(times.parse(words, end=end, now=now)) for end in (False, True)] == [first, last]


def test_a_month_that_is_shorter_has_its_last_day() -> None:
    now = datetime.datetime(2026, 3, 31, 12, tzinfo=datetime.UTC).timestamp()
    assert times.rfc3339(times.parse("1 month ago", now=now)) == "2026-02-28T00:00:00Z"
    assert times.rfc3339(times.parse("13 months ago", now=now)) == "2025-02-28T00:00:00Z"


@pytest.mark.parametrize("words", ["someday", "soon", "last", "ago", "3 fortnights ago", "99999 years ago", "x" * 5000])
def test_words_that_name_no_time_are_refused_with_what_is_accepted(words: str) -> None:
    with pytest.raises(InvalidParams) as caught:
        times.instant(words, "since")
    assert caught.value.failure.field == "since"
    assert all(each in str(caught.value) for each in ("`yesterday`", "`3 days ago`", "`2024-06-15`", "UTC"))
