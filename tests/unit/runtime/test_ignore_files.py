"""Ignore files are written by anybody, beside names of any bytes: neither ends a walk."""

from __future__ import annotations

import pytest

from services.runtime.ignore_files import rules_from
from services.watch.trees import Rules

ODD = "caf\udce9.log"


def test_name_that_is_not_utf_8_is_matched_like_any_other() -> None:
    rules = rules_from(["*.log\n"], None, 0)
    assert rules.ignores(ODD, is_folder=False)
    assert not rules.ignores("caf\udce9", is_folder=True)
    watched = Rules(["a/**/*.log"], [])
    assert watched.passes_over("a/", ODD, is_folder=False)


def test_pattern_that_cannot_be_understood_is_passed_over_and_the_others_count() -> None:
    rules = rules_from(["a[z-a]\n*.log\n"], None, 0)
    assert rules.ignores("x.log", is_folder=False)
    with pytest.raises(ValueError, match="no pattern"):
        Rules(["a[z-a]"], [])
