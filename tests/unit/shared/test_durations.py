"""Durations in ordinary notation: every unit, calendar months, and values that are refused."""

from __future__ import annotations

import pytest

from services.shared import times

FROM_NS = times.parse("2026-01-31T10:00:00Z")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90 s", "2026-01-31T10:01:30Z"),
        ("2min", "2026-01-31T10:02:00Z"),
        ("12h", "2026-01-31T22:00:00Z"),
        ("3 Days", "2026-02-03T10:00:00Z"),
        ("2 weeks", "2026-02-14T10:00:00Z"),
        ("1 month", "2026-02-28T10:00:00Z"),
        ("6 months", "2026-07-31T10:00:00Z"),
        ("13mo", "2027-02-28T10:00:00Z"),
        ("2 quarters", "2026-07-31T10:00:00Z"),
        ("1 year", "2027-01-31T10:00:00Z"),
        (" 2y ", "2028-01-31T10:00:00Z"),
    ],
)
def test_a_duration_leads_to_a_time(text: str, expected: str) -> None:
    after = times.after(text, FROM_NS)
    assert after is not None
    assert times.rfc3339(after) == expected


@pytest.mark.parametrize("text", ["2 moons", "6 m", "3 fortnights", "1 M"])
def test_an_unknown_unit_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(ValueError, match="unknown unit; write a number and s, min, h, d, w, mo"):
        times.after(text, FROM_NS)


@pytest.mark.parametrize("text", ["", "soon", "2026-02-01", "1.5 h", "-3 d", "1h30min", "d"])
def test_texts_that_are_no_durations_are_left_to_other_parsers(text: str) -> None:
    assert times.after(text, FROM_NS) is None


def test_a_duration_beyond_the_calendar_ends_at_the_last_possible_instant() -> None:
    assert times.after("999999 years", FROM_NS) == 2**63 - 1
