"""Patterns with git's ignore-file rules, matched in linear time."""

from __future__ import annotations

import re
from collections.abc import Sequence

import re2  # type: ignore[import-untyped]  # it ships neither types nor stubs
from pathspec import GitIgnoreSpec
from pathspec._backends.re2._base import RE2_OPTIONS  # not public; the release is pinned

MEMORY_BYTES = (8 << 20, 64 << 20)
"""Memory limits tried in this order, because some patterns have large automata."""

PROBE = ".linckia-probe"
"""A name matched along with the patterns: an automaton that does not find it has too little memory."""


def gitignore(lines: Sequence[str]) -> GitIgnoreSpec:
    """Compile patterns with git's rules for linear-time matching (RE2).

    Raises ValueError if a pattern is invalid or the patterns are too large together.
    """
    assert RE2_OPTIONS is not None
    for memory in MEMORY_BYTES:
        RE2_OPTIONS.max_mem = memory
        # An automaton with too little memory for one step reports that no path matches.
        try:
            spec = GitIgnoreSpec.from_lines([*lines, f"/{PROBE}"], backend="re2")
            if spec.check_file(PROBE).include:
                return spec
        except re2.error:
            continue
        except re.error as error:
            raise ValueError(str(error)) from None
    raise ValueError("a pattern, or the patterns together, are too large to match in linear time")
