"""Renaming and moving: each item by itself, never over anything, the index in step."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import apsw
import pytest

from services.files.changes import copying, disk
from services.files.changes.disk import OpenPath
from services.files.operations.changes import DeleteFiles, ListTrash, MoveFiles, RenameFiles, RestoreFiles, RestoreItem
from services.files.operations.index import Index
from services.runtime.replace import rename, rename_without_flag
from tests.unit.files.changing import members, pairs, put_into_set, small_tree, statuses
from tests.unit.files.rig import OnDisk, change_tree, differences, files_service, index, make_tree, stored


async def test_renamed_and_moved_entries_keep_sums_and_sets(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    small_tree(root)
    async with files_service(data, root) as bench:
        await index(bench, root)
        put_into_set(data, "mine", root / "a/inner", root / "a/inner/two", root / "a/one")
        renamed = await bench.call(RenameFiles(renames=pairs((root / "a/one", root / "a/ONE.txt"))))
        assert (statuses(renamed.results), renamed.succeeded, renamed.failed) == (["success"], 1, 0)
        moved = await bench.call(MoveFiles(moves=pairs((root / "a/inner", root / "b/deep"), (root / "b", root / "c"))))
        assert statuses(moved.results) == ["success", "success"]
        assert differences(data, root) == []
        assert await members(bench, "mine") == [str(root / p) for p in ("a/ONE.txt", "c/deep", "c/deep/two")]
        # What the index says of when it was scanned has moved too.
        assert (await bench.call(Index(root=str(root / "c/deep"), async_=False))).skipped


async def test_each_item_has_its_own_status_and_nothing_is_overwritten(tmp_path: Path) -> None:
    root, data, outside = tmp_path / "root", tmp_path / "data", tmp_path / "outside"
    small_tree(root)
    outside.mkdir()
    (outside / "secret").write_bytes(b"s")
    (root / "way out").symlink_to(outside)
    async with files_service(data, root) as bench:
        await index(bench, root)
        given = pairs(
            (root / "a/one", root / "b/three"),
            (root / "a/one", root / "b"),
            (root / "nothing", root / "x"),
            (root / "a", root / "a/inner/a"),
            (root / "a/one", root / "no such folder/one"),
            (root / "a/one", outside / "one"),
            (root / "way out/secret", root / "secret"),
            (root / "a/one", root / "way out/one"),
            (root, root / "self"),
            ("relative", root / "y"),
            (root / "a/one", root / "a/one"),
            (root / "a/one", root / "b/three/one"),
            (root / "link", root / "renamed link"),
            (root / "link", root / "twice"),
        )
        expected = ["error"] * 12 + ["success", "error"]
        reasons = [
            "already exists", "already exists", "does not exist", "is inside", "does not exist",
            "outside the roots", "outside the roots", "outside the roots", "is a root", "does not exist",
            "already exists", "is not a directory", None, "does not exist",
        ]  # fmt: skip
        before = OnDisk(root).entries
        dry = await bench.call(MoveFiles(moves=given, dry_run=True))
        assert dry.dry_run
        assert OnDisk(root).entries.keys() == before.keys()
        assert statuses(dry.results) == [status.replace("success", "preview") for status in expected]
        done = await bench.call(MoveFiles(moves=given))
        assert statuses(done.results) == expected
        for results in (dry.results, done.results):
            for result, reason in zip(results, reasons, strict=True):
                assert (reason is None and result.error is None) or (reason is not None and reason in str(result.error))
        assert (root / "b/three").read_bytes() == b"3" * 9
        assert os.listdir(outside) == ["secret"]
        assert differences(data, root) == []


async def test_each_item_builds_on_the_previous_ones_even_in_a_dry_run(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    small_tree(root)
    async with files_service(data, root) as bench:
        await index(bench, root)
        given = pairs(
            (root / "a", root / "x"),
            (root / "x/one", root / "b/one"),
            (root / "x/inner", root / "a"),
            (root / "a/two", root / "x/two"),
            (root / "x/one", root / "z"),
            (root / "b/three", root / "b/one"),
        )
        dry = await bench.call(RenameFiles(renames=given, dry_run=True))
        assert statuses(dry.results) == ["preview"] * 4 + ["error"] * 2
        done = await bench.call(RenameFiles(renames=given))
        assert statuses(done.results) == ["success"] * 4 + ["error"] * 2
        assert [result.error for result in dry.results] == [result.error for result in done.results]
        assert differences(data, root) == []


async def test_missing_directories_are_made_only_when_asked(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    small_tree(root)
    async with files_service(data, root) as bench:
        await index(bench, root)
        moves = pairs((root / "a/one", root / "new/er/one"))
        for dry_run in (True, False):
            refused = await bench.call(MoveFiles(moves=moves, dry_run=dry_run))
            assert "does not exist" in str(refused.results[0].error)
        dry = await bench.call(MoveFiles(moves=moves, dry_run=True, make_directories=True))
        assert statuses(dry.results) == ["preview"]
        assert not (root / "new").exists()
        done = await bench.call(MoveFiles(moves=moves, make_directories=True))
        assert statuses(done.results) == ["success"]
        assert differences(data, root) == []


async def test_unindexed_files_are_indexed_at_their_destination(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    small_tree(root)
    (root / "b/new/deeper").mkdir(parents=True)
    async with files_service(data, root) as bench:
        await index(bench, root / "a")
        (root / "b/new/deeper/file").write_bytes(b"f" * 3)
        done = await bench.call(
            MoveFiles(moves=pairs((root / "b/new", root / "a/new"), (root / "a/inner", root / "b/inner")))
        )
        assert statuses(done.results) == ["success", "success"]
        assert differences(data, root / "a", root / "b/inner") == []
        assert str(root / "b") not in stored(data)


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no second file system")
async def test_a_move_to_another_file_system_copies_verifies_and_deletes(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    other = Path("/dev/shm") / f"linckia-test-{os.getpid()}"
    other.mkdir()
    try:
        if os.stat(other).st_dev == os.stat(tmp_path).st_dev:
            pytest.skip("one file system")
        small_tree(root)
        os.link(root / "a/one", root / "a/inner/one too")
        os.chmod(root / "a/inner/two", 0o640)
        os.utime(root / "a/inner/two", ns=(5_000_000_000, 7_000_000_007))
        async with files_service(data, root, other) as bench:
            await index(bench, root)
            (other / "taken").write_bytes(b"t")
            await index(bench, other)
            put_into_set(data, "mine", root / "a/inner/two")
            done = await bench.call(
                MoveFiles(moves=pairs((root / "a", other / "a"), (root / "b/three", other / "taken")))
            )
            assert statuses(done.results) == ["success", "error"], done.results
            assert not (root / "a").exists()
            assert sorted(os.listdir(other)) == ["a", "taken"]
            status = os.stat(other / "a/inner/two")
            assert (status.st_mode & 0o777, status.st_mtime_ns, status.st_size) == (0o640, 7_000_000_007, 70)
            assert os.stat(other / "a/one").st_ino == os.stat(other / "a/inner/one too").st_ino
            assert await members(bench, "mine") == [str(other / "a/inner/two")]
            assert differences(data, root, other) == []
    finally:
        disk.remove(OpenPath(os.open("/dev/shm", os.O_RDONLY), other.name, str(other)), force=True)


def test_a_copy_of_a_file_that_changes_meanwhile_is_discarded(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "from/kept").write_bytes(b"k")
    (tmp_path / "from/changed").write_bytes(b"c")
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        copy = copying.Copy(OpenPath(folder, "from", "/from"), OpenPath(folder, "to", "/to"), lambda: None)
        copy.make()
        (tmp_path / "from/changed").write_bytes(b"other")
        (tmp_path / "from/new").write_bytes(b"n")
        with pytest.raises(disk.Refused, match="part of the original remains: 2 entries"):
            copy.delete_original()
        assert sorted(os.listdir(tmp_path / "from")) == ["changed", "new"]
        with pytest.raises(disk.Refused, match="File exists"):
            copying.Copy(OpenPath(folder, "from", "/from"), OpenPath(folder, "from", "/from"), lambda: None).make()
    finally:
        os.close(folder)


def test_nothing_is_overwritten_without_renameat2_support_either(tmp_path: Path) -> None:
    for name in ("file", "taken"):
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/inside").write_bytes(b"i")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/there").write_bytes(b"t")
    folder = os.open(tmp_path, os.O_RDONLY)

    def at(name: str) -> OpenPath:
        return OpenPath(folder, name, f"/{name}")

    try:
        for source, target in (("file", "taken"), ("folder", "full"), ("folder", "taken"), ("file", "full")):
            for way in (rename, rename_without_flag):
                with pytest.raises(FileExistsError) as refused:
                    way(at(source), at(target))
                assert refused.value.strerror == os.strerror(errno.EEXIST)
        rename_without_flag(at("file"), at("new"))
        rename_without_flag(at("folder"), at("new folder"))
    finally:
        os.close(folder)
    assert sorted(os.listdir(tmp_path)) == ["full", "new", "new folder", "taken"]
    assert (tmp_path / "taken").read_bytes() == b"taken"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_any_order_of_changes_leaves_the_index_as_the_disk(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    root, data = tmp_path / "root", tmp_path / "data"
    make_tree(root, chance, 120)
    async with files_service(data, root, trash=seed % 2 == 1) as bench:
        await index(bench, root)
        for _ in range(12):
            there = list(OnDisk(root).entries)[1:]
            given = pairs(
                *(
                    (chance.choice(there), f"{chance.choice(there)}/m{chance.getrandbits(40)}")
                    for _ in range(chance.randrange(1, 6))
                )
            )
            await bench.call(MoveFiles(moves=given))
            there = list(OnDisk(root).entries)[1:]
            await bench.call(DeleteFiles(paths=[chance.choice(there)], force=chance.random() < 0.5))
            assert differences(data, root) == []
        if seed % 2:
            back = await bench.call(ListTrash())
            await bench.call(RestoreFiles(items=[RestoreItem(trash_id=item.trash_id) for item in back.items]))
            assert differences(data, root) == []
        change_tree(root, chance, 20)
        await index(bench, root)
        assert differences(data, root) == []


async def test_a_change_that_a_crash_cut_off_is_in_the_index_at_the_next_start(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    small_tree(root)
    async with files_service(data, root, trash=True) as bench:
        await index(bench, root)
        put_into_set(data, "mine", root / "a/inner/two", root / "b/three")
        await bench.stop("files")
        # Noted and done, noted and not begun, noted and copied in part, and put into the trash.
        inner, three, one = (os.lstat(root / name) for name in ("a/inner", "b/three", "a/one"))
        os.rename(root / "a/inner", root / "b/inner")
        (root / "b/.linckia-moving-2").write_bytes(b"some")
        (data / "files/trash").mkdir()
        os.rename(root / "a/one", data / "files/trash/1")
        db = apsw.Connection(str(data / "files/files.db"))
        db.set_busy_timeout(10_000)  # the service writes to it, too
        for row in (
            ("move", str(root / "a/inner"), str(root / "b/inner"), inner.st_ino, inner.st_dev, None),
            ("move", str(root / "b/three"), str(root / "b/four"), three.st_ino, three.st_dev, None),
            ("trash", str(root / "a/one"), None, one.st_ino, one.st_dev, 1),
            ("trash", str(root / "link"), None, 1, 1, 2),
        ):
            db.execute("INSERT INTO intent(kind, source, target, inode, device, trash_id) VALUES(?,?,?,?,?,?)", row)
        for path in ("a/one", "link"):
            db.execute("INSERT INTO trash(path, kind, size, deleted) VALUES(?, 0, 0, 0)", (str(root / path),))
        db.close()
        await bench.start("files")
        assert differences(data, root) == []
        assert await members(bench, "mine") == [str(root / "b/inner/two"), str(root / "b/three")]
        assert [item.path for item in (await bench.call(ListTrash())).items] == [str(root / "a/one")]
        assert not (root / "b/.linckia-moving-2").exists()
        await bench.stop("files")
        await bench.start("files")
        assert differences(data, root) == []


@pytest.mark.slow
async def test_changes_during_a_scan_are_not_lost(tmp_path: Path) -> None:
    chance = random.Random(7)
    root, data = tmp_path / "root", tmp_path / "data"
    make_tree(root, chance, 1500)
    async with files_service(data, root) as bench:
        for round_ in range(3):
            job = await bench.call(Index(root=str(root), force=True))
            folders = OnDisk(root).folders()[1:]
            for number in range(10):
                source = chance.choice(folders)
                await bench.call(MoveFiles(moves=pairs((source, f"{root}/moved{round_}-{number}"))))
            assert job.job_id is not None
            await index(bench, root)
            assert differences(data, root) == []


async def test_a_renamed_note_names_the_operation_that_renames_its_links(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for name in ("a.md", "b.txt"):
        (root / name).write_bytes(b"")
    async with files_service(tmp_path / "data", root) as bench:
        other = await bench.call(RenameFiles(renames=pairs((root / "b.txt", root / "c.txt"))))
        note = await bench.call(RenameFiles(renames=pairs((root / "a.md", root / "d.md"))))
    assert (other.hint, note.succeeded) == (None, 1)
    assert "notes_rename" in (note.hint or "")
