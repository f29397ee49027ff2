"""Patterns with git's rules for ignore files, matched in linear time."""

from __future__ import annotations

import re
from collections.abc import Sequence

import re2  # type: ignore[import-untyped]  # it ships neither types nor stubs
from pathspec import GitIgnoreSpec
from pathspec._backends.re2._base import RE2_OPTIONS  # no public name; the release is pinned

MEMORY_BYTES = (8 << 20, 64 << 20)
"""Tried one after the other, for the automaton of some patterns."""

PROBE = ".linckia-probe"
"""A name that is matched along with the patterns: an automaton that does not find it has too little memory."""


def gitignore(lines: Sequence[str]) -> GitIgnoreSpec:
    """Patterns with git's rules, in linear time (RE2).

    Raises ValueError: one of them cannot be understood, or together they are too many.
    """
    assert RE2_OPTIONS is not None
    for memory in MEMORY_BYTES:
        RE2_OPTIONS.max_mem = memory
        # One that has too little memory for a single step says of every path that it does not match.
        try:
            spec = GitIgnoreSpec.from_lines([*lines, f"/{PROBE}"], backend="re2")
            if spec.check_file(PROBE).include:
                return spec
        except re2.error:
            continue
        except re.error as error:
            raise ValueError(str(error)) from None
    raise ValueError("a pattern, or all of them together, is more than can be matched in linear time")
