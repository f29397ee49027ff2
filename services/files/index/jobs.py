"""The jobs of `index`: each is a row that records its progress, and a scan in a worker thread.

A job is durable before anyone is notified of it. There is never more than one job per path: a second caller joins it.
Jobs whose paths are nested wait for each other; all others run concurrently. A job whose process died is run once more
at the next start, and fails if its process dies again.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Awaitable, Callable
from functools import partial

import apsw
import msgspec
import trio

from proto.errors import OperationError, Unavailable
from services.files import paths
from services.files.index.comparing import CompareClient
from services.files.index.job import JobOutcome, RunningJob, every_job, find_job
from services.files.index.listing import look, without_files
from services.files.index.scan import Cancelled, Counts, Missing, Scan
from services.files.index.tree import (
    Totals,
    Tree,
    below,
    record_sizes,
    rows_of_root,
    skip_reason,
    totals,
    wholes,
)
from services.files.operations.index import Job
from services.files.store.database import steadily
from services.files.store.sql import Row, fetch_all, fetch_value
from services.runtime.handlers import Environment
from services.runtime.storage import DiskFull

SCANS_AT_ONCE = 4
MAX_ATTEMPTS = 2
KEPT_JOBS = 10_000
"""Number of ended jobs that are kept; older ones are deleted."""

ACTIVE = ("pending", "running")

_log = logging.getLogger("linckia.files")


class Jobs:
    """All jobs. Call `start` and `wait` on trio's thread only."""

    def __init__(
        self, env: Environment, tree: Tree, nursery: trio.Nursery, compare_client: CompareClient,
        on_change: Callable[[int, str, str], None],
    ) -> None:  # fmt: skip
        """Create the runner of index jobs.

        Args:
            compare_client: examines some of the directories of a rescan.
            on_change: called with the id, status and root of each job whose status changed.
        """
        self._env = env
        self._tree = tree
        self._database = tree.database
        self._nursery = nursery
        self._compare_client = compare_client
        self._on_change = on_change
        self._running: dict[int, RunningJob] = {}
        self._recorded: dict[str, int] = {}
        """By root, the invalidation mark at which the sizes of its directories were last recorded."""
        self._stopping = False
        self._creating = trio.Lock()
        self._threads = trio.CapacityLimiter(SCANS_AT_ONCE)

    async def resume(self) -> None:
        """Resume or fail the jobs of a process that died, and start those that a rebuilt index needs."""
        running = tuple(self._running)
        left = f"status IN ('pending', 'running') AND id NOT IN ({','.join('?' * len(running))})"

        def take_up(db: apsw.Connection) -> list[Row]:
            db.execute(
                "UPDATE job SET status='failed', finished=?, error='the process that ran it died' "
                "|| CASE attempt WHEN 1 THEN '' ELSE ', and again when the job was run a second time' END"
                f" WHERE {left} AND (attempt >= ? OR NOT background)",
                (time.time_ns(), *running, MAX_ATTEMPTS),
            )
            db.execute(f"UPDATE job SET attempt = attempt + 1, status = 'pending' WHERE {left}", running)
            return fetch_all(db, f"SELECT id, root, background, force, attempt, rows FROM job WHERE {left}", running)

        for id_, root, background, force, attempt, rows in await self._database.write(take_up):
            self._begin(
                RunningJob(
                    id=id_, root=root, background=bool(background), force=bool(force), max_age_s=0, rows=rows,
                    attempt=attempt,
                )
            )  # fmt: skip

    def _begin(self, job: RunningJob) -> None:
        self._running[job.id] = job
        self._nursery.start_soon(self._run, job)

    def interrupt(self) -> None:
        """Stop running scans after the index was recreated: their view of it is no longer valid."""
        for job in self._running.values():
            if job.scan is not None:
                job.scan.cancel()

    async def start(
        self, root: str, *, background: bool, force: bool = True, max_age_s: float = 0, rows: int | None = None
    ) -> RunningJob:
        """Return the job that scans a path: a running one, or else a new one."""

        def create(db: apsw.Connection) -> int:
            db.execute(
                "INSERT INTO job(root, status, background, force, created, rows) VALUES(?, 'pending', ?, ?, ?, ?)",
                (root, background, force, time.time_ns(), rows),
            )
            id_ = db.last_insert_rowid()
            db.execute("DELETE FROM job WHERE id <= ? AND status NOT IN ('pending', 'running')", (id_ - KEPT_JOBS,))
            return id_

        # A job cannot be joined until its id is known.
        async with self._creating:
            for job in self._running.values():
                if job.root == root and rows in (None, job.rows) and not (job.cancelled or job.looked):
                    job.background |= background
                    return job
            with trio.CancelScope(shield=True):
                id_ = await self._database.write(create)
            job = RunningJob(id=id_, root=root, background=background, force=force, max_age_s=max_age_s, rows=rows)
            self._begin(job)
        self._on_change(id_, "pending", root)
        return job

    async def wait(self, job: RunningJob, on_progress: Callable[[Counts], None] = lambda counts: None) -> None:
        """Wait until a job has ended. If the last caller waiting for it is cancelled, the job is cancelled too,
        unless it runs in the background. Raises DiskFull if a job that is not in the background has no room for its
        results."""
        job.waiting += 1
        try:
            while not job.ended.is_set():
                with trio.move_on_after(0.25):
                    await job.ended.wait()
                if job.counts is not None:
                    on_progress(job.counts)
        finally:
            job.waiting -= 1
            if not job.ended.is_set() and not job.waiting and not job.background:
                job.cancel()
        if job.failure is not None:
            raise job.failure

    async def scan(self, path: str, rows: int | None = None) -> RunningJob:
        """Scan a path and wait, like `wait`. Returns the ended job."""
        job = await self.start(path, background=False, rows=rows)
        await self.wait(job)
        return job

    async def rescan(self, path: str, *, must_exist: bool = False) -> None:
        """Scan a real path below the roots with a job that begins after this call, since a running one may have missed
        recent changes. Cancelling this call cancels the job.

        Raises:
            OperationError: the scan did not complete; with `must_exist`, also if nothing exists at the path.
            DiskFull: see `wait`.
        """
        newest: int = await self._database.read(lambda db: fetch_value(db, "SELECT max(id) FROM job")) or 0
        rows = rows_of_root(path)
        job = await self.scan(path, rows)
        while job.id <= newest:
            job = await self.scan(path, rows)
        ended = await self.get(job.id)
        if ended.status == "completed":
            return
        if not must_exist and await trio.to_thread.run_sync(look, path) is None:
            return
        raise OperationError(f"could not scan {paths.shown(path)}: {ended.error or ended.status}")

    async def stop(self) -> None:
        """Stop all scans in an orderly shutdown; background jobs resume at the next start."""
        self._stopping = True
        for job in list(self._running.values()):
            job.cancel()
        await self.settled()

    async def settled(self) -> None:
        """Wait until all current jobs have ended."""
        for job in list(self._running.values()):
            await job.ended.wait()

    def find(self, id_: int) -> RunningJob | None:
        """Return a job that is pending or running in this process."""
        return self._running.get(id_)

    def scanning(self, path: str) -> RunningJob | None:
        """Return a job in this process whose root is `path`, above it, or below it."""
        return next((job for job in self._running.values() if paths.overlap(job.root, path)), None)

    async def cancel(self, id_: int) -> None:
        """Stop a job and wait until it has stopped. Raises OperationError if it has already ended, or does not
        exist."""
        job = self._running.get(id_)
        if job is not None:
            job.cancel()
            await job.ended.wait()
        status = (await self.get(id_)).status
        if job is None or status != "cancelled":
            raise OperationError(f"job {id_} cannot be cancelled: it is already {status}")

    # Queries

    async def get(self, id_: int) -> Job:
        """Return a job as it is now. Raises OperationError if it does not exist."""
        found = await self._database.read(lambda db: find_job(db, id_, self._counts))
        if found is None:
            raise OperationError(f"no job {id_}; jobs_list lists them")
        return found

    async def list(
        self, statuses: tuple[str, ...], least: float | None, most: float | None, limit: int
    ) -> tuple[list[Job], int]:
        """Return jobs with these statuses (all if empty), newest first, and the number of matches."""
        found = [
            job
            for job in await self._database.read(lambda db: every_job(db, self._counts))
            if (not statuses or job.status in statuses)
            and (least is None or job.progress >= least)
            and (most is None or job.progress <= most)
        ]
        return found[:limit], len(found)

    def _counts(self, id_: int) -> Counts | None:
        job = self._running.get(id_)
        return None if job is None else job.counts

    # Running jobs

    async def _run(self, job: RunningJob) -> None:
        try:
            try:
                outcome = await self._outcome(job)
            except DiskFull as error:
                # The waiting call gets the error; a later one may find room.
                job.failure = error
                outcome = JobOutcome("failed", str(error))
                job.ended.set()
            job.looked = True
            put_off = self._stopping and outcome.status == "cancelled" and job.background
            await self._store(job, partial(self._put_off, job) if put_off else partial(self._end, job, outcome))
        finally:
            self._running.pop(job.id, None)
            job.ended.set()

    async def _outcome(self, job: RunningJob) -> JobOutcome:
        """Run a job. Raises DiskFull for a job that calls wait for; a background job pauses until there is room."""
        await self._wait_for_others(job)
        if job.cancelled:
            return JobOutcome("cancelled")
        if not job.force and job.max_age_s and job.attempt == 1:
            # A job that this one waited for may have scanned it.
            age, now = job.max_age_s, time.time_ns()
            skipped = await self._database.read(lambda db: skip_reason(db, job.root, age, now, job.rows))
            if skipped:
                return JobOutcome("completed", skipped=skipped)
        while True:
            try:
                return await self._scan(job)
            except DiskFull:
                if not job.background:
                    raise
            # Wait until there is room for at least this write.
            await steadily(self._env, "indexing", partial(self._begun, job))

    async def _begun(self, job: RunningJob) -> None:
        """Store that a job is running. Raises DiskFull."""
        if not job.cancelled:
            await self._database.write(
                lambda db: db.execute("UPDATE job SET status='running', started=? WHERE id=?", (time.time_ns(), job.id))
            )

    async def _store(self, job: RunningJob, write: Callable[[], Awaitable[None]]) -> None:
        """Store a job's outcome, once there is room for it; at shutdown it is left to the next start."""
        try:
            await write()
        except DiskFull as error:
            if not job.background:
                job.failure = error
                job.ended.set()
            if not self._stopping:
                await steadily(self._env, "indexing", write)

    async def _wait_for_others(self, job: RunningJob) -> None:
        """Wait until no earlier job involves the same entries."""
        while not job.cancelled:
            others = [
                other for other in self._running.values() if other.id < job.id and paths.overlap(other.root, job.root)
            ]
            if not others:
                return
            with trio.move_on_after(0.1):
                await others[0].ended.wait()

    async def _scan(self, job: RunningJob) -> JobOutcome:
        def on_batch(db: apsw.Connection, counts: Counts) -> None:
            db.execute(
                "UPDATE job SET progress = max(progress, ?), files=?, directories=?, size=?, problems=? WHERE id=?",
                (counts.progress, counts.files, counts.directories, counts.size, counts.problem_count, job.id),
            )

        await self._begun(job)
        self._on_change(job.id, "running", job.root)
        empty = without_files(job.root)
        job.scan = Scan(
            self._tree, job.root, skipped_devices=empty, on_batch=on_batch,
            ask=lambda folders: self._compare_client.ask(folders, empty), rows=job.rows,
        )  # fmt: skip
        if job.cancelled:
            job.scan.cancel()
        try:
            await trio.to_thread.run_sync(job.scan.run, limiter=self._threads)
        except Cancelled:
            return JobOutcome("cancelled")
        except (Missing, Unavailable) as error:
            return JobOutcome("failed", str(error))
        except OSError as error:
            return JobOutcome("failed", f"cannot scan {job.root}: {os.strerror(error.errno or 0)}")
        except apsw.Error as error:
            _log.exception("job %d: cannot write the index", job.id)
            return JobOutcome("failed", f"cannot write the index: {error}")
        return JobOutcome("completed")

    async def _put_off(self, job: RunningJob) -> None:
        """Leave the job to the next start, without counting an attempt."""
        with trio.CancelScope(shield=True):
            await self._database.write(
                lambda db: db.execute("UPDATE job SET status='pending', attempt=attempt-1 WHERE id=?", (job.id,))
            )

    async def _end(self, job: RunningJob, outcome: JobOutcome) -> None:
        status, error, skipped = outcome
        scanned = status == "completed" and not skipped
        now = time.time_ns()
        counts = job.counts or Counts()
        mark = self._tree.invalidations.mark

        def finish(db: apsw.Connection) -> None:
            found = totals(db, job.root) if skipped else Totals(counts.files, counts.directories, counts.size)
            db.execute(
                "UPDATE job SET status=?, finished=?, started=coalesce(started, ?), progress=max(progress, ?), files=?,"
                " directories=?, size=?, problems=?, problem=?, skipped=?, error=? WHERE id=?",
                (
                    status, now, now, 100.0 if status == "completed" else counts.progress, found.files,
                    found.directories, found.size, counts.problem_count, "\n".join(counts.problems) or None, skipped,
                    error, job.id,
                ),
            )  # fmt: skip
            if scanned:
                collapsed, _ = wholes(db, job.root)
                db.execute("UPDATE job SET wholes = ? WHERE id = ?", (msgspec.json.encode(collapsed).decode(), job.id))
                # Older scans below it are superseded.
                db.execute("DELETE FROM scan WHERE root >= ? AND root < ?", below(paths.as_folder(job.root)))
                db.execute("INSERT OR REPLACE INTO scan VALUES(?, ?)", (job.root, now))
                if counts.changed or self._recorded.get(job.root) != mark:
                    record_sizes(db, job.root, now)

        with trio.CancelScope(shield=True):
            await self._database.write(finish)
        if scanned:
            self._recorded[job.root] = mark
        self._on_change(job.id, status, job.root)
