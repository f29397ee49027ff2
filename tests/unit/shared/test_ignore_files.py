"""Ignore files are written by anybody, beside names of any bytes: neither ends a walk."""

from __future__ import annotations

import pytest

from services.shared.ignore_files import rules_from
from services.watch.trees import Rules

ODD = "caf\udce9.log"


def test_name_that_is_not_utf_8_is_matched_like_any_other() -> None:
    rules = rules_from(["*.log\n"], None, 0)
    assert rules.ignores(ODD, is_folder=False)
    assert not rules.ignores("caf\udce9", is_folder=True)
    watched = Rules(["a/**/*.log"], [])
    assert watched.passes_over("a/", ODD, is_folder=False)


def test_invalid_pattern_is_skipped_and_the_others_apply() -> None:
    rules = rules_from(["a[z-a]\n*.log\n"], None, 0)
    assert rules.ignores("x.log", is_folder=False)
    with pytest.raises(ValueError, match="is not a valid"):
        Rules(["a[z-a]"], [])


def test_more_patterns_than_one_automaton_holds_are_still_matched() -> None:
    rules = rules_from(["\n".join(f"*foo{number}*bar{number}*.txt" for number in range(1500))], None, 0)
    assert rules.ignores("foo7-bar7-.txt", is_folder=False)
    assert not rules.ignores("foo7-bar8.txt", is_folder=False)


def test_absurdly_long_ignore_files_are_truncated() -> None:
    rules = rules_from(["\n".join(["kept", *("*é*" * 400 + str(number) for number in range(2500)), "lost"])], None, 0)
    assert rules.ignores("kept", is_folder=False)
    assert not rules.ignores("lost", is_folder=False)


def test_absurd_non_ascii_character_classes_are_not_read() -> None:
    # Each takes a millisecond to compile: 32 KiB of them kept their reader for four seconds.
    assert rules_from(["[a-\ufffd]" * 200], None, 0).ignores("x" * 200, is_folder=False)
    assert not rules_from(["[a-\ufffd]" * 300], None, 0).ignores("x" * 300, is_folder=False)
