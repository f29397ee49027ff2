"""What outlives the database of the index: sets, plans, sources, queries and the trash; and a disk without room."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import apsw
import pytest
import trio

from proto.errors import Executed, LinckiaError, OperationError
from services.files.operations.changes import DeleteFiles, EmptyTrash, ListTrash, MoveFiles, RestoreFiles
from services.files.operations.classifier import ListClassifierJobs, RerunClassifier
from services.files.operations.index import Index, JobProgress, ListJobs
from services.files.operations.plans import PlanList
from services.files.operations.queries import QueryList
from services.files.operations.reading import DbDiagnose
from services.files.operations.resources import ResourceSearch
from services.files.operations.sets import ResourceSetCreate, ResourceSetGet, ResourceSetModify
from services.files.operations.sources import SourceCreate, SourceList
from services.files.store import schema
from services.files.store.database import Note, loss, open_database, write_note
from tests.in_process import Bench
from tests.unit.files.changing import pairs
from tests.unit.files.rig import differences, files_service, index
from tests.unit.runtime.faults import damage_page, disk, pages_of


def database_of(data: Path) -> Path:
    return data / "files/files.db"


def lose_database(data: Path) -> None:
    for path in data.glob("files/files.db*"):
        if path.suffix in (".db", ".db-wal", ".db-shm"):
            path.unlink()


@asynccontextmanager
async def kept(tmp_path: Path) -> AsyncIterator[tuple[Path, Path]]:
    """A root and a data folder of which the service has stored something of each kind."""
    root, data = tmp_path / "root", tmp_path / "data"
    (root / "folder").mkdir(parents=True)
    for name in ("a.txt", "b.txt", "folder/c.txt", "gone.txt"):
        (root / name).write_text(name)
    async with files_service(data, root, trash=True) as bench:
        await index(bench, root)
        await bench.call(ResourceSetCreate(name="some"))
        await bench.call(
            ResourceSetModify(name="some", operation="add", paths=[str(root / "a.txt"), str(root / "folder/c.txt")])
        )
        await bench.call(SourceCreate(name="there", type="manual", path=str(root / "folder")))
        await bench.call(DeleteFiles(paths=[str(root / "gone.txt")]))
    yield root, data


async def members(bench: Bench) -> list[str]:
    page = await bench.call(ResourceSearch(name="some", sort_by="path", sort_desc=False))
    return [entry.path for entry in page.entries]


async def until_ended(bench: Bench) -> None:
    with trio.fail_after(30):
        while any(job.finished_at is None for job in (await bench.call(ListJobs())).jobs):  # noqa: ASYNC110  # no event reaches a client
            await trio.sleep(0.01)


async def test_the_trash_is_listed_and_restored_after_the_database_was_lost(tmp_path: Path) -> None:
    async with kept(tmp_path) as (root, data):
        async with files_service(data, root, trash=True) as bench:
            before = await bench.call(ListTrash())
        assert [item.path for item in before.items] == [str(root / "gone.txt")]
        lose_database(data)
        async with files_service(data, root, trash=True) as bench:
            assert await bench.call(ListTrash()) == before
            restored = await bench.call(RestoreFiles(paths=[str(root / "gone.txt")]))
            assert restored.succeeded == 1
            assert (root / "gone.txt").read_text() == "gone.txt"
            assert (await bench.call(ListTrash())).total == 0
        assert list((data / "files/trash").iterdir()) == []


async def test_a_trash_item_s_record_is_deleted_with_it(tmp_path: Path) -> None:
    async with kept(tmp_path) as (root, data):
        async with files_service(data, root, trash=True) as bench:
            (item,) = (await bench.call(ListTrash())).items
            assert (data / f"files/trash/{item.trash_id}.json").exists()
            await bench.call(EmptyTrash(trash_ids=[item.trash_id]))
        assert list((data / "files/trash").iterdir()) == []


async def test_numbers_are_not_given_again_after_the_database_was_lost(tmp_path: Path) -> None:
    async with kept(tmp_path) as (root, data):
        async with files_service(data, root, trash=True) as bench:
            (item,) = (await bench.call(ListTrash())).items
            jobs = {job.job_id for job in (await bench.call(ListJobs())).jobs}
        assert max(jobs) < 100
        for _ in range(2):
            lose_database(data)
            async with files_service(data, root, trash=True) as bench:
                await index(bench, root)
                new = {job.job_id for job in (await bench.call(ListJobs())).jobs}
                assert new
                assert min(new) > max(jobs)
                jobs |= new
                (root / "again.txt").write_text("again")
                deleted = await bench.call(DeleteFiles(paths=[str(root / "again.txt")]))
                assert deleted.results[0].trash_id is not None
                assert deleted.results[0].trash_id > item.trash_id
        assert len(list((data / "files/trash").glob("*.json"))) == 3


@pytest.mark.parametrize("table", ["entry", "entry_name", "folder", "member", "job", "sqlite_sequence"])
async def test_stored_sets_and_queries_survive_a_damaged_page(tmp_path: Path, table: str) -> None:
    async with kept(tmp_path) as (root, data):
        damage_page(database_of(data), pages_of(database_of(data), table)[0])
        async with files_service(data, root, trash=True) as bench:
            with trio.fail_after(30):
                # The first reader of the page makes the service start a new database.
                while not (await _diagnosed(bench)).startswith("ok"):  # noqa: ASYNC110  # no event reaches a client
                    await trio.sleep(0.01)
            await until_ended(bench)
            assert [source.name for source in (await bench.call(SourceList())).sources] == ["there"]
            assert [item.path for item in (await bench.call(ListTrash())).items] == [str(root / "gone.txt")]
            assert (await bench.call(ResourceSetGet(name="some"))).name == "some"
            if table in ("job", "sqlite_sequence"):
                # The tree and the sets were whole.
                with trio.fail_after(30):
                    while len(await members(bench)) < 2:  # noqa: ASYNC110  # as above
                        await trio.sleep(0.01)
            await index(bench, root)
        assert differences(data, root) == []


async def test_losses_from_a_damaged_page_are_reported_until_the_old_database_is_removed(tmp_path: Path) -> None:
    async with kept(tmp_path) as (root, data):
        path = database_of(data)
        damage_page(path, pages_of(path, "source")[0])
        async with files_service(data, root) as bench:
            with trio.fail_after(30):
                while not (await _diagnosed(bench)).startswith("ok"):  # noqa: ASYNC110  # no event reaches a client
                    await trio.sleep(0.01)
            assert (await bench.call(SourceList())).sources == []
            (aside,) = path.parent.glob("files.db.damaged-*")
            said = loss(path)
            assert f"{path} was damaged and has been recreated with incomplete tables: source." in said
            assert f"sqlite3 {aside} .recover" in said
        async with files_service(data, root) as bench:
            assert bench.running["files"].info["damage"] == said
        aside.unlink()
        async with files_service(data, root) as bench:
            assert "damage" not in bench.running["files"].info


async def _diagnosed(bench: Bench) -> str:
    try:
        return (await bench.call(DbDiagnose())).integrity_check
    except LinckiaError as error:
        return str(error)


async def test_a_database_of_version_1_keeps_all_and_gets_notes_in_the_trash(tmp_path: Path) -> None:
    async with kept(tmp_path) as (root, data):
        _make_version_1(database_of(data))
        for note in data.glob("files/trash/*.json"):
            note.unlink()
        async with files_service(data, root, trash=True) as bench:
            assert await members(bench) == [str(root / "a.txt"), str(root / "folder/c.txt")]
            assert len((await bench.call(SourceList())).sources) == 1
            assert (await bench.call(QueryList())).total == 0
            assert (await bench.call(PlanList())).total == 0
            (item,) = (await bench.call(ListTrash())).items
            assert (data / f"files/trash/{item.trash_id}.json").exists()
            await bench.call(ResourceSetCreate(name="another"))
        database = open_database(database_of(data))
        with database.reader() as db:
            assert db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'resource_set'").get == 2
            assert db.execute("PRAGMA integrity_check").get == "ok"
        database.close()


def _make_version_1(path: Path) -> None:
    """As version 1 had it: sets without a sequence."""
    db = apsw.Connection(str(path))
    rows = db.execute("SELECT * FROM resource_set").fetchall()
    db.execute("DROP TABLE resource_set; DELETE FROM sqlite_sequence WHERE name = 'resource_set'").fetchall()
    db.execute(
        schema.TABLES.replace("id INTEGER PRIMARY KEY AUTOINCREMENT,\n    name", "id INTEGER PRIMARY KEY,\n    name")
    )
    db.executemany("INSERT INTO resource_set VALUES(?,?,?,?,?)", rows)
    db.execute("PRAGMA user_version = 1")
    db.close()


@pytest.mark.slow
async def test_a_background_scan_waits_for_free_space_and_continues(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    root.mkdir()
    for number in range(20):
        (root / f"{number}.txt").write_text("x")
    with disk() as one:
        async with files_service(data, root) as bench:
            # The job is stored; all that comes after it finds no room.
            one.fill_behind("INSERT INTO job")
            job_id = (await bench.call(Index(root=str(root), async_=True))).job_id
            assert job_id is not None
            with trio.fail_after(10):
                while not one.struck:  # noqa: ASYNC110  # as above
                    await trio.sleep(0.01)
            job = await bench.call(JobProgress(job_id=job_id))
            assert job.finished_at is None
            assert not bench.failures
            one.room()
            await until_ended(bench)
            job = await bench.call(JobProgress(job_id=job_id))
            assert (job.status, job.files) == ("completed", 20)
        assert not bench.failures
    assert differences(data, root) == []


@pytest.mark.parametrize("statement", range(1, 9))
async def test_a_scan_that_a_call_waits_for_says_that_the_disk_is_full(tmp_path: Path, statement: int) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    root.mkdir()
    (root / "a.txt").write_text("x")
    with disk() as one:
        async with files_service(data, root) as bench:
            one.fill(at=statement)
            with trio.fail_after(10), pytest.raises(OperationError, match="disk is full") as failure:
                await bench.call(Index(root=str(root), async_=False, force=True))
            assert failure.value.failure.executed is Executed.NO
            one.room()
            assert (await index(bench, root)).files == 1
        assert not bench.failures
    assert differences(data, root) == []


@pytest.mark.parametrize("kind", ["move", "trash", "restore", "several"])
async def test_a_change_that_the_disk_has_no_room_for_was_not_done(tmp_path: Path, kind: str) -> None:
    """At whichever statement or commit: the answer says what is on the disk, and the index follows."""
    statement, struck = 1, True
    while struck:
        root, data = tmp_path / str(statement) / "root", tmp_path / str(statement) / "data"
        (root / "b").mkdir(parents=True)
        (root / "file").write_text("x")
        (root / "a").write_text("y")
        with disk() as one:
            async with files_service(data, root, trash=True) as bench:
                await index(bench, root)
                if kind == "restore":
                    await bench.call(DeleteFiles(paths=[str(root / "file")]))
                before = names_in(root)
                one.fill(at=statement)
                done = await change(bench, root, kind)
                struck = one.struck
                assert done is not None or names_in(root) == before, "it said that nothing was done"
                if done is not None:
                    # A batch may be done in part; each of its items reports its own result.
                    assert (before == names_in(root)) == (done == 0)
                one.room()
                # The next change at the latest completes unfinished work.
                await change(bench, root, kind)
                await bench.call(MoveFiles(moves=pairs((root / "a", root / "c"))))
                assert differences(data, root) == []
                assert [each.path for each in (await bench.call(ListTrash())).items] == (
                    [str(root / "file")] if kind == "trash" else []
                )
            assert not bench.failures
        statement += 1
    assert statement > 4


async def change(bench: Bench, root: Path, kind: str) -> int | None:
    """How many items were done; None where the call failed, and nothing was."""
    try:
        match kind:
            case "trash":
                return (await bench.call(DeleteFiles(paths=[str(root / "file")]))).succeeded
            case "restore":
                return (await bench.call(RestoreFiles(paths=[str(root / "file")]))).succeeded
        # The second is of another chunk: it needs what the first makes.
        more = pairs((root / "b/file", root / "b/again")) if kind == "several" else []
        return (await bench.call(MoveFiles(moves=pairs((root / "file", root / "b/file")) + more))).succeeded
    except LinckiaError as error:
        failed = error
    assert "disk is full" in str(failed)
    assert failed.failure.executed is Executed.NO
    return None


def names_in(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@pytest.mark.slow
async def test_classifier_jobs_wait_for_room(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    root.mkdir()
    (root / "a.png").write_text("x")
    with disk() as one:
        async with files_service(data, root) as bench:
            await index(bench, root)
            one.fill_behind("INSERT INTO classifier_job")
            await bench.call(RerunClassifier(source_path=str(root / "a.png")))
            with trio.fail_after(10):
                while not one.struck:  # noqa: ASYNC110  # as above
                    await trio.sleep(0.01)
            one.room()
            with trio.fail_after(10):
                while (await bench.call(ListClassifierJobs())).jobs[0].completed_at is None:  # noqa: ASYNC110  # as above
                    await trio.sleep(0.01)
        assert not bench.failures


def test_a_trash_record_without_its_item_is_ignored(tmp_path: Path) -> None:
    trash = tmp_path / "trash"
    trash.mkdir()
    write_note(trash, 7, Note("/a", 0, 1, 2))
    (trash / "8.json").write_text("no note")
    (trash / "8").write_text("an item")
    database = open_database(tmp_path / "files.db")
    with database.reader() as db:
        assert db.execute("SELECT count(*) FROM trash").get == 0
    database.close()
