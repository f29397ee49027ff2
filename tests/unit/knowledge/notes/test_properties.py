"""Links in the front matter: found in any property however it is written, and renamed without another byte changed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from proto.ops.graph import Direction
from services.knowledge.notes.files import Place
from services.knowledge.notes.frontmatter import split
from services.knowledge.notes.links import pointers
from services.knowledge.operations.notes import ExploreLinks
from services.knowledge.operations.writing import RenameNote
from services.knowledge.writing.relinking import relinked, tokens
from tests.unit.knowledge.rig import notes_service, settled, write

PLACE = Place("/r", "notes/n.md")

WRITTEN = [
    'up: "[[Old One]]"\n',
    "up: '[[Old One|label]]'\n",
    "up: [[Old One]]\n",
    'related:\n  - [[Old One]]\n  - "[[Old One#Part]]"\n',
    "related: ['[[Old One]]', [[Old One]], plain]\n",
    "project:\n  lead:\n    note: see [[Old One]] and '[[Old One]]'\n",
    "summary: >-\n  In [[Old One]]\n  and [[Old One]] too.\n",
    "summary: |\n  ![[Old One#Part|x]]\n",
    'text: "tab\\there [[Old One]] \\u00e9 [[Old\\x20One]]"\n',
    "text: 'it''s [[Old One]]'\n",
    "source: 'a [link](Old%20One.md#part) and [[Old One]]'\n",
    'source: "<[link](<Old One.md>)>"\n',
    "{up: '[[Old One]]', down: [[Old One]]}\n",
    'smile: 😀 [[Old One]]\nquoted: "😀\\t[[Old One]]"\nanchored: &a "[[Old One]]"\n',
    "wrapped: see [[Old\n  One]]\n",
    "folded: >-\n  a [[Old One]] and [[Old\n  One]] end\n\n  more\n",
    "list:\n- > # note\n  [[Old\n  One#Part|x]]\nnext: 1\n",
    "kept: >+\n  a [b](<Old One.md>)\n  [[Old\n  One]]\n\n",
    "broken: [[Old One]] and [[Old One]]\n",
]


def references(text: str) -> list[tuple[str, str]]:
    front, body = split(text)
    return [(each.kind, each.key) for each in pointers(body, [], front, PLACE)[0]]


@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
@pytest.mark.parametrize("front", WRITTEN)
def test_a_link_in_any_property_is_one_and_changes_alone(front: str, line_break: str) -> None:
    found = set(references(f"---\n{front}---\n"))
    assert found <= {("CITES", "old one"), ("LINKS_TO", "/r/notes/Old One.md")}
    assert found
    text = f"\ufeff---\n{front}---\nbody\n".replace("\n", line_break)
    after, count = relinked(text, {"Old One": "New-1"}, {"Old One.md": "New-1.md", "Old%20One.md": "New-1.md"})
    expected = text.replace("Old%20One", "New-1").replace("Old\\x20One", "New-1").replace("Old One", "New-1")
    assert after == expected.replace(f"Old{line_break}  One", "New-1")
    assert count == expected.count("New-1") + text.count(f"Old{line_break}")


@pytest.mark.parametrize(
    "front",
    ["# [[Old One]]\na: 1\n", "a: 1 # [[Old One]]\n", "a:\n  # see [[Old One]]\n  - b\n", "a: [[b]] c # [[Old One]]\n"],
)
def test_links_in_comments_are_ignored(front: str) -> None:
    text = f"---\n{front}---\n"
    assert ("CITES", "old one") not in references(text)
    assert relinked(text, {"Old One": "New"}, {}) == (text, 0)


def test_links_of_a_relation_have_only_its_type() -> None:
    front = (
        "---\nreferences: see [[A]] and [b](b.md)\nfollows: [[C, D]]\nimplements:\n  main: '[[E]]'\n"
        "other: '[[F]]'\nreferences-too: '[[G]]'\n---\n"
    )
    assert references(front) == [
        ("REFERENCES", "a"), ("REFERENCES", "/r/notes/b.md"), ("FOLLOWS", "c, d"), ("IMPLEMENTS", "e"),
        ("CITES", "f"), ("CITES", "g"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("front", "new", "after"),
    [
        ('a: "x [[Old]]"\n', 'The "New"', 'a: "x [[The \\"New\\"]]"\n'),
        ("a: 'x [[Old]]'\n", "O'Neil", "a: 'x [[O''Neil]]'\n"),
        ("a: x [[Old]]\n", "O'Neil, B", "a: x [[O'Neil, B]]\n"),
        ('a: "[[Old]]"\n', "Plan: B", 'a: "[[Plan: B]]"\n'),
    ],
)
def test_a_new_name_is_quoted_as_needed(front: str, new: str, after: str) -> None:
    assert relinked(f"---\n{front}---\n", {"Old": new}, {}) == (f"---\n{after}---\n", 1)
    assert new in str(yaml.safe_load(after))


def test_every_token_is_at_its_place() -> None:
    for front in WRITTEN:
        text = f"---\n{front}---\n"
        for token in tokens(text):
            raw = text[token.start : token.end].replace("%20", " ").replace("\\x20", " ").replace("\n  ", " ")
            assert raw in ("Old One", "Old One.md")


async def test_links_in_properties_are_edges_and_follow_a_renaming(tmp_path: Path, root: Path) -> None:
    body = (
        '---\n日付: x # [[Bob]]\nteam:\n  - "[[Bob]]"\nlead: {name: [[people/Bob]]}\n'
        "seen: 'with [[Bob|B.]] in [it](people/Bob.md)'\n---\nOf [[Bob]].\n"
    )
    write(root, "a.md", body)
    write(root, "people/Bob.md", "a person\n")
    async with notes_service(tmp_path, root) as bench:
        await settled(bench, 2)
        found = await bench.call(ExploreLinks(id="bob", direction=Direction.IN))
        assert {(link.source, link.type) for link in found} == {("a", "CITES"), ("a", "LINKS_TO")}
        done = await bench.call(RenameNote(id="bob", to="Robert.md"))
        assert done.links == 5
        expected = body.replace("Bob", "Robert").replace("# [[Robert]]", "# [[Bob]]")
        assert (root / "a.md").read_text() == expected


async def test_a_link_whose_new_name_needs_quotes_is_left_and_reported(tmp_path: Path, root: Path) -> None:
    text = "---\nup: see [[Old]]\n---\n"
    write(root, "a.md", text)
    write(root, "Old.md", "old\n")
    async with notes_service(tmp_path, root) as bench:
        await settled(bench, 2)
        done = await bench.call(RenameNote(id="old", to="New: one.md"))
        assert (done.left, (root / "a.md").read_text()) == ([str(root / "a.md")], text)
