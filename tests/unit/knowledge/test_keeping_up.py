"""Notes kept in step with their files: edits, moves, ids, and roots that come and go."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import apsw
import msgspec
import pytest
import trio

from proto.errors import OperationError
from services.knowledge.main import open_service as open_knowledge
from services.knowledge.operations.notes import SearchDocuments
from services.retrieve.main import open_service as open_retrieve
from tests.in_process import services_in_process
from tests.unit.knowledge.rig import MemorySearch, found, links, notes_service, read, settled, until, write


async def test_edit_rename_and_deletion_show(tmp_path: Path, root: Path) -> None:
    write(root, "a.md", "# A\n\nThe zebra walks.")
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench, 1)
        assert await found(bench, "zebra") == ["a"]
        write(root, "a.md", "# A\n\nThe giraffe walks.")
        await settled(bench, 1)
        assert (await found(bench, "zebra"), await found(bench, "giraffe")) == ([], ["a"])
        (root / "a.md").rename(root / "b.md")
        await settled(bench, 1)
        assert await found(bench, "giraffe") == ["b"]
        assert "giraffe" in await read(bench, "b")
        (root / "b.md").unlink()
        await settled(bench, 0)
        assert await found(bench, "giraffe") == []


async def test_edit_that_keeps_size_and_mtime_shows(tmp_path: Path, root: Path) -> None:
    file = write(root, "a.md", "zebra")
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench, 1)
        stamp = file.stat()
        file.write_text("camel")
        os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        await settled(bench, 1)
        assert await found(bench, "camel") == ["a"]


async def held(search: MemorySearch, ids: set[str]) -> None:
    """Wait until the search holds exactly these; deleted notes are removed once nothing else needs doing."""
    with trio.fail_after(10):
        while search.groups.keys() != ids:  # noqa: ASYNC110
            await trio.sleep(0.01)


@pytest.mark.parametrize(
    "order", [("a/b/note", "z/note", "a/note", "x/note"), ("x/note", "a/note", "z/note", "a/b/note")]
)
async def test_ids_follow_from_the_files_whatever_came_first(
    tmp_path: Path, root: Path, order: tuple[str, ...]
) -> None:
    search = MemorySearch()
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        write(root, "index.md", "[[note]]")
        for count, name in enumerate(order, 2):
            write(root, f"{name}.md", name)
            await settled(bench, count)
        expected = {"note": "a/note", "x-note": "x/note", "z-note": "z/note", "a-b-note": "a/b/note"}
        await held(search, {"index", *expected})
        assert {id_: await read(bench, id_) for id_ in expected} == expected
        assert await links(bench, "index") == [("CITES", "note")]
        (root / "a/note.md").unlink()
        await settled(bench, 4)
        await held(search, {"index", "note", "z-note", "a-b-note"})
        # Their earlier names still lead there.
        assert [await read(bench, id_) for id_ in ("note", "x-note")] == ["x/note", "x/note"]


async def test_ids_keep_their_script_and_earlier_ids_still_work(tmp_path: Path, root: Path) -> None:
    search = MemorySearch()
    for name in ("会议记录", "Über Äpfel", "การประชุม", "🚀 launch", "My Note_v2", "हिन्दी"):
        write(root, f"{name}.md", f"{name} [[会议记录]]")
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        await settled(bench, 6)
        ids = {"会议记录", "über-äpfel", "การประชุม", "🚀-launch", "my-note-v2", "हिन्दी"}
        await held(search, ids)
        assert await links(bench, "über-äpfel") == [("CITES", "会议记录")]
    # As an earlier version had named it.
    path = tmp_path / "data/knowledge/notes.db"
    with contextlib.closing(apsw.Connection(str(path))) as db:
        for table, column in (("node", "id"), ("name", "id"), ("edge", "src"), ("edge", "dst")):
            db.execute(f"UPDATE {table} SET {column} = '----' WHERE {column} = '会议记录'")
        db.execute("UPDATE setting SET value = '3' WHERE name = 'markdown_version'")
    search.groups["----"] = msgspec.structs.replace(search.groups.pop("会议记录"), id="----")
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        await settled(bench, 6)
        await held(search, ids)
        assert await read(bench, "----") == await read(bench, "会议记录") == "会议记录 [[会议记录]]"
        assert await links(bench, "my-note-v2") == [("CITES", "会议记录")]


async def test_second_file_of_a_name_gets_an_id_from_its_path(tmp_path: Path, root: Path) -> None:
    search = MemorySearch()
    for path in ("z/note.md", "a/note.md", "a/b/note.md", "x/Z note.md", "x/z-note.md"):
        write(root, path, path)
    expected = {"note": "a/note.md", "z-note": "x/Z note.md", "a-b-note": "a/b/note.md"}
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        await settled(bench, 5)
        assert expected.items() <= {id_: await read(bench, id_) for id_ in search.groups}.items()
        before = {id_: await read(bench, id_) for id_ in search.groups}
        assert len(set(before.values())) == 5
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        await settled(bench, 5)
        assert before == {id_: await read(bench, id_) for id_ in search.groups}


async def test_note_moved_to_another_folder_keeps_its_id_and_is_put_once_more(tmp_path: Path, root: Path) -> None:
    search = MemorySearch()
    write(root, "a/note.md", "short one")
    write(root, "b/note.md", "long one")
    write(root, "other.md", "[[note]]")
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        await settled(bench, 3)
        assert await read(bench, "b-note") == "long one"
        (root / "b/note.md").rename(root / "c.md")
        (root / "b").rmdir()
        (root / "a").rename(root / "moved")
        await settled(bench, 3)
        assert await read(bench, "note") == "short one"
        assert await read(bench, "c") == "long one"
        assert await links(bench, "other") == [("CITES", "note")]
        assert search.groups["note"].metadata["path"] == "moved/note.md"
        assert sorted(search.groups) == ["c", "note", "other"]


async def test_unchanged_note_is_not_put_again(tmp_path: Path, root: Path) -> None:
    search = MemorySearch()
    write(root, "a.md", "text\n")
    write(root, "b.md", "text\n")
    for change in ("", "text\n\n\n", "text\n"):
        async with notes_service(tmp_path / "data", root, search=search) as bench:
            if change:
                write(root, "a.md", change)
            await settled(bench, 2)
    assert sorted(search.put_ids) == ["a", "b"]


async def test_lines_follow_when_only_blank_lines_came_before(tmp_path: Path, root: Path) -> None:
    search = MemorySearch()
    write(root, "a.md", "# T\n\nzebra")
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        await settled(bench, 1)
        write(root, "a.md", "\n\n# T\n\nzebra")
        await settled(bench, 1)
        (hit,) = (await bench.call(SearchDocuments(query="zebra"))).results
        assert hit.context == "T (lines 3-5)"


async def test_unmounted_root_keeps_its_notes_and_says_so(tmp_path: Path, root: Path) -> None:
    search = MemorySearch()
    write(root, "a.md", "zebra")
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        await settled(bench, 1)
        shutil.move(root, tmp_path / "away")
        await until(bench, lambda status: status.problem_count == 1)
        answer = await bench.call(SearchDocuments(query="zebra"))
        assert [hit.id for hit in answer.results] == ["a"]
        assert answer.metadata.degraded == [f"index: {root}: folder cannot be read: No such file or directory"]
        shutil.move(tmp_path / "away", root)
        await until(bench, lambda status: status.problem_count == 0)
    assert search.put_ids == ["a"]


async def test_notes_of_a_root_that_is_no_longer_served_leave(tmp_path: Path, root: Path) -> None:
    search = MemorySearch()
    write(root, "a.md", "zebra")
    other = tmp_path / "other"
    write(other, "b.md", "zebra")
    async with notes_service(tmp_path / "data", root, other, search=search) as bench:
        await settled(bench, 2)
    async with notes_service(tmp_path / "data", other, search=search) as bench:
        await settled(bench, 1)
        assert await found(bench, "zebra") == ["b"]
        with pytest.raises(OperationError):
            await read(bench, "a")


async def test_a_file_that_changes_size_during_the_ingest_is_indexed_in_its_final_form(
    tmp_path: Path, root: Path
) -> None:
    search = MemorySearch()
    file = write(root, "a.md", "start")
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        for number in range(60):
            file.write_text(f"version {number}")
            await trio.sleep(0.005)
        await settled(bench, 1)
        await settled(bench, 1)
        assert search.groups["a"].items[0].text == "version 59"


async def test_notes_cut_by_an_earlier_version_are_searched_until_the_new_vectors_exist(
    tmp_path: Path, root: Path
) -> None:
    search = MemorySearch()
    for number in range(100):
        write(root, f"n{number}.md", f"# N {number}\n\n{'The zebra walks. ' * 5}")
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        await settled(bench, 100)
        assert len(search.put_ids) == 100
    path = tmp_path / "data/knowledge/notes.db"
    with contextlib.closing(apsw.Connection(str(path))) as db:
        db.execute("UPDATE setting SET value = '4.1.another-model-246' WHERE name = 'markdown_version'")
    search.vectors_waiting = 10_000
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        answer = await bench.call(SearchDocuments(query="zebra", limit=200))
        assert (len(answer.results), answer.metadata.degraded) == (100, [])
        await settled(bench, 100)
        assert len(search.put_ids) == 100
        search.vectors_waiting = 0
        with trio.fail_after(20):
            while len(search.put_ids) < 200:  # noqa: ASYNC110
                await trio.sleep(0.01)
        await until(bench, lambda status: status.pending == 0)
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        await settled(bench, 100)
    assert len(search.put_ids) == 200


async def test_a_note_is_found_by_its_file_its_folder_and_its_front_matter(tmp_path: Path, root: Path) -> None:
    write(root, "guides/pump-manual.md", "---\nauthor: Ober\n---\n# Start\n\n\n\nTurn it on.\n\nThen the zebra lamp.")
    write(root, "other.md", "# Other\n\nNothing.")
    services = {"retrieve": open_retrieve, "knowledge": open_knowledge}
    async with services_in_process(services, tmp_path / "data", roots=[root]) as bench:
        await settled(bench, 2)
        for query in ("pump-manual", "manual", "guides", "Ober", "zebra"):
            (hit,) = (await bench.call(SearchDocuments(query=query))).results
            assert (hit.id, hit.path) == ("pump-manual", "guides/pump-manual.md")
            assert hit.first_line is not None
            assert hit.last_line is not None
            lines = (root / hit.path).read_text().split("\n")[hit.first_line - 1 : hit.last_line]
            assert hit.snippet == "\n".join(lines)
        said = (await bench.call(SearchDocuments(query="zebra last week"))).metadata.hint
        assert said is not None
        assert "'last week'" in said
        assert (await bench.call(SearchDocuments(query="zebra"))).metadata.hint is None
