"""The index equals the disk after each scan, whatever had changed: every entry, and every directory's sums."""

from __future__ import annotations

import os
import random
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import trio

from proto.errors import InvalidParams, LinckiaError, OperationError
from proto.validation import validate
from services.files.core import read_settings
from services.files.index import comparing, scan
from services.files.index.listing import open_folder
from services.files.operations.index import CancelJob, Index, IndexResult, Job, JobProgress, ListJobs
from services.files.operations.reading import Navigate
from services.files.paths import to_text
from tests.in_process import Bench
from tests.unit.files.rig import OnDisk, change_tree, differences, files_service, index, make_tree, stored, write


@pytest.mark.parametrize("seed", range(3))
async def test_every_sum_is_right_after_each_scan_of_a_tree_that_changes(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    root, data = tmp_path / "root", tmp_path / "data"
    make_tree(root, chance, 150)
    async with files_service(data, root) as bench:
        await index(bench, root)
        assert differences(data, root) == []
        for _ in range(6):
            change_tree(root, chance, 15)
            await index(bench, root)
            assert differences(data, root) == []


async def test_a_scan_of_a_part_corrects_every_directory_above_it(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    make_tree(root, random.Random(7), 60)
    (root / "a/b/c").mkdir(parents=True)
    async with files_service(data, root) as bench:
        await index(bench, root)
        (root / "a/b/c/new").write_bytes(b"n" * 5000)
        os.link(root / "a/b/c/new", root / "a/b/linked")
        (root / "a/b/c/deep/er").mkdir(parents=True)
        await index(bench, root / "a/b/c")
        before = stored(data)
        assert before[str(root)][1] == OnDisk(root).sums(str(root))[0] - 5000
        await index(bench, root / "a/b")
        assert [line for line in differences(data, root) if not line.startswith(f"{root}/a: ")] == []
        assert stored(data)[str(root)][1:5] == OnDisk(root).sums(str(root))


async def test_directory_scanned_after_a_part_of_it_takes_the_part_in(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    make_tree(root, random.Random(1), 30)
    (root / "x/y").mkdir(parents=True)
    make_tree(root / "x/y/z", random.Random(2), 30)
    async with files_service(data, root) as bench:
        await index(bench, root / "x/y/z")
        assert str(root) not in stored(data)
        assert differences(data, root / "x/y/z") == []
        await index(bench, root)
        assert differences(data, root) == []


async def test_new_directories_on_the_way_to_what_is_scanned_are_entries_too(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    make_tree(root, random.Random(3), 10)
    async with files_service(data, root) as bench:
        await index(bench, root)
        (root / "new/er").mkdir(parents=True)
        (root / "new/er/file").write_bytes(b"12345")
        result = await index(bench, root / "new/er/file")
        assert (result.files, result.directories, result.total_size) == (1, 0, 5)
        found = stored(data)
        assert found[f"{root}/new/er"][1:5] == OnDisk(root).sums(f"{root}/new/er")
        assert found[str(root)][1:5] == OnDisk(root).sums(str(root))


async def test_rescan_removes_what_vanished_below_its_root_alone(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    for name in ("a_b", "aXb", "a%b", "a_b/inside", "aXb/inside"):
        (root / name).mkdir(parents=True)
        (root / name / "file").write_text("x")
    async with files_service(data, root) as bench:
        await index(bench, root)
        for name in ("a_b/file", "aXb/file", "a_b/inside/file", "aXb/inside/file"):
            (root / name).unlink()
        await index(bench, root / "a_b")
        there = {path.removeprefix(f"{root}/") for path in stored(data)}
        assert "a_b/file" not in there
        assert "a_b/inside/file" not in there
        assert {"aXb/file", "aXb/inside/file", "a%b/file"} <= there


async def test_files_that_came_and_went_during_a_scan_are_not_indexed(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    make_tree(root, random.Random(9), 20)
    (root / "sub").mkdir()
    async with files_service(data, root) as bench:
        await index(bench, root)
        for name in ("sub/guest", "sub/folder"):
            guest = root / name
            guest.write_text("x") if name.endswith("guest") else guest.mkdir()
            await index(bench, guest)
            assert str(guest) in stored(data)
        # Now the directory is just as it was when it was listed, but for its own times.
        (root / "sub/guest").unlink()
        (root / "sub/folder").rmdir()
        await index(bench, root)
        assert differences(data, root) == []


async def test_result_counts_what_is_below(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    (root / "one/two").mkdir(parents=True)
    (root / "one/file").write_bytes(b"x" * 10)
    (root / "one/two/file").write_bytes(b"x" * 5)
    async with files_service(data, root) as bench:
        for _ in range(2):
            result = await index(bench, root)
            assert (result.root, result.status, result.skipped) == (str(root), "completed", False)
            assert (result.files, result.directories, result.total_size) == (2, 3, 15)
            assert result.duration_ms is not None


async def test_names_of_any_bytes_are_kept_without_loss(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    root.mkdir()
    names = [
        b"plain",
        b"\xff\xfe",
        b"caf\xe9",
        "café".encode(),
        "\U0010feff".encode(),
        b"new\nline",
        b"a'b\"c;--",
        b"\xc3",
    ]
    for name in names:
        write(os.fsencode(root) + b"/" + name, name)
    folder = os.fsencode(root) + b"/d\xe9"
    os.mkdir(folder)
    write(folder + b"/inside", b"12")
    async with files_service(data, root) as bench:
        await index(bench, root)
        assert differences(data, root) == []
        result = await bench.call(Index(root=to_text(os.fsdecode(folder)), async_=False, force=True))
        assert (result.files, result.total_size) == (1, 2)


async def test_links_are_listed_and_not_followed(tmp_path: Path) -> None:
    root, data, outside = tmp_path / "root", tmp_path / "data", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (root / "out").symlink_to(outside)
    (root / "loop").symlink_to(root)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(root / "socket"))
    os.mkfifo(root / "pipe")
    async with files_service(data, root) as bench:
        await index(bench, root)
        assert differences(data, root) == []
        assert not any("secret" in path for path in stored(data))
        with pytest.raises(InvalidParams, match="outside the roots"):
            await index(bench, root / "out")
        with pytest.raises(InvalidParams, match="outside the roots"):
            await index(bench, outside)
        with pytest.raises(InvalidParams, match="outside the roots"):
            await index(bench, Path("../relative"))
    server.close()


async def test_young_scan_is_not_repeated_unless_it_is_asked_for(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    make_tree(root, random.Random(5), 20)
    (root / "sub").mkdir()
    async with files_service(data, root) as bench:
        scanned = await index(bench, root, force=False)
        assert scanned.files
        for path in (root, root / "sub"):
            result = await index(bench, path, force=False)
            assert result.skipped
            assert result.skip_reason == (
                "Path was scanned 0 seconds ago (max age: 3600 seconds). Use force=true to re-index."
            )
            assert result.status == "completed"
            if path == root:
                assert counts(result) == counts(scanned)
        assert not (await index(bench, root, force=False, max_age=0)).skipped
        assert not (await index(bench, root, force=True)).skipped
        # What lies above was not scanned by that.
        asynchronous = await bench.call(Index(root=str(root)))
        assert asynchronous.skipped


def counts(result: IndexResult) -> tuple[int | None, ...]:
    return result.files, result.directories, result.total_size


async def test_a_skipped_scan_answers_with_the_counts_of_its_path(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    make_tree(root, random.Random(7), 40)
    (root / "folder/empty").mkdir(parents=True)
    (root / "folder/file").write_bytes(b"12345")
    (root / "folder/link").symlink_to("file")
    paths = [root, root / "folder", root / "folder/empty", root / "folder/file", root / "folder/link"]
    async with files_service(data, root) as bench:
        await index(bench, root)
        for path in paths:
            skipped = await index(bench, path, force=False)
            assert skipped.skipped
            assert counts(skipped) == counts(await index(bench, path, force=True))
        await index(bench, root, force=True)
        job = await bench.call(Index(root=str(root)))
        assert counts(job) == counts(await index(bench, root, force=True))


async def test_path_that_is_not_there_fails_and_leaves_the_index(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    (root / "sub").mkdir(parents=True)
    (root / "sub/file").write_text("x")
    async with files_service(data, root) as bench:
        await index(bench, root)
        with pytest.raises(OperationError, match="does not exist"):
            await index(bench, root / "nothing")
        (root / "sub/file").unlink()
        (root / "sub").rmdir()
        with pytest.raises(OperationError, match="does not exist"):
            await index(bench, root / "sub")
        assert differences(data, root)[0].startswith(str(root)) or differences(data, root) == []
        assert str(root / "sub") not in stored(data)
        answer = await bench.call(Index(root=str(root / "nothing"), force=True))
        assert answer.job_id is not None
        job = await ended(bench, answer.job_id)
        assert (job.status, job.error) == ("failed", f"{root}/nothing does not exist")


async def ended(bench: Bench, id_: int) -> Job:
    """The job once it has ended."""
    with trio.fail_after(20):
        while True:
            job = await bench.call(JobProgress(job_id=id_))
            if job.finished_at is not None:
                return job
            await trio.sleep(0.01)


async def test_job_can_be_followed_and_listed(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    make_tree(root, random.Random(5), 200)
    async with files_service(data, root) as bench:
        answer = await bench.call(Index(root=str(root)))
        assert answer.job_id is not None
        assert (answer.status, answer.status_url) == ("pending", f"synthesis://jobs/{answer.job_id}")
        job = await ended(bench, answer.job_id)
        assert (job.status, job.progress) == ("completed", 100)
        assert job == await bench.call(JobProgress(job_id=str(answer.job_id)))
        files = OnDisk(root).sums(str(root))[2]
        assert job.files == files
        listed = await bench.call(ListJobs())
        assert listed.jobs == [job]
        assert (await bench.call(ListJobs(active_only=True))).jobs == []
        assert (await bench.call(ListJobs(status="completed"))).total == 1
        assert (await bench.call(ListJobs(max_progress=99))).total == 0
        with pytest.raises(OperationError, match="cannot be cancelled: it is already completed"):
            await bench.call(CancelJob(job_id=answer.job_id))
        with pytest.raises(OperationError, match="no job 999"):
            await bench.call(JobProgress(job_id=999))


@pytest.mark.slow
async def test_cancelled_job_stops_and_leaves_right_sums(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    for number in range(400):
        (root / f"d{number}").mkdir(parents=True)
        for file in range(20):
            (root / f"d{number}/f{file}").write_bytes(b"abc")
    async with files_service(data, root) as bench:
        answer = await bench.call(Index(root=str(root)))
        assert answer.job_id is not None
        cancelled = await bench.call(CancelJob(job_id=str(answer.job_id)))
        assert cancelled.status == "cancelled"
        job = await bench.call(JobProgress(job_id=answer.job_id))
        assert (job.status, job.progress < 100) == ("cancelled", True)
        found = stored(data)
        for path, row in found.items():
            inside = [other for other in found if other.startswith(path + "/") and "/f" in other]
            assert row[1] == 3 * len(inside) or "/f" in path
        assert not (await index(bench, root, force=False)).skipped
        assert differences(data, root) == []


async def test_page_read_while_its_directory_is_scanned_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    make_tree(root, random.Random(3), 20)
    go_on = threading.Event()

    def held(path: str, *rest: Any) -> Any:
        assert go_on.wait(60)
        return open_folder(path, *rest)

    async with files_service(data, root) as bench:
        await index(bench, root)
        assert (await bench.call(Navigate(path=str(root)))).scanning is None
        monkeypatch.setattr(comparing, "open_folder", held)
        job = (await bench.call(Index(root=str(root), force=True))).job_id
        assert job is not None
        assert (await bench.call(Navigate(path=str(root)))).scanning == job
        go_on.set()
        await ended(bench, job)


async def test_two_scans_of_one_path_are_one_job(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    make_tree(root, random.Random(5), 300)
    async with files_service(data, root) as bench:
        answers: list[int | None] = []

        async def start() -> None:
            answers.append((await bench.call(Index(root=str(root), force=True))).job_id)

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(start)
        assert answers[0] is not None
        assert set(answers) == {answers[0]}
        await ended(bench, answers[0])
        assert differences(data, root) == []


async def test_scans_of_a_path_and_of_what_lies_in_it_leave_right_sums(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    make_tree(root, random.Random(5), 300)
    inside = [path for path in root.iterdir() if path.is_dir() and not path.is_symlink()][:3]
    async with files_service(data, root) as bench, trio.open_nursery() as nursery:
        for path in (root, *inside, root):
            nursery.start_soon(index, bench, path)
    assert differences(data, root) == []


async def test_ignored_names_are_not_in_the_index(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    for name in ("node_modules/deep", "src/node_modules", "src/build"):
        (root / name).mkdir(parents=True)
    for name in ("src/a.tmp", "src/a.py", "src/build/x", "node_modules/deep/y"):
        (root / name).write_text("x")
    async with files_service(data, root) as bench:
        await index(bench, root)
        assert f"{root}/src/a.tmp" in stored(data)
    async with files_service(data, root, ignore=["node_modules", "*.tmp", "/src/build/"]) as bench:
        await index(bench, root)
        there = {path.removeprefix(f"{root}/") for path in stored(data)} - {str(root)}
        assert there == {"src", "src/a.py"}
    with pytest.raises(ValueError, match="unknown field `ignor`"):
        read_settings({"ignor": []})


async def test_an_unreadable_directory_is_reported_and_keeps_its_known_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    (root / "shut").mkdir(parents=True)
    (root / "shut/file").write_text("x")
    async with files_service(data, root) as bench:
        await index(bench, root)
        true_open = open_folder

        def refuse(name: str, above: int | None) -> int:
            if os.path.basename(name) == "shut":
                raise PermissionError(13, "Permission denied")
            return true_open(name, above)

        # The tests may run as a user to whom nothing is shut.
        for module in (comparing, scan):
            monkeypatch.setattr(module, "open_folder", refuse)
        result = await index(bench, root)
        assert result.problem_count == 1
        assert result.problems == [f"{root}/shut: cannot be read: Permission denied"]
        assert f"{root}/shut/file" in stored(data)
        monkeypatch.undo()
        assert (await index(bench, root)).problem_count == 0
        assert differences(data, root) == []


async def test_bad_parameters_are_named(tmp_path: Path) -> None:
    for arguments, field in (
        ({"root": "/x", "maxAge": -1}, "maxAge"),
        ({"root": ""}, "path"),
        ({}, "path"),
        ({"root": "/x", "recursive": True}, "recursive"),
    ):
        with pytest.raises(LinckiaError) as caught:
            validate(Index, arguments)
        assert caught.value.failure.field == field
