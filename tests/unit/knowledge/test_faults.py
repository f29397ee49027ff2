"""A full disk and damaged pages under the notes: nothing dies, nothing that was acknowledged is lost, work goes on."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest
import trio

from proto.errors import OperationError, Unavailable
from services.knowledge import nodes
from services.knowledge.note_database import open_database
from services.knowledge.operations.notes import ExploreLinks, KnowledgeStatus, ReadNodeContent, SearchDocuments
from services.runtime.storage import DiskFull
from tests.unit.knowledge.rig import Bench, MemorySearch, notes_service, settled, until, write
from tests.unit.runtime.faults import Disk, damage_page, disk, files_in, pages_of


async def struck(full: Disk) -> None:
    """Wait until a statement has found the disk full."""
    with trio.fail_after(10):
        while not full.struck:  # noqa: ASYNC110  # no event tells
            await trio.sleep(0.01)


async def test_failed_commit_undoes_the_write_and_the_next_one_succeeds(tmp_path: Path) -> None:
    with disk() as full:
        database = open_database(tmp_path / "notes.db")
        try:
            for at in (1, 2):
                full.fill(at)
                with pytest.raises(DiskFull, match="nothing was done"):
                    await database.write(lambda db: nodes.set_setting(db, "a", "1"))
                full.room()
                assert await database.read(lambda db: nodes.setting(db, "a")) is None
            await database.write(lambda db: nodes.set_setting(db, "a", "2"))
            assert await database.read(lambda db: nodes.setting(db, "a")) == "2"
        finally:
            database.close()


async def test_statement_that_finds_no_room_is_undone_and_the_next_write_succeeds(tmp_path: Path) -> None:
    database = open_database(tmp_path / "notes.db")
    try:
        await database.write(lambda db: db.execute("PRAGMA max_page_count=40").fetchall())
        with pytest.raises(DiskFull, match="nothing was done"):
            # SQLite rolls back by itself here.
            await database.write(lambda db: nodes.set_setting(db, "a", "x" * 400_000))
        await database.write(lambda db: nodes.set_setting(db, "a", "short"))
        assert await database.read(lambda db: nodes.setting(db, "a")) == "short"
    finally:
        database.close()


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 2, 3, 5, 8, 13])
async def test_ingest_waits_for_free_space_and_continues(tmp_path: Path, at: int) -> None:
    root, search = tmp_path / "root", MemorySearch()
    write(root, "a.md", "# A\n\nzebra [[b]]")
    with disk() as full:
        async with notes_service(tmp_path / "data", root, search=search) as bench:
            await settled(bench, 1)
            full.fill(at)
            write(root, "a.md", "# A\n\nokapi [[b]]")
            write(root, "b.md", "# B\n\nquagga")
            await struck(full)
            assert [hit.id for hit in (await bench.call(SearchDocuments(query="zebra okapi"))).results] == ["a"]
            full.room()
            with trio.fail_after(5):
                await settled(bench, 2)
                status = await until(bench, lambda status: status.waiting is None)
            assert status.problems == []
            assert [link.target for link in await bench.call(ExploreLinks(id="a"))] == ["b"]
            assert sorted(search.groups) == ["a", "b"]


@pytest.mark.slow
async def test_disk_that_is_full_at_the_start_is_waited_for(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(root, "a.md", "# A\n\nzebra")
    with disk() as full:
        full.fill()
        async with notes_service(tmp_path / "data", root) as bench:
            await struck(full)
            with pytest.raises(OperationError, match="disk is full"):
                await bench.call(ReadNodeContent(id="a"))
            full.room()
            await settled(bench, 1)
            assert (await bench.call(ReadNodeContent(id="a"))).text == "# A\n\nzebra"


@pytest.mark.slow
async def test_search_on_a_full_disk_is_waited_for_and_no_note_is_given_up(tmp_path: Path) -> None:
    root, search = tmp_path / "root", MemorySearch()
    for number in range(20):
        write(root, f"n{number}.md", f"# N\n\nnumber {number}")
    search.refuse = lambda ids: DiskFull("the disk is full: nothing was done", retry_after_ms=500) if ids else None
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        status = await until(bench, lambda status: "disk is full" in (status.waiting or ""))
        assert status.problems == []
        search.refuse = lambda ids: None
        with trio.fail_after(5):
            await settled(bench, 20)
        assert len(search.groups) == 20


async def test_search_that_begins_again_while_it_runs_gets_all_notes_again(tmp_path: Path) -> None:
    root, search = tmp_path / "root", MemorySearch()
    for number in range(20):
        write(root, f"n{number}.md", f"# N\n\nnumber {number}")
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        await settled(bench, 20)
        await until(bench, lambda status: search.filled == "one")
        search.begin_again()
        # Which says that it holds all that there is.
        await until(bench, lambda status: search.filled == "one again")
        assert len(search.groups) == 20


async def give_ids(folder: Path, root: Path, search: MemorySearch) -> dict[str, str]:
    """Two files of one name, of which the second to come is the nearer to the root; their ids by path."""
    write(root, "deep/down/note.md", "# One\n\nzebra")
    async with notes_service(folder, root, search=search) as bench:
        await settled(bench, 1)
        write(root, "note.md", "# Two\n\nokapi [[deep/down/note]]")
        for number in range(200):
            write(root, f"more/n{number}.md", f"# N {number}\n\n[[note]]")
        await settled(bench, 202)
    return {str(group.metadata["path"]): group.id for group in search.groups.values()}


async def settled_again(bench: Bench, notes: int) -> None:
    """Until two scans have left nothing pending; the call that comes to the damaged page is asked to try again."""
    with trio.fail_after(20):
        for _ in range(2):
            while True:
                try:
                    await settled(bench, notes)
                    break
                except Unavailable as error:
                    assert "is being rebuilt" in str(error)  # noqa: PT017  # only one call has it


@pytest.mark.slow
@pytest.mark.parametrize("table", ["edge", "node", "graph_outbox"])
async def test_damaged_page_rebuilds_the_database_and_keeps_the_ids(tmp_path: Path, table: str) -> None:
    folder, root, search = tmp_path / "data", tmp_path / "root", MemorySearch()
    ids = await give_ids(folder, root, search)
    assert (ids["deep/down/note.md"], ids["note.md"]) == ("deep-down-note", "note")
    path = folder / "knowledge/notes.db"
    *_, last = pages_of(path, table)
    damage_page(path, last)
    async with notes_service(folder, root, search=search) as bench:
        await settled_again(bench, 202)
        assert [link.target for link in await bench.call(ExploreLinks(id="n7"))] == ["note"]
    assert {str(group.metadata["path"]): group.id for group in search.groups.values()} == ids


async def test_a_file_that_is_no_database_is_recreated(tmp_path: Path) -> None:
    folder, root = tmp_path / "data", tmp_path / "root"
    write(root, "a.md", "# A\n\nzebra")
    path = folder / "knowledge/notes.db"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a database " * 1000)
    async with notes_service(folder, root) as bench:
        assert (await settled(bench, 1)).rebuilt
        assert (await bench.call(KnowledgeStatus())).notes == 1
    assert files_in(path.parent, "notes.db.damaged-*")
    with apsw.Connection(str(path)) as db:
        assert db.execute("SELECT count(*) FROM node").get == 1
