"""Folders that tools make (`.git`, `node_modules`) stand as one row each: every size is the disk's, and nothing in them
is a row of its own unless it is asked for."""

from __future__ import annotations

import os
import random
from pathlib import Path

import apsw
import pytest

from proto.errors import InvalidParams
from services.files.operations.changes import DeleteFiles, MoveFiles, RestoreFiles
from services.files.operations.index import Index, ListJobs
from services.files.operations.reading import Inspect, Navigate
from services.files.operations.sources import SourceCreate
from services.files.operations.space import FindDuplicates, SpaceSummaryOf, TopDirectories, TopFiles
from tests.in_process import Bench
from tests.unit.files.changing import pairs
from tests.unit.files.plans.test_sources import files_and_watch, until_empty
from tests.unit.files.rig import OnDisk, differences, files_service, index, make_tree, stored


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two folders of tools, one within the other, beside what a person wrote; an inode has names in and out of them."""
    root = tmp_path.resolve() / "root"
    for path, size in (
        (".git/objects/ab/cd", 30_000), (".git/config", 10), ("src/app.js", 5000), ("src/node_modules/x/index.js", 700),
        ("src/node_modules/x/node_modules/y/index.js", 700), ("copy.js", 700),
    ):  # fmt: skip
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(b"x" * size)
    os.link(root / ".git/objects/ab/cd", root / "linked")
    return root


def shown(data: Path, root: Path) -> set[str]:
    """Return the paths below the root that have a row of their own."""
    return {str(Path(path).relative_to(root)) for path in stored(data) if path.startswith(f"{root}/")}


def wrong(data: Path, root: Path) -> list[str]:
    """Return the differences between the index, with hidden rows, and the disk."""
    return differences(data, root, hidden=True)


OWN = {".git", "src", "src/app.js", "src/node_modules", "copy.js", "linked"}


async def test_folders_of_tools_stand_as_one_row_with_the_sums_of_the_disk(tmp_path: Path, root: Path) -> None:
    data = tmp_path / "data"
    async with files_service(data, root) as bench:
        told = await index(bench, root)
        assert (told.files, told.total_size) == (7, 67_110)
        assert told.whole_folders is not None
        assert (told.whole_folders.folders, told.whole_folders.files, told.whole_folders.size) == (2, 4, 31_410)
        assert told.whole_folders.first == [f"{root}/.git", f"{root}/src/node_modules"]
        (job,) = (await bench.call(ListJobs())).jobs
        assert job.whole_folders == told.whole_folders
        assert shown(data, root) == OWN
        assert wrong(data, root) == []
        for path in (root / ".git", root / "src/node_modules"):
            seen = await bench.call(Inspect(path=str(path)))
            assert (seen.size, seen.disk_size, seen.files, seen.directories) == OnDisk(path).sums(str(path))
        top = await bench.call(TopFiles(path=str(root)))
        assert ([entry.name for entry in top.entries], top.total) == (["linked", "app.js", "copy.js"], 3)
        folders = await bench.call(TopDirectories(path=str(root)))
        assert ({entry.name for entry in folders.entries}, folders.total) == ({".git", "src", "node_modules"}, 3)
        assert (await bench.call(FindDuplicates(path=str(root)))).groups == []
        # The sums include all files.
        assert sum(share.count for share in (await bench.call(SpaceSummaryOf(path=str(root)))).by_type) == 7
        inside = await bench.call(Navigate(path=str(root / ".git")))
        assert (inside.entries, inside.total) == ([], 0)
        assert "one row for its 2 files" in (inside.summary or "")
        with pytest.raises(InvalidParams, match="no_ignore"):
            await bench.call(Inspect(path=str(root / ".git/config")))


async def test_contents_of_tool_folders_are_listed_only_while_requested(tmp_path: Path, root: Path) -> None:
    data = tmp_path / "data"
    async with files_service(data, root) as bench:
        await index(bench, root)
        # A recent scan with other settings does not count.
        told = await index(bench, root, no_ignore=True, force=False)
        assert (told.skipped, told.whole_folders) == (False, None)
        assert differences(data, root) == []
        assert (await index(bench, root, no_ignore=True, force=False)).skipped
        (root / ".git/refs").mkdir()
        (root / ".git/refs/head").write_text("1")
        await index(bench, root, no_ignore=True)
        assert differences(data, root) == []
        await index(bench, root)
        assert shown(data, root) == OWN
        assert wrong(data, root) == []
        # A folder in one of them that is asked for by its path.
        await index(bench, root / "src/node_modules/x")
        inside = {"src/node_modules/x", "src/node_modules/x/index.js", "src/node_modules/x/node_modules"}
        assert shown(data, root) == OWN | inside
        await index(bench, root / ".git/config")
        assert shown(data, root) == OWN | inside | {".git/config"}
        assert wrong(data, root) == []


async def test_a_folder_of_tools_is_moved_and_comes_back_from_the_trash_whole(tmp_path: Path, root: Path) -> None:
    data = tmp_path / "data"
    async with files_service(data, root) as bench:
        await index(bench, root)
        await bench.call(MoveFiles(moves=pairs((root / "src/node_modules", root / "kept"))))
        opened = {"kept", "kept/x", "kept/x/index.js", "kept/x/node_modules"}
        assert shown(data, root) == OWN - {"src/node_modules"} | opened
        assert wrong(data, root) == []
        await bench.call(
            MoveFiles(moves=pairs((root / "kept", root / ".git/kept"), (root / "copy.js", root / ".git/c")))
        )
        assert shown(data, root) == OWN - {"src/node_modules", "copy.js"}
        await bench.call(MoveFiles(moves=pairs((root / ".git/c", root / "copy.js"))))
        assert shown(data, root) == OWN - {"src/node_modules"}
        assert wrong(data, root) == []
        await bench.call(DeleteFiles(paths=[str(root / ".git")], force=True))
        assert wrong(data, root) == []
        await bench.call(RestoreFiles(paths=[str(root / ".git")]))
        assert shown(data, root) == OWN - {"src/node_modules"}
        assert wrong(data, root) == []


async def test_changes_in_them_are_followed_in_the_sums(tmp_path: Path, root: Path) -> None:
    data = tmp_path / "data"
    async with files_and_watch(data, root) as bench:
        await bench.call(SourceCreate(name="live", type="live", path=str(root), debounce_ms=20))
        await until_empty(lambda: sorted(OWN ^ shown(data, root)))
        make_tree(root / "src/node_modules/made", random.Random(1), 60)
        (root / "src/lib/__pycache__").mkdir(parents=True)
        (root / "src/lib/__pycache__/a.pyc").write_bytes(b"c" * 9000)
        os.link(root / "src/app.js", root / "src/node_modules/app.js")
        await until_empty(lambda: wrong(data, root))
        (root / "src/node_modules/x").rename(root / "src/node_modules/z")
        (root / "src/node_modules/z/index.js").write_bytes(b"more" * 5000)
        (root / "src/app.js").write_bytes(b"")
        (root / ".git/config").unlink()
        (root / ".git/objects/ab").rename(root / ".git/objects/ef")
        await until_empty(lambda: wrong(data, root))
        assert shown(data, root) == OWN | {"src/lib", "src/lib/__pycache__"}


async def test_a_folder_in_them_that_is_followed_is_listed(tmp_path: Path, root: Path) -> None:
    data = tmp_path / "data"
    async with files_and_watch(data, root) as bench:
        await index(bench, root)
        git = str(root / ".git")
        # It is there before the source, and after the scan.
        (root / ".git/HEAD").write_text("ref")
        await bench.call(SourceCreate(name="live", type="live", path=git, watch_recursive=False, debounce_ms=20))
        inside = {"HEAD", "config", "objects", "objects/ab", "objects/ab/cd"}
        await until_empty(lambda: sorted((OWN | {f".git/{path}" for path in inside}) ^ shown(data, root)))
        assert wrong(data, root) == []


async def test_rows_of_an_older_index_stay_until_its_next_scan(tmp_path: Path, root: Path) -> None:
    data = tmp_path / "data"
    async with files_service(data, root) as bench:
        await index(bench, root, no_ignore=True)
    # As version 2 left it.
    with apsw.Connection(str(data / "files/files.db")) as db:
        db.execute(
            "DROP INDEX folder_whole; ALTER TABLE folder DROP COLUMN rows; ALTER TABLE job DROP COLUMN rows;"
            "ALTER TABLE job DROP COLUMN wholes; PRAGMA user_version = 2"
        ).fetchall()
    db.close()
    async with files_service(data, root) as bench:
        assert differences(data, root) == []
        await index(bench, root)
        assert shown(data, root) == OWN
        assert wrong(data, root) == []


async def test_an_interrupted_background_job_keeps_its_display_options(tmp_path: Path, root: Path) -> None:
    data = tmp_path / "data"

    async def ended(bench: Bench) -> None:
        while (await bench.call(ListJobs(active_only=True))).jobs:
            pass

    async with files_service(data, root) as bench:
        await bench.call(Index(root=str(root), no_ignore=True))
    async with files_service(data, root) as bench:
        await ended(bench)
        assert differences(data, root) == []
