"""What the page shows of notes: folders, lists, a note with what is around it, and the graph of all notes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proto.errors import InvalidParams, OperationError
from services.knowledge.operations.page import Browsed, BrowseNotes, MapNotes, ShowNote
from tests.unit.knowledge.rig import Bench, notes_service, settled, write

STARS = (
    "---\ntitle: Sea stars\nhabitat: [reef, shore]\ntags: sea/star\nfollows: arms\n---\n# Body\n\n"
    "[[arms]], [[Arms#One|again]], [disc](deep/disc.md), [[gone]], ![[sea.png]], [x](https://example.org/a.md)\n\n"
    "`[[code]]` #animal\n\n## Use\n\n[by name]: deep/disc.md\n"
)


def vault(root: Path) -> None:
    write(root, "stars.md", STARS)
    write(root, "arms.md", "# Arms\n\nSee [[stars]] and [[arms]].\n")
    write(root, "deep/disc.md", "# Disc\n\n[[stars]] #Sea\n")
    write(root, "deep/er/alone.md", "---\ndate: 2001-01-01\n---\nAlone")
    write(root, "sea.png", "a picture")


def listed(found: Browsed) -> list[str]:
    return [each.id for each in found.notes]


async def browsed(bench: Bench, **given: Any) -> Browsed:
    return await bench.call(BrowseNotes(**given))


async def test_folders_and_notes_are_listed_folder_by_folder_and_page_by_page(tmp_path: Path, root: Path) -> None:
    vault(root)
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench, 4)
        top = await browsed(bench)
        assert [(each.name, each.notes) for each in top.folders] == [("deep", 2)]
        assert (listed(top), top.count) == (["arms", "stars"], 2)
        second = await browsed(bench, offset=1, limit=1)
        assert (listed(second), second.folders, second.count) == (["stars"], [], 2)
        deep = await browsed(bench, folder=top.folders[0].path)
        assert ([each.path for each in deep.folders], listed(deep)) == ([f"{top.folders[0].path}/er"], ["disc"])
        assert listed(await browsed(bench, folder=f"{top.folders[0].path}/", below=True)) == ["disc", "alone"]
        assert listed(await browsed(bench, below=True, latest=True))[-1] == "alone"
        with pytest.raises(InvalidParams, match=r"`folder`: /etc is outside the roots"):
            await browsed(bench, folder="/etc")
        with pytest.raises(InvalidParams, match="outside the roots"):
            await browsed(bench, folder=f"{root}-beside")


async def test_a_list_is_filtered_by_words_tags_and_missing_links(tmp_path: Path, root: Path) -> None:
    vault(root)
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench, 4)
        assert listed(await browsed(bench, words="SEA stars")) == ["stars"]
        assert listed(await browsed(bench, words="deep disc")) == ["disc"]
        assert listed(await browsed(bench, words="sea arms")) == []
        assert listed(await browsed(bench, tag="#Sea")) == ["disc", "stars"]
        assert listed(await browsed(bench, tag="se")) == []
        # A link to itself does not count.
        write(root, "own.md", "[[own]]")
        await settled(bench, 5)
        assert listed(await browsed(bench, unlinked=True)) == ["alone", "own"]


async def test_several_roots_are_listed_as_folders(tmp_path: Path, root: Path) -> None:
    vault(root)
    other = tmp_path / "other"
    write(other, "far.md", "Far")
    async with notes_service(tmp_path / "data", root, other) as bench:
        await settled(bench, 5)
        found = await browsed(bench)
        assert {each.name: each.notes for each in found.folders} == {str(root): 4, str(other): 1}
        assert listed(found) == []
        assert listed(await browsed(bench, folder=str(other))) == ["far"]


async def test_a_note_is_shown_with_all_that_is_around_it(tmp_path: Path, root: Path) -> None:
    vault(root)
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench, 4)
        found = await bench.call(ShowNote(id="stars"))
        assert (found.title, found.path, found.text, found.start) == ("Sea stars", "stars.md", STARS, 6)
        assert found.file == str(root / "stars.md")
        assert found.tags == ["sea/star", "animal"]
        assert {each.name: each.values for each in found.properties}["habitat"] == ["reef", "shore"]
        assert [(each.level, each.title, each.line) for each in found.headings] == [(1, "Body", 7), (2, "Use", 13)]
        assert [(each.written, each.id, each.file, each.relation, each.line) for each in found.links] == [
            ("arms", "arms", "", "FOLLOWS", 0),
            ("arms", "arms", "", "", 9),
            ("Arms#One", "arms", "", "", 9),
            ("deep/disc.md", "disc", "", "", 9),
            ("gone", "", "", "", 9),
            ("sea.png", "", str(root / "sea.png"), "", 9),
        ]
        assert [each.id for each in found.backlinks] == ["arms", "disc"]
        few = await bench.call(ShowNote(id="stars", backlinks=1))
        assert ([each.id for each in few.backlinks], few.backlink_count) == (["arms"], 2)
        with pytest.raises(OperationError, match="Node not found"):
            await bench.call(ShowNote(id="nothing-like-it"))


async def test_another_text_is_shown_as_if_it_were_the_notes(tmp_path: Path, root: Path) -> None:
    vault(root)
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench, 4)
        found = await bench.call(ShowNote(id="stars", text="# New\n\n[[disc]] [[none]]"))
        assert (found.text, found.hash, found.start) == ("", "", 0)
        assert [(each.written, each.id) for each in found.links] == [("disc", "disc"), ("none", "")]
        assert (root / "stars.md").read_text() == STARS


async def test_a_file_out_of_the_roots_is_not_a_picture_of_a_note(tmp_path: Path, root: Path) -> None:
    write(tmp_path, "secret.png", "secret")
    (root / "link.png").symlink_to(tmp_path / "secret.png")
    write(root, "x.md", "![[../secret.png]] ![a](../secret.png) ![[link.png]] ![b](</etc/hostname>)")
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench, 1)
        found = (await bench.call(ShowNote(id="x"))).links
        assert [(each.written, each.file) for each in found] == [
            ("../secret.png", ""), ("link.png", ""), ("/etc/hostname", ""),
        ]  # fmt: skip


async def test_the_map_has_all_notes_and_each_pair_of_linked_ones_once(tmp_path: Path, root: Path) -> None:
    vault(root)
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench, 4)
        found = await bench.call(MapNotes())
        assert found.ids == ["alone", "arms", "disc", "stars"]
        assert [found.folders[each] for each in found.folder] == ["deep/er/", "", "deep/", ""]
        assert [[found.tags[tag] for tag in each] for each in found.tagged] == [[], [], ["sea"], ["sea/star", "animal"]]
        assert found.edges == [1, 3, 2, 3]
        few = await bench.call(MapNotes(limit=2))
        assert (few.ids, few.edges, few.more) == (["alone", "arms"], [], 2)
