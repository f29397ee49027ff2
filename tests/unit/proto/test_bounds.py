"""External JSON is counted before it is decoded; decoding and checking cost time in proportion to its length."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from proto import validation as bounds
from proto.errors import InvalidParams
from proto.validation import respelled, validate
from tests.unit.costs import MOST, growth

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('a"\\[]{},:\n', max_size=6),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text('k"\\[{,', max_size=4), inner, max_size=5),
    max_leaves=40,
)


def counted(value: object) -> tuple[int, int, int]:
    """Containers, strings and levels, as the decoded value has them."""
    if isinstance(value, str):
        return 0, 1, 0
    if not isinstance(value, list | dict):
        return 0, 0, 0
    inner = [counted(each) for each in (value.values() if isinstance(value, dict) else value)]
    keys = len(value) if isinstance(value, dict) else 0
    return (
        1 + sum(each[0] for each in inner),
        keys + sum(each[1] for each in inner),
        1 + max((each[2] for each in inner), default=0),
    )


@given(JSON, st.booleans(), st.sampled_from([2, 5, 20]))
def test_json_is_refused_exactly_if_its_decoded_value_exceeds_a_bound(
    value: object, ascii_only: bool, most: int
) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only).encode()
    containers, strings, levels = counted(value)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bounds, "MAX_DEPTH", 2)
        patched.setattr(bounds, "MAX_CONTAINERS", most)
        patched.setattr(bounds, "MAX_STRINGS", most)
        refused = bounds.exceeded(data)
    # Up to MAX_DEPTH brackets in a text no longer than MAX_STRINGS nothing has to be counted: nothing can be too much.
    assert (refused is not None) == (containers > most or strings > most or levels > 2)


def test_values_of_a_list_are_counted_and_commas_of_a_text_are_not() -> None:
    many = bounds.MAX_VALUES + 2
    assert bounds.exceeded(b"[" + b"0," * many + b"0]") == f"{many} values, more than {bounds.MAX_VALUES}"
    assert bounds.exceeded(b'["' + b"0,[]{}" * many + b'"]') is None
    assert bounds.exceeded(b"[" + b"0," * many + b"0]", times=2) is None
    keys = bounds.MAX_KEYS + 1
    assert bounds.exceeded(b"{" + b'"":0,' * keys + b"}") == f"{keys} keys, more than {bounds.MAX_KEYS}"


def test_a_flood_is_refused_after_reading_only_its_beginning() -> None:
    assert bounds.exceeded(b"[" + b"[]," * 3_000_000 + b"0]") == "349525 values, more than 320000"


def test_the_largest_valid_parameters_of_operations_are_within_the_bounds() -> None:
    for many in (
        {"paths": [f"/srv/photos/2026/{n}.jpg" for n in range(100_000)]},
        {"renames": [{"path": f"/a/{n}", "new_name": f"{n}"} for n in range(10_000)]},
        {"input": [[n] * 146 for n in range(2048)]},
    ):
        assert bounds.exceeded(msgspec.json.encode(many)) is None


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a tree."""

    n: int = 0


class Wide(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Takes anything."""

    message: str = ""
    numbers: list[int | list[int]] = []
    inner: list[Inner] = []
    some_data: Annotated[dict[str, Any], Meta(description="Any")] = {}


SHAPES: dict[str, Callable[[int], object]] = {
    "lists": lambda n: {"message": [[] for _ in range(n)]},
    "lists in what has no type": lambda n: {"some_data": {"a": [[] for _ in range(n)]}},
    "keys": lambda n: {f"key{i}": 1 for i in range(n)},
    "keys in camel case": lambda n: {"aB" * 4 + str(i): 1 for i in range(n)},
    "keys in what has no type": lambda n: {"some_data": {f"key{i}": i for i in range(n)}},
    "a long key": lambda n: {"k" * n: 1},
    "long keys above many": lambda n: {"some_data": {"k" * n: {f"{i}": i for i in range(n)}}},
    "a long key that looks like a place": lambda n: {" - at `" * n: 1},
    "too large under a long key": lambda n: {"some_data": {"k" * n: [*range(n), 2**64]}},
    "integers": lambda n: {"numbers": list(range(n))},
    "floats": lambda n: {"numbers": [1.0] * n},
    "lists of floats": lambda n: {"numbers": [[1.0] for _ in range(n)]},
    "a fraction at the end": lambda n: {"numbers": [*([1.0] * n), 1.5]},
    "objects": lambda n: {"inner": [{"n": 1.0} for _ in range(n)]},
    "text for a number": lambda n: {"numbers": "1" * n},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_checking_takes_time_in_proportion_to_the_input(shape: str) -> None:
    def check(arguments: object) -> None:
        assert isinstance(arguments, dict)
        with contextlib.suppress(InvalidParams):
            validate(Wide, respelled(Wide, arguments))

    assert growth(check, SHAPES[shape], 4000) < MOST


TEXTS: dict[str, Callable[[int], bytes]] = {
    "lists": lambda n: b"[" + b"[]," * n + b"0]",
    "deep": lambda n: b"[" * n + b"]" * n,
    "brackets in strings": lambda n: b"[" + b'"[",' * n + b"0]",
    "escapes": lambda n: b'["' + b'\\\\\\"' * n + b'"]',
    "quotes without an end": lambda n: b'"[' * n,
}


@pytest.mark.parametrize("text", TEXTS)
def test_counting_costs_in_proportion_to_the_text(text: str) -> None:
    assert growth(bounds.exceeded, TEXTS[text], 20_000) < MOST
