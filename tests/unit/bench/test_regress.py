"""The comparison with an earlier commit: ratios, the limit, and the order of the rounds."""

from __future__ import annotations

import json

import pytest

from tests.bench.regress.calls import CALLS, KEYED
from tests.bench.regress.figures import BASE, BOTH, THIS, Row, heading, turns
from tests.bench.regress.kernels import Failed, result_of


def row(base: list[list[float]], this: list[list[float]], *, is_rate: bool = False) -> Row:
    made = Row("a path", "ms", is_rate=is_rate)
    for block in base:
        made.add(BASE, block)
    for block in this:
        made.add(THIS, block)
    return made


def answer(**message: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, **message}).encode()


@pytest.mark.parametrize("rounds", [0, 1, 2, 6])
def test_each_round_measures_both_and_the_next_begins_with_the_other(rounds: int) -> None:
    order = turns(rounds)
    assert [sorted(pair) for pair in order] == [sorted(BOTH)] * rounds
    assert [pair[0] for pair in order] == [(BASE, THIS)[number % 2] for number in range(rounds)]


def test_ratio_compares_the_medians_of_all_samples() -> None:
    made = row([[1, 2], [2, 90]], [[3, 3], [3, 1]])
    assert (made.middle(BASE), made.middle(THIS), made.ratio()) == (2, 3, 1.5)


def test_rate_that_falls_has_a_ratio_above_one() -> None:
    made = row([[1200.0]], [[1000.0]], is_rate=True)
    assert made.ratio() == pytest.approx(1.2)
    assert made.is_slower(1.1)


@pytest.mark.parametrize(("this", "slower"), [(0.5, False), (1.0, False), (1.1, False), (1.11, True)])
def test_only_ratios_above_the_limit_are_flagged(this: float, slower: bool) -> None:
    made = row([[1.0]], [[this]])
    assert made.is_slower(1.1) == slower
    assert ("SLOWER" in made.line(1.1)) == slower
    assert made.as_json(1.1)["slower"] == slower


def test_the_spread_is_that_of_the_rounds_ratios() -> None:
    assert row([[1.0], [2.0]], [[2.0], [1.0]]).spread() == (0.5, 2.0)


def test_path_that_fails_in_this_checkout_only_is_flagged() -> None:
    made = row([[1.0]], [])
    made.failures[THIS] = "no answer"
    assert made.is_slower(1.1)
    assert "this: no answer" in made.line(1.1)


@pytest.mark.parametrize("failing", [(BASE,), (BASE, THIS)])
def test_path_that_the_base_lacks_is_named_and_not_flagged(failing: tuple[str, ...]) -> None:
    made = row([], [[1.0]])
    for subject in BOTH:
        if subject in failing:
            made.failures[subject] = "no such operation"
    assert made.ratio() is None
    assert made.spread() is None
    assert not made.is_slower(1.1)
    assert "base: no such operation" in made.line(1.1)


def test_samples_before_a_failure_do_not_count() -> None:
    made = row([[1.0]], [[0.1]])
    made.failures[THIS] = "wrong answer"
    assert made.middle(THIS) is None
    assert made.as_json(1.1)["ratio"] is None


def test_columns_are_below_their_headings() -> None:
    line = row([[1.25]], [[1.5]]).line(1.3)
    for heading_of, figure in (("base", "1.25"), ("this", "1.50"), ("ratio", "1.20")):
        assert heading().index(heading_of) + len(heading_of) == line.index(figure) + len(figure)


def test_result_of_a_tool_is_its_structured_content() -> None:
    result = {"content": [], "structuredContent": {"a": 1}, "isError": False}
    assert result_of(answer(result=result)) == {"a": 1}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (answer(error={"code": -32602, "message": "Unknown tool: nosuch"}), "no such operation"),
        (answer(error={"code": -32603, "message": "it broke"}), "it broke"),
        (answer(result={"content": [{"type": "text", "text": "no file"}], "isError": True}), "no file"),
        (b"", "no JSON"),
    ],
)
def test_answer_that_is_not_a_result_is_never_measured(message: bytes, said: str) -> None:
    with pytest.raises(Failed, match=said):
        result_of(message)


def test_calls_have_different_names_and_those_with_keys_exist() -> None:
    names = [call.name for call in CALLS]
    assert len(set(names)) == len(names)
    assert set(KEYED) <= set(names)
