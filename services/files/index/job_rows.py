"""Jobs as they are stored and answered, and when a path was last scanned."""

from __future__ import annotations

import time
from typing import NamedTuple

import apsw

from proto.ops.files.index import Job, JobStatus
from services.files import paths, times
from services.files.index.tree import find
from services.files.store.rows import fetch_value

COLUMNS = (
    "id, root, status, progress, attempt, created, started, finished, files, directories, size, problems, problem,"
    " skipped, error"
)


class JobRow(NamedTuple):
    """The `COLUMNS` of a job."""

    id: int
    root: str
    status: JobStatus
    progress: float
    attempt: int
    created: int
    started: int | None
    finished: int | None
    files: int
    directories: int
    size: int
    problems: int
    problem: str | None
    skipped: str | None
    error: str | None


def job_of(row: JobRow) -> Job:
    ended = row.finished if row.finished is not None else time.time_ns()
    return Job(
        job_id=row.id,
        root=row.root,
        status=row.status,
        progress=round(row.progress, 2),
        files=row.files,
        directories=row.directories,
        total_size=row.size,
        created_at=times.rfc3339(row.created),
        status_url=f"synthesis://jobs/{row.id}",
        started_at=None if row.started is None else times.rfc3339(row.started),
        finished_at=None if row.finished is None else times.rfc3339(row.finished),
        duration_ms=None if row.started is None else (ended - row.started) // 1_000_000,
        skipped=bool(row.skipped),
        skip_reason=row.skipped,
        problem_count=row.problems,
        problems=row.problem.split("\n") if row.problem else [],
        error=row.error,
        attempt=row.attempt,
    )


def skip_reason(db: apsw.Connection, root: str, max_age_s: float, now: int) -> str | None:
    """Why a path need not be scanned: its own last scan, or that of a directory above it, is young enough."""
    at = last_scan(db, root)
    if at is None:
        return None
    known = find(db, root)
    if known is None or not known.scanned:
        return None
    age_s = max(0, now - at) / 1e9
    if age_s >= max_age_s:
        return None
    return f"Path was scanned {int(age_s)} seconds ago (max age: {max_age_s:.10g} seconds). Use force=true to re-index."


def last_scan(db: apsw.Connection, path: str) -> int | None:
    """When the last scan of a clean path, or of a directory above it, ended, in nanoseconds; None where none did."""
    above = [path]
    while above[-1] != "/":
        above.append(paths.split(above[-1])[0].rstrip("/") or "/")
    marks = ",".join("?" * len(above))
    at: int | None = fetch_value(db, f"SELECT max(finished) FROM scan WHERE root IN ({marks})", above)
    return at
