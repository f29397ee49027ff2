"""`folders_create`: folders with those above them, existing ones unchanged, the index in step."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel

from services.files.changes import disk
from services.files.changes.additions import Additions
from services.files.main import open_service
from services.files.operations.changes import CreateFolders, FolderOutcome
from services.files.operations.index import ListJobs
from services.runtime.roots import Roots
from services.runtime.storage import DiskFull
from tests.in_process import services_in_process
from tests.unit.files.changing import small_tree
from tests.unit.files.rig import OnDisk, differences, files_service, index

REPOSITORY = Path(__file__).parents[3]


def brief(results: list[FolderOutcome]) -> list[tuple[str, bool]]:
    return [(each.status, each.existed) for each in results]


async def test_folders_are_made_with_those_above_them_and_indexed(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    small_tree(root)
    names = ("new/er/one", "new/er/two", "new", "a", "a/made", "link/inside", "new/er/one")
    given = [str(root / name) for name in names]
    async with files_service(data, root) as bench:
        await index(bench, root)
        dry = await bench.call(CreateFolders(paths=given, dry_run=True))
        expected = [("success", each in (2, 3, 6)) for each in range(7)]
        assert brief(dry.results) == [("preview", existed) for _, existed in expected]
        assert sorted(os.listdir(root)) == ["a", "b", "link"]
        done = await bench.call(CreateFolders(paths=given))
        assert brief(done.results) == expected
        assert (done.succeeded, done.failed) == (7, 0)
        assert differences(data, root) == []
        again = await bench.call(CreateFolders(paths=given))
        assert brief(again.results) == [("success", True)] * 7
    assert all((root / name).is_dir() for name in names)


async def test_what_cannot_be_made_is_said_for_each_folder_and_changes_nothing(tmp_path: Path) -> None:
    root, kept = tmp_path / "root", tmp_path / "kept"
    small_tree(root)
    kept.mkdir()
    (root / "dangling").symlink_to("nowhere")
    roots = Roots([root, kept], read_only=[str(kept)], denied=[str(root / "b/secret")])
    cases = {
        str(root / "a/one"): "`paths`: .* exists and is not a directory",
        str(root / "a/one/x/y"): "`paths`: .*one' is not a directory",
        str(root / "dangling"): "exists and is not a directory",
        str(kept / "x"): "read-only",
        str(root / "b/secret/x"): "may not be reached",
        str(tmp_path / "out"): "outside the roots",
        "relative": "below none of them",
    }
    before = OnDisk(tmp_path).entries.keys()
    async with services_in_process({"files": open_service}, tmp_path / "data", roots=roots) as bench:
        for dry_run in (True, False):
            done = await bench.call(CreateFolders(paths=[*cases, str(root), str(kept)], dry_run=dry_run))
            for result, pattern in zip(done.results, cases.values(), strict=False):
                assert result.status == "error"
                with pytest.raises(AssertionError, match=pattern):
                    raise AssertionError(result.error)
            assert [each.existed for each in done.results[-2:]] == [True, True]
    now = {path for path in OnDisk(tmp_path).entries if not path.startswith(str(tmp_path / "data"))}
    assert now == set(before)


async def test_made_folders_are_indexed_later_if_the_index_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    small_tree(root)

    def full(*_: object) -> None:
        raise DiskFull("no room")

    async with files_service(data, root) as bench:
        await index(bench, root)
        with monkeypatch.context() as patch:
            patch.setattr(Additions, "_followed", full)
            done = await bench.call(CreateFolders(paths=[str(root / "x/y")]))
        assert (done.succeeded, (root / "x/y").is_dir()) == (1, True)
        await bench.call(CreateFolders(paths=[str(root / "z")]))
        assert differences(data, root) == []


@pytest.mark.parametrize("step", ["above", "made"])
async def test_folders_that_a_crash_cut_off_are_indexed_at_the_next_start(tmp_path: Path, step: str) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    small_tree(root)
    async with files_service(data, root) as bench:
        await index(bench, root)
    command = [sys.executable, "-m", __name__, str(data), str(root), step]
    died = await trio.run_process(command, cwd=REPOSITORY, check=False)
    assert died.returncode == -signal.SIGKILL
    assert ((root / "x").is_dir(), (root / "x/y").is_dir()) == (True, step == "made")
    async with files_service(data, root) as bench:
        done = await bench.call(CreateFolders(paths=[str(root / "x/y")]))
        assert brief(done.results) == [("success", step == "made")]
        await bench.call(CreateFolders(paths=[str(root / "z")]))
        with trio.fail_after(30):
            while any(job.finished_at is None for job in (await bench.call(ListJobs())).jobs):
                await trio.lowlevel.checkpoint()
        assert differences(data, root) == []


async def _die(data: Path, root: Path, step: str) -> None:
    """Make a folder, and be killed at a step of it."""

    def killed(*_: object, **__: object) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    if step == "above":
        disk.sync = killed
    else:
        Additions._followed = killed  # type: ignore[method-assign]  # as if it were killed there
    async with files_service(data, root) as bench:
        await bench.call(CreateFolders(paths=[str(root / "x/y")]))


if __name__ == "__main__":
    trio.run(_die, Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
