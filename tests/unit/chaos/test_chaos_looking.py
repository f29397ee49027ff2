"""What a client of the storm knows after uncertain answers and looks."""

from __future__ import annotations

from tests.chaos.clients import CallOutcome
from tests.chaos.looking import Looks, Seen, Value
from tests.chaos.record import Record

UNSURE = CallOutcome("maybe_executed", executed="maybe")


def classified(value: Value, found: str) -> str:
    """Return the list in which this value is reported; empty if it is possible."""
    record = Record()
    Looks(0, record).compare("it", value, found, record.lost)
    return "late" if record.late else "lost" if record.lost else ""


def test_an_acknowledged_write_leaves_one_value() -> None:
    value = Value("a")
    value.acknowledged("b")
    assert value.possible == {"b"}
    assert classified(value, "a") == "lost"


def test_an_uncertain_write_leaves_both_values_until_a_look() -> None:
    value = Value("a")
    value.uncertain("b")
    assert not classified(value, "a")
    assert not classified(value, "b")
    value.looked_at("a")
    assert not classified(value, "a")
    assert classified(value, "b") == "late"


def test_an_effect_that_was_seen_and_is_gone_is_late() -> None:
    value = Value("a")
    value.uncertain("b")
    value.looked_at("b")
    assert classified(value, "a") == "late"


def test_an_uncertain_write_that_overtakes_an_acknowledged_one_is_late() -> None:
    value = Value("a")
    value.uncertain("b")
    value.acknowledged("c")
    assert classified(value, "b") == "late"
    assert classified(value, "a") == "lost"


def test_a_value_after_a_look_may_be_lost_to_a_later_write() -> None:
    value = Value("a")
    value.uncertain("b")
    value.looked_at("a")
    value.acknowledged("c")
    assert classified(value, "b") == "late"
    assert classified(value, "a") == "lost"


def test_a_refused_write_is_impossible_but_not_late() -> None:
    value = Value("a")
    value.uncertain("b")
    value.refused("b")
    assert value.possible == {"a"}
    assert classified(value, "b") == "lost"


def test_nothing_is_reported_of_a_value_that_nobody_knows() -> None:
    value = Value("a")
    value.any = True
    assert not classified(value, "another")


def test_additions_are_reported_if_they_differ_from_the_look() -> None:
    seen = Seen()
    seen.note("tag", "comes", False)
    seen.note("tag", "goes", True)
    seen.note("tag", "stays", True)
    seen.note("tag", "stays away", False)
    seen.note("document", "of another kind", True)
    assert seen.changed("tag", {"comes", "stays"}.__contains__) == [
        "tag comes is there now",
        "tag goes is not there now",
    ]


async def test_only_an_uncertain_answer_leads_to_a_look() -> None:
    record, value = Record(), Value("a")
    looks = Looks(0, record)

    async def sees_b() -> str:
        return "b"

    await looks.written(value, "b", CallOutcome("unavailable", executed="no"), sees_b)
    assert (value.possible, record.looked) == ({"a"}, 0)
    await looks.written(value, "b", UNSURE, sees_b)
    assert (value.possible, record.looked) == ({"b"}, 1)
    await looks.written(value, "c", CallOutcome("ok"), sees_b)
    assert (value.possible, record.looked) == ({"c"}, 1)
    assert record.maybe == {"done": 1}
    assert not record.failed


async def test_a_look_at_an_impossible_state_is_reported_once() -> None:
    record, value = Record(), Value("a")

    async def sees_another() -> str:
        return "another"

    await Looks(0, record).written(value, "b", UNSURE, sees_another)
    assert len(record.wrong) == 1
    assert value.possible == {"another"}
