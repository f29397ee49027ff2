"""Which of several notes a name means: by path, file name, id and title in this order, and the nearest of them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import apsw
import pytest

from services.knowledge import edges
from services.knowledge.note_database import SCHEMA, open_database
from services.knowledge.notes.files import Place
from services.knowledge.operations.notes import ExploreLinks
from services.knowledge.operations.writing import RenameNote
from services.knowledge.writing.renaming import Journal
from services.runtime.database import Database, Kind, Schema
from tests.unit.knowledge.rig import Bench, notes_service, settled, write


async def leads_to(bench: Bench, id_: str) -> list[str]:
    return [link.target for link in await bench.call(ExploreLinks(id=id_))]


def nearest(source: str, *paths: str) -> str | None:
    places = {path: Place("/r", path) for path in paths}
    finder = edges.Finder(lambda key: [(edges.FILE_NAME, path, place) for path, place in places.items()])
    return finder.target("todo", "", Place("/r", source))


@pytest.mark.parametrize(
    ("source", "paths", "meant"),
    [
        ("a/x.md", ["todo.md", "a/todo.md", "a/b/todo.md"], "a/todo.md"),
        ("a/b/x.md", ["todo.md", "a/todo.md", "c/todo.md"], "a/todo.md"),
        ("x.md", ["a/b/c/todo.md", "z/todo.md"], "z/todo.md"),
        ("a/b/c/x.md", ["a/b/d/todo.md", "todo.md", "z/todo.md"], "a/b/d/todo.md"),
        ("m/x.md", ["b/todo.md", "a/todo.md"], "a/todo.md"),
        ("プロ/x.md", ["a/todo.md", "プロ/下/todo.md"], "プロ/下/todo.md"),
    ],
)
def test_the_fewest_steps_win_whatever_the_order(source: str, paths: list[str], meant: str) -> None:
    assert nearest(source, *paths) == nearest(source, *reversed(paths)) == meant


def test_a_note_of_the_same_root_is_nearer_than_any_of_another() -> None:
    near, far = Place("/r", "a/b/c/d/todo.md"), Place("/s", "todo.md")
    finder = edges.Finder(lambda key: [(edges.FILE_NAME, "far", far), (edges.FILE_NAME, "near", near)])
    assert finder.target("todo", "", Place("/r", "x/y/z.md")) == "near"


@pytest.mark.parametrize(
    ("files", "link", "meant"),
    [
        ({"Trip to Rome.md": "it", "2020.md": "# Trip to Rome"}, "Trip to Rome", "trip-to-rome"),
        ({"the-plan.md": "it", "x.md": "# The Plan"}, "The Plan", "the-plan"),
        ({"計画 書.md": "it", "x.md": "# 計画 書"}, "計画 書", "計画-書"),
        ({"deep/er/Long Name.md": "it", "x.md": "---\ntitle: Long name\n---\n"}, "long name", "long-name"),
        ({"sub/a.md": "it", "z/sub/a.md": "other"}, "sub/a", "a"),
        ({"x.md": "# Only A Title"}, "Only a title", "x"),
    ],
)
async def test_a_path_and_a_file_name_come_before_a_title(
    tmp_path: Path, root: Path, files: dict[str, str], link: str, meant: str
) -> None:
    for path, text in files.items():
        write(root, path, text)
    write(root, "home.md", f"[[{link}]]")
    async with notes_service(tmp_path, root) as bench:
        await settled(bench, len(files) + 1)
        assert await leads_to(bench, "home") == [meant]


async def test_the_nearest_note_changes_as_files_come_move_and_go(tmp_path: Path, root: Path) -> None:
    write(root, "a/plan.md", "[[todo]]")
    write(root, "z/todo.md", "far away, and long enough to be known again")
    async with notes_service(tmp_path, root) as bench:
        await settled(bench, 2)
        assert await leads_to(bench, "plan") == ["todo"]
        near = write(root, "a/todo.md", "near")
        await settled(bench, 3)
        (id_,) = await leads_to(bench, "plan")
        assert id_ == "todo"
        (root / "b").mkdir()
        near.rename(root / "b/todo.md")
        (root / "z/todo.md").rename(root / "a/todo.md")
        await settled(bench, 3)
        (id_,) = await leads_to(bench, "plan")
        assert (await bench.call(ExploreLinks(id=id_))) == []
        (root / "a/todo.md").unlink()
        await settled(bench, 2)
        assert len(await leads_to(bench, "plan")) == 1
        (root / "b/todo.md").unlink()
        await settled(bench, 1)
        assert await leads_to(bench, "plan") == []


RENAMINGS = [
    # A note of the same name elsewhere keeps its links; those that led to the renamed one follow.
    ({"a/x.md": "[[log]]", "b/x.md": "[[log]] [[a/log]]", "a/log.md": "1", "b/log.md": "2"}, "a/log.md", "diary.md",
     {"a/x.md": "[[diary]]", "b/x.md": "[[log]] [[a/diary]]"}),
    # It moves away from a note that links to it, past another one of its name.
    ({"a/x.md": "[[log|L]]", "a/log.md": "1", "b/log.md": "2"}, "a/log.md", "c/log.md", {"a/x.md": "[[c/log|L]]"}),
    # It moves to a folder where its own links would mean another note.
    ({"a/x.md": "[[log]] [[other]]", "a/log.md": "1", "b/log.md": "2", "other.md": "3"}, "a/x.md", "b/y.md",
     {"b/y.md": "[[a/log]] [[other]]"}),
    # Its new name is also that of a note further away, to which others link.
    ({"a/x.md": "[[log]]", "a/new.md": "1", "b/log.md": "2"}, "a/new.md", "log.md", {"a/x.md": "[[b/log]]"}),
    # Both: what the new name meant before is not mistaken for what it means now.
    ({"a/x.md": "[[new]] [[log]]", "a/new.md": "1", "b/log.md": "2"}, "a/new.md", "log.md",
     {"a/x.md": "[[log]] [[b/log]]"}),
    # A note at the root is named by a path where a nearer one has its name.
    ({"a/x.md": "[[old]]", "old.md": "1", "a/log.md": "2"}, "old.md", "log.md", {"a/x.md": "[[../log]]"}),
]  # fmt: skip


@pytest.mark.parametrize(("files", "path", "to", "after"), RENAMINGS)
async def test_after_a_renaming_every_link_leads_where_it_led(
    tmp_path: Path, root: Path, files: dict[str, str], path: str, to: str, after: dict[str, str]
) -> None:
    for name, text in files.items():
        write(root, name, text)
    async with notes_service(tmp_path, root) as bench:
        await settled(bench, len(files))
        to = to if "/" in to else str(Path(path).parent / to)
        shown = await bench.call(RenameNote(path=path, to=to, dry_run=True))
        done = await bench.call(RenameNote(path=path, to=to))
        assert (done.links, done.left) == (shown.links, [])
        expected = {**{to if name == path else name: text for name, text in files.items()}, **after}
        assert {name: (root / name).read_text() for name in expected} == expected
        status = await settled(bench, len(files))
        assert status.broken_links == []


async def test_links_that_take_each_others_place_are_rewritten_once(tmp_path: Path, root: Path) -> None:
    write(root, "a/x.md", "[[new]] [[log]]")
    write(root, "a/new.md", "1")
    write(root, "b/log.md", "2")
    async with notes_service(tmp_path, root) as bench:
        await settled(bench, 3)
        journal = tmp_path / "knowledge/renaming.json"
        kept: list[bytes] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Journal, "clear", lambda self: kept.append(journal.read_bytes()))
            await bench.call(RenameNote(path="a/new.md", to="log.md"))
        await bench.stop("knowledge")
        # As after a kill before the journal was put away.
        journal.write_bytes(kept[0])
        await bench.start("knowledge")
        await settled(bench, 3)
        assert (root / "a/x.md").read_text() == "[[log]] [[b/log]]"


async def test_paths_from_the_root_and_definitions_are_links_and_renamed(tmp_path: Path, root: Path) -> None:
    text = (
        "[a](/deep/Old%20one.md#x) [b](</deep/Old one.md>) [[/deep/Old one]] ![c](/deep/Old%20one.md)\n\n"
        "[r]: <../deep/Old one.md> 'title'\n[s]: /deep/Old%20one.md\n> [t]: </deep/Old one.md>\n"
        "\n[u]:\n  <../deep/Old one.md>\n"
    )
    write(root, "n/a.md", text)
    write(root, "deep/Old one.md", "it")
    async with notes_service(tmp_path, root) as bench:
        await settled(bench, 2)
        links = await bench.call(ExploreLinks(id="a"))
        assert [(link.type, link.target) for link in links] == [("LINKS_TO", "old-one"), ("CITES", "old-one")]
        await bench.call(RenameNote(id="old-one", to="New two.md"))
        after = (root / "n/a.md").read_text()
        assert after == (
            "[a](/deep/New%20two.md#x) [b](</deep/New two.md>) [[/deep/New two]] ![c](/deep/New%20two.md)\n\n"
            "[r]: <../deep/New two.md> 'title'\n[s]: /deep/New%20two.md\n> [t]: </deep/New two.md>\n"
            "\n[u]:\n  <../deep/New two.md>\n"
        )


def test_names_of_an_earlier_version_keep_their_notes(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    earlier = Schema(version=3, tables=SCHEMA.tables, migrations={})
    rows = [
        ("id", 0, "n"),
        ("title", 1, "n"),
        ("same", 1, "n"),
        ("same", 2, "n"),
        ("same", 3, "n"),
        ("/r/n.md", 3, "n"),
    ]
    with contextlib.closing(Database(path, earlier, kind=Kind.DERIVED)) as database, database.snapshot():
        pass
    with contextlib.closing(apsw.Connection(str(path))) as db:
        db.executemany("INSERT INTO name VALUES(?, ?, ?)", rows)
    with contextlib.closing(open_database(path)) as database, database.snapshot() as db:
        assert set(db.execute("SELECT key, rank FROM name")) == {
            ("id", edges.ID), ("title", edges.TITLE), ("same", edges.TITLE), ("same", edges.FILE_NAME),
            ("/r/n.md", edges.PATH),
        }  # fmt: skip
