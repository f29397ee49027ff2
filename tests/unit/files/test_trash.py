"""Deleting, for good or into the trash, and bringing back from there; the index and the sets in step."""

from __future__ import annotations

import os
from pathlib import Path

import apsw
import trio

from services.files.operations.changes import DeleteFiles, EmptyTrash, ListTrash, RestoreFiles, RestoreItem
from tests.unit.files.changing import members, put_into_set, small_tree, statuses
from tests.unit.files.rig import differences, files_service, index, stored


async def test_deleted_entries_leave_the_index_and_a_full_directory_needs_force(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    small_tree(root)
    (root / "empty").mkdir()
    async with files_service(data, root) as bench:
        await index(bench, root)
        put_into_set(data, "mine", root / "a/one", root / "b/three")
        given = [str(root / name) for name in ("a", "empty", "link", "nothing", "b/three")]
        for dry_run in (True, False):
            done = await bench.call(DeleteFiles(paths=given, dry_run=dry_run))
            good = "preview" if dry_run else "success"
            assert [result.status for result in done.results] == ["error", good, good, "error", good]
            assert "`force`" in str(done.results[0].error)
            assert (root / "empty").exists() is dry_run
        assert (root / "a/one").exists()
        assert differences(data, root) == []
        forced = await bench.call(DeleteFiles(paths=[str(root / "a"), str(root / "a/one"), str(root)], force=True))
        assert [result.status for result in forced.results] == ["success", "error", "error"]
        assert differences(data, root) == []
        assert await members(bench, "mine") == []


async def test_a_very_deep_directory_can_be_indexed_and_deleted(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    (root / "deep").mkdir(parents=True)
    at = os.open(root / "deep", os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    async with files_service(data, root, trash=False) as bench:
        await index(bench, root)
        assert stored(data)[str(root)][4] == 1501
        os.close(os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=at))
        os.close(at)
        await index(bench, root)
        assert stored(data)[str(root)][3] == 1
        done = await bench.call(DeleteFiles(paths=[str(root / "deep")], force=True))
        assert done.results[0].status == "success"
        assert os.listdir(root) == []


async def test_the_trash_is_on_by_default_and_without_it_every_answer_says_that_deletion_is_final(
    tmp_path: Path,
) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    small_tree(root)
    async with files_service(data, root) as bench:
        done = await bench.call(DeleteFiles(paths=[str(root / "b/three")]))
        assert (done.permanent, (await bench.call(ListTrash())).permanent) == (False, False)
        back = await bench.call(RestoreFiles(paths=[str(root / "b/three")]))
        assert statuses(back.results) == ["success"]
    async with files_service(data, root, trash=False) as bench:
        for dry_run in (True, False):
            assert (await bench.call(DeleteFiles(paths=[str(root / "b/three")], dry_run=dry_run))).permanent
        assert (await bench.call(ListTrash())).permanent
        assert (await bench.call(EmptyTrash(older_than_days=0))).permanent
        back = await bench.call(RestoreFiles(paths=[str(root / "b/three")]))
        assert "is off" in str(back.results[0].error)


async def test_deleted_files_are_restored_from_the_trash(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    small_tree(root)
    async with files_service(data, root, trash=True) as bench:
        await index(bench, root)
        put_into_set(data, "some", root / "a", root / "a/inner/two", root / "b/three")
        put_into_set(data, "other", root / "a/inner/two")
        done = await bench.call(DeleteFiles(paths=[str(root / "a"), str(root / "b/three")], force=True))
        assert await members(bench, "some") == []
        assert [result.status for result in done.results] == ["success", "success"]
        assert not (root / "a").exists()
        assert differences(data, root) == []
        there = await bench.call(ListTrash())
        assert [(item.path, item.kind, item.size) for item in there.items] == [
            (str(root / "b/three"), "file", 9), (str(root / "a"), "directory", 5070),
        ]  # fmt: skip
        (root / "b/three").write_bytes(b"other")
        back = await bench.call(
            RestoreFiles(
                paths=[str(root / "a"), str(root / "b/three"), str(root / "never")],
                items=[RestoreItem(trash_id=done.results[1].trash_id or 0, to=str(root / "b/three again"))],
            )
        )
        assert statuses(back.results) == ["success", "error", "error", "success"]
        assert "already exists" in str(back.results[1].error)
        assert "not in the trash" in str(back.results[2].error)
        assert (root / "b/three again").read_bytes() == b"3" * 9
        assert await members(bench, "some") == [str(root / name) for name in ("a", "a/inner/two", "b/three again")]
        assert await members(bench, "other") == [str(root / "a/inner/two")]
        await index(bench, root)
        assert differences(data, root) == []
        assert (await bench.call(ListTrash())).total == 0
        await bench.call(DeleteFiles(paths=[str(root / "a")], force=True))
        assert (await bench.call(EmptyTrash(older_than_days=0))).deleted == 1
        assert os.listdir(data / "files/trash") == []


async def test_entries_restored_before_a_crash_are_in_their_sets_again(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    small_tree(root)
    async with files_service(data, root, trash=True) as bench:
        await index(bench, root)
        put_into_set(data, "mine", root / "a/inner", root / "a/inner/two")
        done = await bench.call(DeleteFiles(paths=[str(root / "a")], force=True))
        trash_id = done.results[0].trash_id
        await bench.stop("files")
        os.rename(data / f"files/trash/{trash_id}", root / "a")
        status = os.lstat(root / "a")
        db = apsw.Connection(str(data / "files/files.db"))
        db.set_busy_timeout(10_000)  # the service writes to it, too
        db.execute(
            "INSERT INTO intent(kind, source, target, inode, device, trash_id) VALUES('restore',?,?,?,?,?)",
            (str(root / "a"), str(root / "a"), status.st_ino, status.st_dev, trash_id),
        )
        db.close()
        await bench.start("files")
        expected = [str(root / "a/inner"), str(root / "a/inner/two")]
        for _ in range(600):
            if await members(bench, "mine") == expected:
                break
            # The scan that it waits for goes on in the background, and tells nobody here.
            await trio.sleep(0.05)
        assert await members(bench, "mine") == expected
        assert differences(data, root) == []
