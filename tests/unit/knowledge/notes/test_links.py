"""Which references a text makes, and which it does not."""

from __future__ import annotations

import pytest

from services.knowledge.notes.files import Place
from services.knowledge.notes.links import entries, slug, without_code
from services.knowledge.notes.markdown import parse
from services.shared.models.measure import ROUGH
from tests.processor_time import processor_time

PLACE = Place("/notes", "guides/here.md")


def references(text: str) -> list[tuple[str, str]]:
    return [(r.kind, r.key) for r in parse(text, PLACE, ROUGH).references]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[[Some Title]]", [("CITES", "some title")]),
        ("[[note-id|a label]]", [("CITES", "note-id")]),
        ("[[Note#Heading]]", [("CITES", "note")]),
        ("[[C#]]", [("CITES", "c#")]),
        ("[[#Only a heading]]", []),
        ("![[embedded.md]]", [("CITES", "embedded")]),
        ("| [[in table\\|label]] |", [("CITES", "in table")]),
        ("[[a]] [[a]] [[A]]", [("CITES", "a")]),
        ("[x](other.md)", [("LINKS_TO", "/notes/guides/other.md")]),
        ("[x](../up/other.md#part)", [("LINKS_TO", "/notes/up/other.md")]),
        ("[x](/top.md)", [("LINKS_TO", "/notes/top.md")]),
        ("[x](<with space.md>)", [("LINKS_TO", "/notes/guides/with space.md")]),
        ("[x](with%20space.md 'title')", [("LINKS_TO", "/notes/guides/with space.md")]),
        ("[x](a(1).md)", [("LINKS_TO", "/notes/guides/a(1).md")]),
        ("[x][r]\n\n[r]: ref.md\n", [("LINKS_TO", "/notes/guides/ref.md")]),
        ("[x](http://e.org/a.md) [y](https://e.org/a.md) [z](//e.org/a.md) [m](mailto:a.md)", []),
        ("[x](picture.png) [y](#here)", []),
        ("[tag: Big Idea]", [("TAGGED_AS", "big idea")]),
        ("this shows tag-caching, well", [("EXEMPLIFIES", "caching")]),
        ("a meta-tag-x or /tag-y", []),
        ("<!-- tags: [implements: Spec-1] -->", [("IMPLEMENTS", "spec-1")]),
        ("<!-- tags: [QUALITY: high], [seen: a, b] -->", [("SEEN", "a"), ("SEEN", "b")]),
        ("<!-- tags: [SEE_ALSO: a] [quality: high][seen: b] -->", [("SEE_ALSO", "a"), ("SEEN", "b")]),
        ("---\nreferences: one\nfollows: [two, '[[Three]]']\nimplements:\n- four.md\n---\n",
         [("REFERENCES", "one"), ("FOLLOWS", "two"), ("FOLLOWS", "three"), ("IMPLEMENTS", "four")]),
        ("```\n[[code]]\n```\n`[[span]]` ``a ` [[b]]`` [[real]]", [("CITES", "real")]),
        ("a ` lone tick [[real]]\n\nand ` another", [("CITES", "real")]),
        ("    [[indented code]]", []),
        ("[[unclosed and [x](", []),
    ],
)  # fmt: skip
def test_links_in_a_text_are_found(text: str, expected: list[tuple[str, str]]) -> None:
    assert references(text) == expected


def test_tags_come_from_front_matter_comments_and_marks() -> None:
    text = "---\ntags: ['#One', two]\n---\n[tag: Three]\n\n<!-- tags: four, [KEY: id], TWO -->\n"
    assert parse(text, PLACE, ROUGH).tags == ("one", "two", "four", "three")


@pytest.mark.parametrize(
    ("name", "id_"),
    [("My Note_v2", "my-note-v2"), ("a.b", "a-b"), ("Grüße!", "grüße-"), ("x--y", "x--y"), ("Ä。", "ä-")],
)
def test_id_is_the_lower_cased_name_with_dashes(name: str, id_: str) -> None:
    assert slug(name) == id_


def test_entries_are_parted_outside_brackets() -> None:
    assert entries(" a, [KEY: b, c],,d  e ") == ["a", "[KEY: b, c]", "d e"]
    assert entries("a, [b, c, d") == ["a", "[b", "c", "d"]


def test_blanked_code_leaves_everything_else_in_its_place() -> None:
    text = "a `b` c\n```\nd\n```\ne"
    assert without_code(text, [(1, 4)]) == "a     c\n   \n \n   \ne"


@pytest.mark.parametrize("unit", ["[[", "](", "`", "` ``", "<!-- tags:", "[tag:", "[a]: ", "](a(", "[x: "])
def test_hostile_text_is_read_in_linear_time(unit: str) -> None:
    """A quadratic pattern takes minutes of processor time here, not milliseconds."""
    with processor_time(10):
        found = parse(unit * (200_000 // len(unit)), PLACE, ROUGH)
    assert [each.kind for each in found.references if each.kind != "hashtag"] == []
