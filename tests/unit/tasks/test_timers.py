"""When timers are due, and what becomes of runs that were missed."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from proto.errors import InvalidParams
from proto.ops.tasks import Missed, Schedule
from services.tasks.timers import MAX_EACH, Due, due, first_time

DAY = 86_400


def at(text: str) -> int:
    return int(datetime.datetime.fromisoformat(text).timestamp())


def test_a_one_time_timer_has_no_next_time_once_it_is_due() -> None:
    assert due(100, "", "UTC", "once", 99.5) == Due([], 100)
    assert due(100, "", "UTC", "once", 100.0) == Due([100], None)


def test_an_on_time_run_takes_place_under_every_policy_for_missed_ones() -> None:
    first = at("2026-03-01T03:00:00+00:00")
    cases: tuple[Missed, ...] = ("once", "each", "skip")
    for missed in cases:
        assert due(first, "0 3 * * *", "UTC", missed, first + 1) == Due([first], first + DAY)


def test_missed_runs_run_once_each_or_not_at_all_as_configured() -> None:
    first = at("2026-03-01T03:00:00+00:00")
    now = first + 3 * DAY + 3600
    after = first + 4 * DAY
    assert due(first, "0 3 * * *", "UTC", "once", now) == Due([first + 3 * DAY], after)
    assert due(first, "0 3 * * *", "UTC", "each", now) == Due([first + n * DAY for n in range(4)], after)
    assert due(first, "0 3 * * *", "UTC", "skip", now) == Due([], after)


def test_only_the_latest_of_very_many_missed_runs_are_made_up_for() -> None:
    first = at("2026-03-01T03:00:00+00:00")
    found = due(first, "* * * * *", "UTC", "each", first + DAY)
    assert (len(found.runs), found.runs[-1], found.next_s) == (MAX_EACH, first + DAY, first + DAY + 60)


def test_a_time_of_day_is_that_of_the_time_zone_also_when_clocks_change() -> None:
    first = at("2026-03-28T03:30:00+01:00")
    found = due(first, "30 3 * * *", "Europe/Berlin", "once", first)
    assert found.next_s == at("2026-03-29T03:30:00+02:00")


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"cron": "nonsense"}, "cron"),
        ({"cron": "0 0 30 2 *"}, "cron"),
        ({"cron": "* * * * *", "time_zone": "Nowhere/At_All"}, "time_zone"),
        ({"at": "yesterday at noon"}, "at"),
        ({"at": "2001-01-01T00:00:00Z"}, "at"),
    ],
)
def test_a_time_that_never_comes_is_refused_by_its_field(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidParams) as caught:
        first_time(Schedule(operation="mcp_echo", **given), at("2026-03-01T00:00:00+00:00"))
    assert caught.value.failure.field == field


def test_a_time_from_now_and_a_fixed_one() -> None:
    now = at("2026-03-01T00:00:00+00:00")
    assert first_time(Schedule(operation="mcp_echo", at="2h"), now) == now + 7200
    assert first_time(Schedule(operation="mcp_echo", at="2026-03-01T00:01:00Z"), now) == now + 60
