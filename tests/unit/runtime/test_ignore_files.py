"""Ignore files with git's rules: hostile ones cost no more than others, and none stops a walk."""

from __future__ import annotations

from services.runtime.ignore_files import rules_from


def ignores(text: str, path: str) -> bool:
    return rules_from([text], None, 0).ignores(path, is_folder=False)


def test_a_name_that_is_no_text_is_compared_as_any_other() -> None:
    assert ignores("*.o", "a\udcff.o")
    assert not ignores("*.o", "a\udcff.c")


def test_a_pattern_that_is_none_is_skipped_and_the_rest_is_kept() -> None:
    text = "a\n!\n\\\n[z-a]\nb/**\n*.log\r\n"
    assert [ignores(text, path) for path in ("a", "b/c", "x.log", "x.txt")] == [True, True, True, False]


def test_more_patterns_than_one_automaton_holds_are_still_matched() -> None:
    text = "\n".join(f"*foo{number}*bar{number}*.txt" for number in range(1500))
    assert ignores(text, "foo7-bar7-.txt")
    assert not ignores(text, "foo7-bar8.txt")


def test_what_no_person_wrote_is_cut_off() -> None:
    text = "\n".join(["kept", *("*é*" * 400 + str(number) for number in range(2500)), "lost"])
    assert ignores(text, "kept")
    assert not ignores(text, "lost")
