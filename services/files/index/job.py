"""A job of `index`: its state in this process, and its public form."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import apsw
import msgspec
import trio

from services.files.index.scan import Counts, Scan
from services.files.operations.index import Job, JobStatus, Wholes
from services.files.store.sql import Row, fetch_all, fetch_one
from services.runtime.storage import DiskFull
from services.shared import times


@dataclass(eq=False, kw_only=True, slots=True)
class RunningJob:
    """A job that is pending or running in this process."""

    id: int
    root: str
    background: bool
    force: bool
    max_age_s: float
    rows: int | None = None
    """New value of `folder.rows` for the path, which controls the rows that clients see; None leaves it unchanged."""
    attempt: int = 1
    waiting: int = 0
    """Number of calls waiting for it to end."""
    cancelled: bool = False
    scan: Scan | None = None
    looked: bool = False
    """True once the scan itself is over; a later caller needs a new scan to see more recent changes."""
    failure: DiskFull | None = None
    """Why a job that a call waits for did not run."""
    ended: trio.Event = field(default_factory=trio.Event)

    def cancel(self) -> None:
        self.cancelled = True
        if self.scan is not None:
            self.scan.cancel()

    @property
    def counts(self) -> Counts | None:
        return None if self.scan is None else self.scan.counts


class JobOutcome(NamedTuple):
    """How a job ended."""

    status: JobStatus
    error: str | None = None
    skipped: str | None = None


_SELECT = (
    "SELECT id, root, status, progress, attempt, created, started, finished, files, directories, size, problems,"
    " problem, skipped, error, wholes FROM job"
)

Counted = Callable[[int], Counts | None]
"""Returns the counts of a job by its id, if it is running."""


def find_job(db: apsw.Connection, id_: int, counted: Counted) -> Job | None:
    """Return a job by its id."""
    row = fetch_one(db, f"{_SELECT} WHERE id = ?", (id_,))
    return None if row is None else _job(row, counted)


def every_job(db: apsw.Connection, counted: Counted) -> list[Job]:
    """Return all jobs, newest first."""
    return [_job(row, counted) for row in fetch_all(db, f"{_SELECT} ORDER BY id DESC")]


def _job(row: Row, counted: Counted) -> Job:
    id_, root, status, progress, attempt, created, started, finished, *found = row[:11]
    problems, problem, skipped, error, encoded_wholes = row[11:]
    wholes = None if encoded_wholes is None else msgspec.json.decode(encoded_wholes, type=Wholes)
    counts = counted(id_) if status == "running" else None
    if counts is not None:
        progress = max(progress, counts.progress)
        found = [counts.files, counts.directories, counts.size]
    files, directories, size = found
    ended = finished if finished is not None else time.time_ns()
    return Job(
        job_id=id_, root=root, status=status, progress=round(progress, 2), files=files, directories=directories,
        total_size=size, created_at=times.rfc3339(created), status_url=f"synthesis://jobs/{id_}",
        started_at=times.rfc3339_or_none(started), finished_at=times.rfc3339_or_none(finished),
        duration_ms=None if started is None else (ended - started) // 1_000_000, skipped=bool(skipped),
        skip_reason=skipped, problem_count=problems, problems=problem.split("\n") if problem else [], error=error,
        attempt=attempt, whole_folders=wholes if wholes is not None and wholes.folders else None,
    )  # fmt: skip
