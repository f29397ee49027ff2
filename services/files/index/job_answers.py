"""Jobs as clients are told of them: what is stored, and of one that runs what it has counted since."""

from __future__ import annotations

import time
from collections.abc import Callable

import apsw
import msgspec

from proto.ops.files.index import Job, Wholes
from services.files.index.scan import Counts
from services.files.store.sql import Row, fetch_all, fetch_one
from services.runtime import times

_SELECT = (
    "SELECT id, root, status, progress, attempt, created, started, finished, files, directories, size, problems,"
    " problem, skipped, error, wholes FROM job"
)

Counted = Callable[[int], Counts | None]
"""The counts of a job, by its id, where it runs."""


def find(db: apsw.Connection, id_: int, counted: Counted) -> Job | None:
    """The job of this id."""
    row = fetch_one(db, f"{_SELECT} WHERE id = ?", (id_,))
    return None if row is None else _job(row, counted)


def every(db: apsw.Connection, counted: Counted) -> list[Job]:
    """All jobs, newest first."""
    return [_job(row, counted) for row in fetch_all(db, f"{_SELECT} ORDER BY id DESC")]


def _job(row: Row, counted: Counted) -> Job:
    id_, root, status, progress, attempt, created, started, finished, *found = row[:11]
    problems, problem, skipped, error, told = row[11:]
    wholes = None if told is None else msgspec.json.decode(told, type=Wholes)
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
