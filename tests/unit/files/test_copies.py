"""`files_copy`: whole copies or none, nothing overwritten, the index in step."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel

from proto.errors import OperationError
from services.files.changes import additions, copying
from services.files.changes.additions import Additions
from services.files.index.listing import look
from services.files.main import open_service
from services.files.operations.changes import CopyFiles, CreateFolders, Duplicate
from services.files.operations.index import ListJobs
from services.runtime.roots import Roots
from services.runtime.storage import DiskFull
from tests.in_process import services_in_process
from tests.unit.files.changing import members, put_into_set, small_tree, statuses
from tests.unit.files.rig import OnDisk, differences, files_service, index

REPOSITORY = Path(__file__).parents[3]


def copies(*given: tuple[Path | str, Path | str]) -> list[Duplicate]:
    return [Duplicate(from_=str(source), to=str(target)) for source, target in given]


async def test_copies_have_the_content_modes_and_times_of_the_originals(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    small_tree(root)
    os.chmod(root / "a/inner/two", 0o640)
    os.utime(root / "a/inner/two", ns=(5_000_000_000, 7_000_000_007))
    os.link(root / "a/one", root / "a/inner/one too")
    async with files_service(data, root) as bench:
        await index(bench, root)
        put_into_set(data, "mine", root / "a/inner/two")
        done = await bench.call(
            CopyFiles(
                copies=copies((root / "a", root / "b/a"), (root / "b/three", root / "3"), (root / "link", root / "l2"))
            )
        )
        assert (statuses(done.results), done.succeeded) == (["success"] * 3, 3)
        assert differences(data, root) == []
        assert await members(bench, "mine") == [str(root / "a/inner/two")]
    status = os.stat(root / "b/a/inner/two")
    assert (status.st_mode & 0o777, status.st_mtime_ns, status.st_size) == (0o640, 7_000_000_007, 70)
    assert os.stat(root / "b/a/one").st_ino == os.stat(root / "b/a/inner/one too").st_ino
    assert os.stat(root / "b/a/one").st_ino != os.stat(root / "a/one").st_ino
    assert (root / "3").read_bytes() == b"3" * 9
    assert os.readlink(root / "l2") == "a"


async def test_each_copy_has_its_own_status_and_nothing_is_overwritten(tmp_path: Path) -> None:
    root, data, outside = tmp_path / "root", tmp_path / "data", tmp_path / "outside"
    small_tree(root)
    outside.mkdir()
    async with files_service(data, root) as bench:
        await index(bench, root)
        given = copies(
            (root / "a/one", root / "b/three"),
            (root / "a/one", root / "a/one"),
            (root / "nothing", root / "x"),
            (root / "a", root / "a/inner/a"),
            (root / "a/one", root / "new/one"),
            (root / "a/one", outside / "one"),
            (root, root / "self"),
            ("relative", root / "y"),
            (root / "a/one", root / "b/one"),
            (root / "b/one", root / "b/two"),
            (root / "a/one", root / "b/one"),
        )
        expected = ["error"] * 8 + ["success"] * 2 + ["error"]
        reasons = [
            "`to`: .*already exists", "already exists", "`from`: .*does not exist", "is inside", "does not exist",
            "outside the roots", "is a root", "does not exist", None, None, "already exists",
        ]  # fmt: skip
        before = OnDisk(root).entries
        dry = await bench.call(CopyFiles(copies=given, dry_run=True))
        assert OnDisk(root).entries.keys() == before.keys()
        assert statuses(dry.results) == [status.replace("success", "preview") for status in expected]
        done = await bench.call(CopyFiles(copies=given))
        assert statuses(done.results) == expected
        for results in (dry.results, done.results):
            for result, reason in zip(results, reasons, strict=True):
                _explained(result.error, reason)
        assert (root / "b/three").read_bytes() == b"3" * 9
        assert differences(data, root) == []


def _explained(error: str | None, reason: str | None) -> None:
    assert error is None if reason is None else error is not None and re.search(reason, error), error


async def test_a_dry_run_knows_that_a_copy_leaves_its_source(tmp_path: Path) -> None:
    root = tmp_path / "root"
    small_tree(root)
    async with files_service(tmp_path / "data", root) as bench:
        given = copies((root / "a", root / "c"), (root / "a", root / "d"), (root / "c/inner", root / "b/inner"))
        dry = await bench.call(CopyFiles(copies=given, dry_run=True))
        assert statuses(dry.results) == ["preview"] * 3, dry.results


async def test_directories_made_for_a_copy_are_indexed(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    small_tree(root)
    async with files_service(data, root) as bench:
        await index(bench, root)
        given = copies(
            (root / "a", root / "new/er/a"), (root / "nothing", root / "x"), (root / "a/one", root / "other/a"),
            (root / "a/inner", root / "other/a"), (root / "b", root / "other/b"),
        )  # fmt: skip
        done = await bench.call(CopyFiles(copies=given, make_directories=True))
        assert statuses(done.results) == ["success", "error", "success", "error", "success"]
        assert differences(data, root) == []


async def test_a_read_only_root_can_be_copied_from_and_denied_paths_cannot(tmp_path: Path) -> None:
    root, kept = tmp_path / "root", tmp_path / "kept"
    small_tree(root)
    small_tree(kept)
    roots = Roots([root, kept], read_only=[str(kept)], denied=[str(root / "a/inner")])
    async with services_in_process({"files": open_service}, tmp_path / "data", roots=roots) as bench:
        done = await bench.call(
            CopyFiles(
                copies=copies(
                    (kept / "a", root / "from kept"), (root / "b", kept / "b2"), (root / "a", root / "with denied"),
                    (root / "a/inner/two", root / "two"), (root / "b/three", root / "a/inner/three"),
                )
            )
        )  # fmt: skip
    assert statuses(done.results) == ["success"] + ["error"] * 4
    assert "read-only" in str(done.results[1].error)
    assert all("may not be reached" in str(each.error) for each in done.results[2:])
    assert sorted(os.listdir(root)) == ["a", "b", "from kept", "link"]


async def test_a_copy_that_does_not_fit_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    small_tree(root)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with files_service(data, root) as bench:
        await index(bench, root)
        with monkeypatch.context() as patch:
            patch.setattr(os, "copy_file_range", full)
            patch.setattr(os, "write", full)
            done = await bench.call(CopyFiles(copies=copies((root / "a", root / "c"))))
        assert "No space left" in str(done.results[0].error)
        assert sorted(os.listdir(root)) == ["a", "b", "link"]
        assert differences(data, root) == []


async def test_a_copy_that_the_index_has_no_room_for_is_not_made(
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
            with pytest.raises(OperationError, match="no room"):
                await bench.call(CopyFiles(copies=copies((root / "a", root / "c"), (root / "a/one", root / "1"))))
        assert sorted(os.listdir(root)) == ["a", "b", "link"]
        done = await bench.call(CopyFiles(copies=copies((root / "a/one", root / "1"))))
        assert done.succeeded == 1
        assert differences(data, root) == []


async def test_files_are_copied_without_help_of_the_system_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    small_tree(root)
    (root / "large").write_bytes(os.urandom(copying.CHUNK * 2 + 7))

    def missing(*_: object) -> int:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "copy_file_range", missing)
    async with files_service(tmp_path / "data", root) as bench:
        done = await bench.call(CopyFiles(copies=copies((root / "large", root / "copy"))))
    assert done.succeeded == 1
    assert (root / "copy").read_bytes() == (root / "large").read_bytes()


@pytest.mark.parametrize("step", ["begun", "complete", "named"])
async def test_a_copy_that_a_crash_cut_off_is_whole_or_absent(tmp_path: Path, step: str) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    small_tree(root)
    async with files_service(data, root) as bench:
        await index(bench, root)
    command = [sys.executable, "-m", __name__, str(data), str(root), step]
    died = await trio.run_process(command, cwd=REPOSITORY, check=False)
    assert died.returncode == -signal.SIGKILL
    assert any(name.startswith(copying.PREFIX) for name in os.listdir(root)) == (step != "named")
    async with files_service(data, root) as bench:
        names = sorted(os.listdir(root))
        assert names == (["a", "b", "copy", "link"] if step == "named" else ["a", "b", "link"])
        with trio.fail_after(30):
            while any(job.finished_at is None for job in (await bench.call(ListJobs())).jobs):
                await trio.lowlevel.checkpoint()
        assert differences(data, root) == []
        done = await bench.call(CopyFiles(copies=copies((root / "a", root / "copy"))))
        assert statuses(done.results) == ["error" if step == "named" else "success"]
    assert OnDisk(root / "copy").sums(str(root / "copy"))[0] == OnDisk(root / "a").sums(str(root / "a"))[0]


async def _die(data: Path, root: Path, step: str) -> None:
    """Copy a folder, and be killed at a step of it."""

    def killed(*_: object, **__: object) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    match step:
        case "begun":
            copying._keep = killed
        case "complete":
            additions.rename = killed  # type: ignore[attr-defined]  # as if it were killed there
        case _:
            Additions._followed = killed  # type: ignore[method-assign]  # the same
    async with files_service(data, root) as bench:
        await bench.call(CopyFiles(copies=copies((root / "a", root / "copy"))))


if __name__ == "__main__":
    trio.run(_die, Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])


async def test_a_name_that_is_too_long_is_refused_and_leaves_nothing_to_recover(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    root.mkdir()
    (root / "a.txt").write_text("a")
    long = str(root / ("n" * 300))
    async with files_service(data, root) as bench:
        copied = await bench.call(CopyFiles(copies=copies((root / "a.txt", long))))
        assert "more than 255 bytes" in (copied.results[0].error or "")
        made = await bench.call(CreateFolders(paths=[long]))
        assert "more than 255 bytes" in (made.results[0].error or "")
        again = await bench.call(CopyFiles(copies=copies((root / "a.txt", root / "b.txt"))))
        assert again.results[0].status == "success"
    async with files_service(data, root) as bench:
        assert (await bench.call(CreateFolders(paths=[str(root / "c")]))).results[0].error is None


async def test_a_copy_into_itself_makes_no_directories(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    async with files_service(tmp_path / "data", root) as bench:
        given = copies((root / "a", root / "a/deep/er"))
        done = await bench.call(CopyFiles(copies=given, make_directories=True))
        assert "itself" in (done.results[0].error or "")
    assert list((root / "a").iterdir()) == []


def test_an_entry_whose_name_is_too_long_does_not_exist(tmp_path: Path) -> None:
    assert look(f"{tmp_path}/{'n' * 300}") is None
