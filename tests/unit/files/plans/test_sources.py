"""Sources: what happens below a live one is in the index, through the death of either service; a manual one scans."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import apsw
import pytest
import trio

from proto.errors import InvalidParams
from proto.ops.watch import WatchStatus, WatchStatusResult
from proto.validation import validate
from services.files import main
from services.files.index.live import Hint, Live
from services.files.index.tree import Invalidations, Tree
from services.files.main import open_service as open_files
from services.files.operations.index import ListJobs
from services.files.operations.reading import Navigate, SessionInfo
from services.files.operations.sets import ResourceSetCreate, ResourceSetGet, ResourceSetModify
from services.files.operations.sources import (
    SourceCreate,
    SourceDelete,
    SourceGet,
    SourceList,
    SourceStart,
    SourceStats,
    SourceStop,
    SourceType,
)
from services.files.store.database import open_database
from services.runtime.database import Database
from services.runtime.handlers import Context, Environment, Handlers
from services.watch.main import open_service as open_watch
from tests.in_process import Bench, services_in_process
from tests.unit.files.rig import change_tree, differences, files_service, followed, index, make_tree, stored
from tests.waiting import until

PATIENCE_S = 20
"""Time after which a test fails; no wait takes that long if all is well."""


@asynccontextmanager
async def files_and_watch(data: Path, root: Path) -> AsyncIterator[Bench]:
    """Both services over one root."""
    async with services_in_process(
        {"watch": open_watch, "files": open_files}, data, roots=[root], settings={"files": {}, "watch": {}}
    ) as bench:
        yield bench
        for name in ("files", "watch"):
            if name in bench.running:
                await bench.stop(name)


async def until_empty(check: Callable[[], list[str]]) -> None:
    """Wait until `check` finds no problems."""
    wrong = ["not looked at"]
    with trio.move_on_after(PATIENCE_S):
        while wrong:
            await trio.sleep(0.02)
            wrong = await trio.to_thread.run_sync(check)
    assert wrong == []


def unsure(data: Path) -> list[str]:
    """Return the folders that were listed without the watcher and need another look."""
    db = apsw.Connection(str(data / "files/files.db"), flags=apsw.SQLITE_OPEN_READWRITE)
    db.set_busy_timeout(10_000)  # the service writes to it, too
    try:
        return [str(folder) for (folder,) in db.execute("SELECT folder FROM unsure")]
    finally:
        db.close()


async def until_status(bench: Bench, name: str, status: str) -> None:
    async def check() -> bool:
        return (await bench.call(SourceGet(name=name))).status == status

    await until(check)


async def live(bench: Bench, root: Path, name: str = "live", **options: bool) -> None:
    await bench.call(SourceCreate(name=name, type="live", path=str(root), debounce_ms=0, **options))
    if options.get("enabled", True):
        await until_status(bench, name, "running")


@pytest.mark.slow
async def test_changes_are_in_the_index_without_being_asked_for(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    root.mkdir()
    chance = random.Random(4)
    make_tree(root / "tree", chance, 100)
    async with files_and_watch(data, root) as bench:
        await live(bench, root)
        assert differences(data, root) == []
        for _ in range(4):
            change_tree(root, chance, 40)
            await until_empty(lambda: differences(data, root))
        stats = await bench.call(SourceStats(name="live"))
        assert (stats.status, stats.total_scans) == ("running", 1)
        assert stats.changes > 0
        assert stats.entries_indexed == 1 + sum(len(folders) + len(files) for _, folders, files in os.walk(root))


@pytest.mark.slow
@pytest.mark.parametrize("dies", ["files", "watch"])
async def test_nothing_is_lost_when_a_service_dies(tmp_path: Path, dies: str) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    root.mkdir()
    chance = random.Random(5)
    make_tree(root / "tree", chance, 60)
    async with files_and_watch(data, root) as bench:
        await live(bench, root)
        for _ in range(3):
            change_tree(root, chance, 15)
            await bench.stop(dies)
            change_tree(root, chance, 15)
            await bench.start(dies)
            change_tree(root, chance, 15)
            await until_empty(lambda: differences(data, root))
        await until_status(bench, "live", "running")


async def test_entries_renamed_during_the_first_listing_stay_in_their_sets(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    (root / "a").mkdir(parents=True)
    (root / "a/file").write_bytes(b"x")
    renamed = trio.Event()

    @asynccontextmanager
    async def open_renaming(env: Environment) -> AsyncIterator[Handlers]:
        """The watcher; once it says that it has settled, and before this is heard, a file is renamed."""
        async with open_watch(env) as watch:
            _, true_status = watch.by_name.pop("watch_status")

            @watch.handle(WatchStatus)
            async def status(params: WatchStatus, ctx: Context) -> WatchStatusResult:
                found = await true_status(params, ctx)
                assert isinstance(found, WatchStatusResult)
                if found.settled and not renamed.is_set():
                    await bench.call(ResourceSetModify(name="s", operation="add", paths=[f"{root}/a/file"]))
                    (root / "a/file").rename(root / "a/other")
                    renamed.set()
                return found

            yield watch

    services = {"watch": open_renaming, "files": open_files}
    async with services_in_process(services, data, roots=[root], settings={"files": {}, "watch": {}}) as bench:
        await bench.call(ResourceSetCreate(name="s"))
        await live(bench, root)
        with trio.fail_after(PATIENCE_S):
            await renamed.wait()
        await until_empty(lambda: differences(data, root) + unsure(data))
        found = await bench.call(ResourceSetGet(name="s", include_entries=True))
        assert [entry.path for entry in found.entries or []] == [f"{root}/a/other"]
        await bench.stop("files")


async def test_entries_deleted_before_the_watcher_saw_them_leave_the_index(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    root.mkdir()
    (root / "stays").touch()
    async with files_and_watch(data, root) as bench:
        await live(bench, root)
        await until_empty(lambda: unsure(data))
        # As if a scan had found it in the moment before the watcher looked.
        db = apsw.Connection(str(data / "files/files.db"))
        db.set_busy_timeout(10_000)  # the service writes to it, too
        db.execute(
            "INSERT INTO entry SELECT 1000, parent, 'gone', kind, size, disk, files, directories, mtime, ctime, 999999,"
            " device, links, extension, scanned FROM entry WHERE name = 'stays'"
        )
        db.execute("INSERT INTO unsure SELECT parent, 0 FROM entry WHERE name = 'stays'")
        db.close()
        assert f"{root}/gone" in stored(data)
        (root / "news").touch()
        await until_empty(lambda: unsure(data))
        assert f"{root}/gone" not in stored(data)


async def test_renamed_entries_stay_in_their_sets(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    (root / "a/b").mkdir(parents=True)
    (root / "a/b/file").write_bytes(b"x")
    async with files_and_watch(data, root) as bench:
        await live(bench, root)
        await bench.call(ResourceSetCreate(name="s"))
        paths = [f"{root}/a/b", f"{root}/a/b/file"]
        await bench.call(ResourceSetModify(name="s", operation="add", paths=paths))
        (root / "a/b/file").rename(root / "a/b/other")
        await until_empty(lambda: differences(data, root))
        (root / "a").rename(root / "c")
        (root / "c/new").touch()
        await until_empty(lambda: differences(data, root))
        found = await bench.call(ResourceSetGet(name="s", include_entries=True))
        assert [entry.path for entry in found.entries or []] == [f"{root}/c/b", f"{root}/c/b/other"]


async def test_source_that_is_not_recursive_lists_its_folder_alone(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    (root / "inside").mkdir(parents=True)
    (root / "inside/file").write_bytes(b"x")
    async with files_and_watch(data, root) as bench:
        await live(bench, root, watch_recursive=False)
        (root / "other").mkdir()
        (root / "other/file").write_bytes(b"x")
        (root / "file").write_bytes(b"xyz")

        async def has_three() -> bool:
            return (await bench.call(Navigate(path=str(root)))).total == 3

        await until(has_three)
        page = await bench.call(Navigate(path=str(root)))
        assert [(entry.name, entry.size) for entry in page.entries] == [("file", 3), ("inside", 0), ("other", 0)]


async def test_stopped_source_stays_stopped_until_it_is_started(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    root.mkdir()
    async with files_and_watch(data, root) as bench:
        await live(bench, root)
        assert (await bench.call(SourceStop(name="live"))).status == "stopped"
        (root / "unseen").touch()
        await bench.stop("files")
        await bench.start("files")
        assert (await bench.call(SourceGet(name="live"))).status == "stopped"

        async def ended() -> bool:
            return await trio.to_thread.run_sync(followed, data) == 0

        await until(ended)
        assert (await bench.call(Navigate(path=str(root)))).total == 0
        await bench.call(SourceStart(name="live"))
        await until_empty(lambda: differences(data, root))
        assert (await bench.call(SourceStop(name="live"))).message != "not running"
        assert (await bench.call(SourceStop(name="live"))).message == "not running"


@pytest.mark.slow
async def test_folder_that_goes_and_comes_back_is_followed_on(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    (root / "folder").mkdir(parents=True)
    async with files_and_watch(data, root) as bench:
        await live(bench, root / "folder")
        (root / "folder").rmdir()

        async def gone() -> bool:
            return (await bench.call(SessionInfo())).entry_count == 0

        await until(gone)
        (root / "folder").mkdir()
        (root / "folder/file").write_bytes(b"x")
        await until_empty(lambda: differences(data, root / "folder"))
        await bench.stop("files")
        shutil.rmtree(root / "folder")
        await bench.start("files")
        await until(gone)
        (root / "folder").mkdir()
        await until_empty(lambda: differences(data, root / "folder"))


async def test_live_source_is_scanned_again_after_its_index_was_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    (root / "folder").mkdir(parents=True)
    (root / "folder/file").touch()
    opened: list[Database] = []

    def open_noted(path: Path, on_rebuilt: Callable[[], object]) -> Database:
        opened.append(open_database(path, on_rebuilt))
        return opened[0]

    monkeypatch.setattr(main, "open_database", open_noted)
    async with files_and_watch(data, root) as bench:
        await live(bench, root)
        await trio.to_thread.run_sync(opened[0].begin_again, "damaged by a test")
        # The scans that follow any damage are not what is tested. A connection of its own would be to a file that is
        # being replaced.
        await opened[0].write(lambda db: db.execute("DELETE FROM job").fetchall())
        (root / "folder/other").touch()
        await until_empty(lambda: differences(data, root))
        await until_status(bench, "live", "running")
        assert (await bench.call(SourceStats(name="live"))).total_scans == 1


async def test_manual_source_scans_when_it_is_started_and_only_then(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    root.mkdir()
    (root / "file").touch()
    async with files_service(data, root) as bench:
        made = await bench.call(SourceCreate(name="m", type="manual", path=str(root)))
        assert made.status == "stopped"
        assert (await bench.call(ListJobs())).total == 0
        for scans in (1, 2):
            started = await bench.call(SourceStart(name="m"))
            assert (started.status, started.job_id) == ("running", scans)
            await until_status(bench, "m", "completed")
            stats = await bench.call(SourceStats(name="m"))
            assert (stats.total_scans, stats.entries_indexed, stats.failed_scans) == (scans, 2, 0)
            assert stats.last_scan_at is not None
        assert differences(data, root) == []
        assert (await bench.call(SourceDelete(name="m"))).deleted
        assert (await bench.call(SourceList())).sources == []
        assert differences(data, root) == []


async def test_an_invalid_source_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").touch()
    async with files_service(tmp_path / "data", root) as bench:
        cases: tuple[tuple[SourceType, Path], ...] = (
            ("live", root / "no"), ("live", root / "file"), ("manual", tmp_path), ("manual", Path("relative")),
        )  # fmt: skip
        for kind, path in cases:
            with pytest.raises(InvalidParams) as refused:
                await bench.call(SourceCreate(name="s", type=kind, path=str(path)))
            assert refused.value.failure.field == "path"
        with pytest.raises(InvalidParams, match="there are: live, manual"):
            validate(SourceCreate, {"name": "s", "type": "periodic", "path": str(root)})
        await bench.call(SourceCreate(name="s", type="manual", path=str(root)))
        with pytest.raises(InvalidParams, match="already"):
            await bench.call(SourceCreate(name="s", type="manual", path=str(root)))
        with pytest.raises(InvalidParams, match="there are: s"):
            await bench.call(SourceStart(name="t"))


async def test_directory_that_a_process_died_before_listing_is_listed_when_it_is_named_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    root.mkdir()
    async with files_service(data, root) as bench:
        await index(bench, root)
    (root / "new/inside").mkdir(parents=True)
    (root / "new/inside/first").write_bytes(b"x")
    hints = [Hint(str(root / "new"))]
    database = open_database(data / "files/files.db")
    with contextlib.closing(database), monkeypatch.context() as patch:

        def die(*args: object) -> None:
            raise InterruptedError

        # The directory is stored in one transaction, and would be listed in the next.
        clock = iter([0.0, 0.0, 100.0, 200.0, 200.0])
        patch.setattr(time, "monotonic", lambda: next(clock))
        patch.setattr(Live, "_list", die)
        with pytest.raises(InterruptedError):
            Live(Tree(database, Invalidations(), None), str(root)).apply(hints)
        patch.undo()
        assert any(path.endswith("/new") for path in stored(data))
        assert differences(data, root) != []
        Live(Tree(database, Invalidations(), None), str(root)).apply(hints)
    assert differences(data, root) == []
