"""Globs of a client are expanded no further than their bound."""

from __future__ import annotations

import tracemalloc

import pytest

from proto.errors import InvalidParams
from services.files.text.walking import MAX_GLOBS, Globs


def test_braces_are_expanded_in_order_and_nested() -> None:
    globs = Globs(["*.{py,{js,ts}}"])
    assert [globs.verdict("", name) for name in ("a.py", "a.ts", "a.rs")] == [False, False, True]


@pytest.mark.parametrize("glob", ["{a,b,c,d}" * 12, "{" * 500 + "," * 500 + "}" * 500, "{a,b}" * 1000])
def test_more_patterns_than_the_bound_are_refused_before_they_are_made(glob: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InvalidParams, match=f"more than {MAX_GLOBS} patterns"):
            Globs([glob])
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
