"""A note that is renamed: every link to it still leads there, its id as well, and a kill at any step loses nothing."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from proto.errors import LinckiaError
from proto.ops.graph import Direction
from services.knowledge.notes.files import Place
from services.knowledge.operations.notes import ExploreLinks, ReadNodeContent
from services.knowledge.operations.writing import RenameNote
from services.knowledge.writing.relinking import Move, changed, relinked, tokens
from services.knowledge.writing.renaming import Journal, Relink, Renaming, renaming_steps
from services.runtime.rewrite import content_hash
from services.runtime.roots import Roots
from tests.unit.knowledge.rig import Bench, notes_service, settled, until, write

LINKS = """---
follows: [old, "Old.md"]
up: "[[old]]"
---
[[Old]], [[old|alias]], ![[old#Part]], [[notes/old]] | a [[old\\|cell]] |
[text](notes/Old.md#part "title"), <!-- [[old]] -->[angle](<./notes/Old.md>), [x](other.md) [[other]] [[Its title]]
`[[old]]` \\[[older]]

    [[old]] as code

```
[[old]]
```
[ref]: notes/Old.md?x=1
"""

AFTER = """---
follows: [New name, "New name.md"]
up: "[[New name]]"
---
[[New name]], [[New name|alias]], ![[New name#Part]], [[deep/New name]] | a [[New name\\|cell]] |
[text](deep/New%20name.md#part "title"), <!-- [[New name]] -->[angle](<./deep/New name.md>), [x](other.md) [[other]] [[Its title]]
`[[old]]` \\[[older]]

    [[old]] as code

```
[[old]]
```
[ref]: deep/New%20name.md?x=1
"""  # noqa: E501

OWN = "# Its title\r\n[up](../links.md), ![](a%20b.png) [self](Old.md#x) [[old]] [[other]] [[../links]]\r\n"
OWN_AFTER = OWN.replace("a%20b", "../notes/a%20b").replace("Old.md", "New%20name.md").replace("[old]", "[New name]")


async def backlinks(bench: Bench, id_: str) -> set[str | None]:
    found = await bench.call(ExploreLinks(id=id_, direction=Direction.IN))
    return {link.source for link in found}


def scene(root: Path) -> None:
    write(root, "links.md", LINKS.replace("\n", "\r\n"))
    write(root, "notes/Old.md", OWN)
    write(root, "other.md", "# other\n")


async def test_every_form_of_link_follows_and_all_else_stays(tmp_path: Path, root: Path) -> None:
    scene(root)
    async with notes_service(tmp_path, root) as bench:
        await settled(bench, 3)
        shown = await bench.call(RenameNote(id="old", to="deep/New name.md", dry_run=True))
        assert (shown.links, len(shown.files)) == (12 + 3, 2)
        assert "-[[Old]], [[old|alias]]" in shown.diff
        assert (root / "notes/Old.md").read_bytes().decode() == OWN
        done = await bench.call(RenameNote(id="old", to="deep/New name.md"))
        assert (done.id, done.indexed, done.links, done.left) == ("new-name", True, shown.links, [])
        assert done.files == [str(root / "deep/New name.md"), str(root / "links.md")]
        assert (root / "links.md").read_bytes().decode().replace("\r\n", "\n") == AFTER
        assert (root / "deep/New name.md").read_bytes().decode() == OWN_AFTER
        assert not (root / "notes/Old.md").exists()
        assert "links" in await backlinks(bench, "new-name")
        # The former id leads on.
        assert (await bench.call(ReadNodeContent(id="old"))).text == OWN_AFTER
        await settled(bench, 3)
        assert (await bench.call(ReadNodeContent(id="old"))).text == OWN_AFTER
        await until(bench, lambda _: not (tmp_path / "knowledge/renaming.json").exists())


async def test_links_name_a_note_so_that_no_other_is_meant(tmp_path: Path, root: Path) -> None:
    write(root, "a.md", "[[old]] [[y/old]]\n")
    write(root, "x.md", "the nearest of its name\n")
    write(root, "y/old.md", "it\n")
    async with notes_service(tmp_path, root) as bench:
        await settled(bench, 3)
        await bench.call(RenameNote(path="y/old.md", to="x.md"))
        assert (root / "a.md").read_text() == "[[y/x]] [[y/x]]\n"
        await settled(bench, 3)
        assert await backlinks(bench, "y-x") == {"a"}


async def test_a_link_by_title_and_one_that_still_leads_there_stay(tmp_path: Path, root: Path) -> None:
    text = "[[The title]] [[note]]\n"
    write(root, "a.md", text)
    write(root, "note.md", "# The title\n")
    async with notes_service(tmp_path, root) as bench:
        await settled(bench, 2)
        done = await bench.call(RenameNote(id="note", to="deep/note.md"))
        assert (done.links, done.files, (root / "a.md").read_text()) == (0, [], text)
        assert done.id == "note"
        assert await backlinks(bench, "note") == {"a"}


@pytest.mark.parametrize(
    ("to", "said"),
    [
        ("b.md", "already exists"),
        ("a.md", "already its name"),
        ("a.txt", "not a Markdown file"),
        ("../x.md", "outside the roots"),
        ("a[1].md", "a link cannot name"),
    ],
)
async def test_invalid_new_names_are_refused(tmp_path: Path, root: Path, to: str, said: str) -> None:
    write(root, "a.md", "a")
    write(root, "b.md", "[[a]]")
    async with notes_service(tmp_path, root) as bench:
        await settled(bench, 2)
        with pytest.raises(LinckiaError, match=said) as error:
            await bench.call(RenameNote(id="a", to=to))
        assert error.value.failure.field == "to"
    assert ((root / "a.md").read_text(), (root / "b.md").read_text()) == ("a", "[[a]]")


async def test_files_that_must_not_be_written_are_reported(tmp_path: Path, root: Path) -> None:
    write(root, "a.md", "a")
    (root / "latin.md").write_bytes(b"\xe9 [[a]]")
    async with notes_service(tmp_path, root) as bench:
        await settled(bench, 2)
        done = await bench.call(RenameNote(id="a", to="b.md"))
        assert (done.files, done.left) == ([], [str(root / "latin.md")])
    assert (root / "latin.md").read_bytes() == b"\xe9 [[a]]"


@pytest.mark.parametrize("steps", range(4))
async def test_a_kill_at_any_step_is_finished_at_the_next_start(tmp_path: Path, root: Path, steps: int) -> None:
    scene(root)
    async with notes_service(tmp_path, root) as bench:
        await settled(bench, 3)
        await bench.stop("knowledge")
        # As the service that died had begun it: so many steps are done.
        old, names = Place(str(root), "notes/Old.md"), ["New name", "deep/New name"]
        moving = dict.fromkeys([("old", "old"), ("notes/old", "notes-old")], names)
        move = Move(old, Place(str(root), "deep/New name.md"), {old: moving, Place(str(root), "links.md"): moving})
        own = changed(OWN, move.old, move)
        other = changed((root / "links.md").read_bytes().decode(), Place(str(root), "links.md"), move)
        relinks = [
            Relink(move.new.absolute, own.names, own.paths, content_hash(OWN.encode())),
            Relink(str(root / "links.md"), other.names, other.paths),
        ]
        renaming = Renaming(move.old, move.new, relinks)
        Journal(tmp_path / "knowledge/renaming.json").write(renaming)
        work = renaming_steps(renaming, Roots([root]))
        for _ in range(steps):
            assert next(work) == ""
        await bench.start("knowledge")
        await settled(bench, 3)
        assert (root / "links.md").read_bytes().decode().replace("\r\n", "\n") == AFTER
        assert (root / "deep/New name.md").read_bytes().decode() == OWN_AFTER
        assert (await bench.call(ReadNodeContent(id="old"))).text == OWN_AFTER
        await until(bench, lambda _: not (tmp_path / "knowledge/renaming.json").exists())


async def test_a_renaming_whose_name_was_taken_meanwhile_is_given_up(tmp_path: Path, root: Path) -> None:
    write(root, "a.md", "a")
    write(root, "b.md", "b")
    (tmp_path / "knowledge").mkdir()
    journal = tmp_path / "knowledge/renaming.json"
    Journal(journal).write(Renaming(Place(str(root), "a.md"), Place(str(root), "b.md"), []))
    async with notes_service(tmp_path, root) as bench:
        await settled(bench, 2)
        assert not journal.exists()
    assert ((root / "a.md").read_text(), (root / "b.md").read_text()) == ("a", "b")


def test_targets_of_links_are_found_at_their_position_in_any_text() -> None:
    rng = random.Random(0)
    pieces = ["---\n", "follows: [a, 'b']\n", "[[a|b]] ", "![[ a#b ]]\r\n", "[x](<a b.md>) ", "[y](a.md#b)\n", "é\r",
              "\ufeff", "```\n", "[r]: a.md\n", "\n\n", "    [[c]]\n", "`[[c]]`"]  # fmt: skip
    found = 0
    for _ in range(3000):
        text = "".join(rng.choices(pieces, k=rng.randint(0, 9)))
        for token in tokens(text):
            found += 1
            assert token.written in ("a", "b", "a b.md", "a.md", "c")
            assert text[token.start : token.end].strip("'") == token.written
        assert relinked(text, {}, {}) == (text, 0)
    assert found > 3000


def test_links_rewritten_twice_are_as_after_once() -> None:
    names, paths = {"old": "new", "a/old": "b/new"}, {"old.md": "b/new.md"}
    once, count = relinked(LINKS, names, paths)
    assert count
    assert relinked(once, names, paths) == (once, 0)


CANVAS = {
    "nodes": [
        {"id": "1", "type": "file", "file": "notes/Old.md", "subpath": "#Part"},
        {"id": "2", "type": "text", "text": 'see [[Old|"it"]], [[notes/old]]\nand [x](notes/Old.md), `[[old]]`'},
        {"id": "3", "type": "file", "file": "other.md"},
        {"id": "4", "type": "link", "url": "https://example.org/notes/Old.md", "label": "file"},
    ],
    "edges": [],
}  # fmt: skip


@pytest.mark.parametrize("folder", ["", "boards/"])
async def test_canvases_follow_a_renaming_and_only_changed_files_are_written(
    tmp_path: Path, root: Path, folder: str
) -> None:
    write(root, "notes/Old.md", "# Old")
    write(root, "other.md", "# Other")
    source = json.dumps(CANVAS, indent="\t", ensure_ascii=False).replace(
        '"edges"', '"ähnlich": "\\ud83d\\ude00", "edges"'
    )
    canvas = write(root, f"{folder}Board.canvas", source)
    write(root, "broken.canvas", '{"nodes": [{"file": "notes/Old.md"')
    write(root, ".obsidian/hidden.canvas", source)
    async with notes_service(tmp_path, root) as bench:
        await settled(bench, 2)
        dry = await bench.call(RenameNote(path="notes/Old.md", to="deep/New name.md", dry_run=True))
        assert canvas.read_text() == source
        done = await bench.call(RenameNote(path="notes/Old.md", to="deep/New name.md"))
    paths = "deep/New%20name.md" if not folder else "notes/Old.md"
    expected = (
        source.replace('"file": "notes/Old.md"', '"file": "deep/New name.md"').replace("[[Old|", "[[New name|")
        .replace("[[notes/old]]", "[[deep/New name]]").replace("(notes/Old.md)", f"({paths})")
    )  # fmt: skip
    assert canvas.read_text() == expected
    assert str(canvas) in done.files
    assert "Board.canvas" in dry.diff
    assert (root / "broken.canvas").read_text() == '{"nodes": [{"file": "deep/New name.md"'
    assert (root / ".obsidian/hidden.canvas").read_text() == source


async def test_a_canvas_that_cannot_be_written_is_named(tmp_path: Path, root: Path) -> None:
    write(root, "Old.md", "# Old")
    canvas = write(root, "a.canvas", '{"nodes": [{"type": "text", "text": "[[Old]] \\u00e9"}]}')
    other = write(root, "b.canvas", "")
    other.write_bytes(b'{"nodes": [{"file": "Old.md", "x": "\xff"}]}')
    async with notes_service(tmp_path, root) as bench:
        await settled(bench, 1)
        done = await bench.call(RenameNote(path="Old.md", to="New.md"))
    assert (done.files, done.left) == ([str(canvas)], [str(other)])
    assert canvas.read_text() == '{"nodes": [{"type": "text", "text": "[[New]] \\u00e9"}]}'
