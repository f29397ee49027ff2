"""Edits of a note's text: the requested part changes, and every other byte stays."""

from __future__ import annotations

import random

import pytest

from proto.errors import LinckiaError
from services.knowledge.operations.writing import EditNote, Replacement, SectionText
from services.knowledge.writing.editing import edited, split, with_front_matter
from services.yaml.merging import merge

NOTE = "---\ntitle: T # mine\n---\n# One\n\nbody\n\n## Two\n\ntwo\n\n## Three\nthree\n"


def edit(text: str, **asked: object) -> str:
    params = EditNote(path="x.md", **asked)  # type: ignore[arg-type]
    params.check()
    return edited(text, params, lambda front: merge(front, params.front_matter))


@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize(
    ("asked", "before", "after"),
    [
        ({"append": "end"}, "three\n", "three\nend\n"),
        ({"prepend": "start\n"}, "---\n# One", "---\nstart\n# One"),
        ({"replace": Replacement("body\n\n## Two", "b\n## 2")}, "body\n\n## Two", "b\n## 2"),
        ({"section": SectionText("Two", "new\nlines")}, "\ntwo\n\n", "\nnew\nlines\n\n"),
        ({"section": SectionText("One > Three", "3\n\n")}, "\nthree\n", "\n3\n"),
        ({"section": SectionText("## Two", "## Two\n\nwith its heading")}, "\ntwo\n\n", "\nwith its heading\n\n"),
        ({"section": SectionText("Two", "")}, "## Two\n\ntwo\n\n", "## Two\n\n"),
        ({"section": SectionText("Four", "4", create=True)}, "three\n", "three\n\n## Four\n\n4\n"),
        ({"section": SectionText("Two > Sub", "s", create=True)}, "two\n\n", "two\n\n### Sub\n\ns\n\n"),
        ({"front_matter": {"title": "New: one", "n": 3}}, "T # mine\n", '"New: one" # mine\nn: 3\n'),
        ({"front_matter": {"title": None}}, "---\ntitle: T # mine\n---\n", ""),
        ({"front_matter": {"absent": None}, "append": "x"}, "three\n", "three\nx\n"),
    ],
)
def test_one_place_changes_and_every_other_byte_stays(
    line_break: str, mark: str, asked: dict[str, object], before: str, after: str
) -> None:
    def as_in_file(text: str) -> str:
        return text.replace("\n", line_break)

    assert NOTE.count(before) == 1
    done = edit(mark + as_in_file(NOTE), **asked)
    assert done == mark + as_in_file(NOTE.replace(before, after))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"replace": Replacement("t", "x")}, "occurs 4 times"),
        ({"replace": Replacement("zebra", "x")}, "does not occur in the note; notes_read has its text"),
        ({"replace": Replacement("## Towe", "x")}, r"does not occur in the note; line \d+ is nearest: '## Two'"),
        ({"section": SectionText("Twoo", "x")}, "did you mean Two"),
        ({"section": SectionText("Nine > Ten", "x", create=True)}, "section not found: 'Nine'"),
        ({"front_matter": {"a": "x" * 70_000}}, "the limit is 65536"),
        ({}, "say what to change"),
    ],
)
def test_impossible_edits_are_refused_with_the_reason(asked: dict[str, object], said: str) -> None:
    with pytest.raises(LinckiaError, match=said):
        edit(NOTE, **asked)


def test_a_repeated_heading_is_identified_by_its_parent() -> None:
    text = "# A\n\n## Log\n\n1\n\n# B\n\n## Log\n\n2\n"
    with pytest.raises(LinckiaError, match="2 headings match 'Log'"):
        edit(text, section=SectionText("Log", "x"))
    assert edit(text, section=SectionText("B > Log", "x")) == text.replace("2", "x")


def test_overlapping_occurrences_count() -> None:
    with pytest.raises(LinckiaError, match="occurs 2 times"):
        edit("aaa\n", replace=Replacement("aa", "b"))


def test_a_missing_break_at_the_end_stays_missing() -> None:
    assert edit("a", append="b") == "a\nb"
    assert edit("# A\n\nb", section=SectionText("A", "c\n")) == "# A\n\nc"
    assert edit("", append="b") == "b\n"


def test_front_matter_is_made_and_removed_with_its_dashes() -> None:
    made = with_front_matter("\ufeffbody\r\n", lambda front: merge(front, {"tags": ["a", "b c"], "yes": "no"}))
    assert made == '\ufeff---\r\ntags: [a, b c]\r\n"yes": "no"\r\n---\r\nbody\r\n'
    assert split(made)[1] == "body\r\n"
    assert with_front_matter(made, lambda front: merge(front, {"tags": None, "yes": None})) == "\ufeffbody\r\n"


def test_front_matter_keeps_comments_order_and_unchanged_values() -> None:
    front = "# head\nb: 2\na: [x, y]   # why\n\nc:\n  - 1\n  - 2\n"
    assert merge(front, {"a": ["x", "y"], "b": 2}) == front
    assert merge(front, {"c": [1, 2]}) == front
    assert merge(front, {"b": 3, "d": "2026-01-01"}) == front.replace("b: 2", "b: 3") + 'd: "2026-01-01"\n'


def test_edits_of_any_note_leave_the_rest_unchanged() -> None:
    rng = random.Random(0)
    pieces = ["# H\n", "## S\n", "t\r\n", "t\n", "\n", "\r\n", "```\n# no\n```\n", "---\n", "a: 1\n", "\ufeff", "x"]
    for _ in range(2000):
        text = "".join(rng.choices(pieces, k=rng.randint(0, 9)))
        head, body = split(text)
        assert head + body == text
        added = edit(text, append="END")
        assert added.startswith(text)
        assert added.rstrip("\r\n").endswith("END")
        assert edit(text, prepend="START\n").replace("START\r\n", "").replace("START\n", "") == text
