"""Killed in the middle of a scan: the index is consistent, and the job resumes at the next start."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import apsw
import pytest
import trio
import trio.lowlevel

from services.files.index import scan
from services.files.operations.index import Index, JobProgress, ListJobs
from services.files.operations.reading import DbDiagnose
from tests.unit.files.rig import differences, files_service, make_tree, stored

REPOSITORY = Path(__file__).parents[3]
ENTRIES = 2500


async def _serve(data: Path, root: Path) -> None:
    scan.BATCH_ENTRIES = 50
    async with files_service(data, root) as bench:
        job = await bench.call(Index(root=str(root), force=True))
        assert job.job_id is not None
        while True:
            now = await bench.call(JobProgress(job_id=job.job_id))
            # Who waits to kill this process in the middle of it reads along.
            print(now.files + now.directories, flush=True)
            await trio.lowlevel.checkpoint()


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("part", [0.05, 0.6])
async def test_a_killed_scan_leaves_a_consistent_index_and_is_resumed(tmp_path: Path, part: float) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    data.mkdir()
    make_tree(root, random.Random(11), ENTRIES)
    await trio.to_thread.run_sync(_kill_when, data, root, int(ENTRIES * part))
    database = apsw.Connection(str(data / "files/files.db"))
    assert database.execute("PRAGMA integrity_check").get == "ok"
    database.close()
    before = set(stored(data))
    assert before
    async with files_service(data, root) as bench:
        with trio.fail_after(30):
            while (job := (await bench.call(ListJobs())).jobs[0]).finished_at is None:
                assert (await bench.call(DbDiagnose())).wrong_sums == 0
        assert (job.status, job.attempt, job.error) == ("completed", 2, None)
        assert differences(data, root) == []


@pytest.mark.slow
async def test_job_whose_process_dies_twice_fails_with_that_cause(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    data.mkdir()
    make_tree(root, random.Random(12), ENTRIES)
    await trio.to_thread.run_sync(_kill_when, data, root, 100)
    # The second process resumes the first one's job; it is killed while it works on it.
    database = apsw.Connection(str(data / "files/files.db"))
    database.execute("UPDATE job SET attempt = 2, status = 'running'")
    database.close()
    async with files_service(data, root) as bench:
        (job,) = (await bench.call(ListJobs())).jobs
        assert job.status == "failed"
        assert job.error == "the process that ran it died, and again when the job was run a second time"
        assert (await bench.call(DbDiagnose())).wrong_sums == 0


def _kill_when(data: Path, root: Path, entries: int) -> None:
    """Run the service over a folder and kill it once so many entries were found."""
    command = [sys.executable, "-m", __name__, str(data), str(root)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY, text=True)
    assert child.stdout is not None
    watchdog = threading.Timer(30, child.kill)
    watchdog.start()
    with child.stdout:
        found = -1
        while found < entries and (line := child.stdout.readline()):
            found = int(line)
        assert found >= entries, "the child died by itself"
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    watchdog.cancel()


if __name__ == "__main__":
    trio.run(_serve, Path(sys.argv[1]), Path(sys.argv[2]))
