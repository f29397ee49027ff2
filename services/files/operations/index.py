"""Operations of `files`: jobs that bring the index up to date with the disk."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from proto.operation import OPERATOR, Family, Params, Role
from services.files.operations.shared import Path, tool, within

COMPARE = "compare"
"""The service that compares folders in parallel with a scan: examining a million files takes longer than the rest of a
rescan, and a Python process uses one processor."""

beside = Family(COMPARE, role=Role.INTERNAL, callers=("files", OPERATOR))

MAX_FOLDERS = 10_000

JobStatus = Literal["pending", "running", "completed", "failed", "cancelled"]

JobId = Annotated[int, Meta(ge=0)] | Annotated[str, Meta(pattern="^[0-9]{1,18}$", description="A job's number")]


class Wholes(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of folders indexed as a single row; all sizes include them."""

    folders: int
    files: int
    directories: int
    size: int
    first: Annotated[list[str], Meta(description="Some of them")]


class IndexResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The indexed counts, or the running job if the call does not wait."""

    root: str
    status: JobStatus
    job_id: Annotated[int | None, Meta(description="For jobs_progress and jobs_cancel")] = None
    status_url: Annotated[str | None, Meta(description="The job as a resource")] = None
    files: Annotated[int | None, Meta(description="Files at or below the path")] = None
    directories: Annotated[int | None, Meta(description="Directories at or below the path, itself included")] = None
    total_size: Annotated[int | None, Meta(description="Bytes of all of them")] = None
    duration_ms: int | None = None
    skipped: Annotated[bool, Meta(description="Whether the index was recent enough to keep")] = False
    skip_reason: str | None = None
    ignored: Annotated[list[str], Meta(description="Patterns in the settings that excluded files")] = []
    whole_folders: Annotated[
        Wholes | None, Meta(description="`.git`, `node_modules` and the like; `no_ignore` lists their contents")
    ] = None
    problem_count: Annotated[int, Meta(description="Directories and files that could not be read")] = 0
    problems: Annotated[list[str], Meta(description="The first of them, with the reason")] = []


@within.write("files_index", surfaces=("files",), idempotent=True, deadline_s=86_400)
class Index(Params[IndexResult], frozen=True, kw_only=True, rename="camel"):
    """Scan a file or folder into the index of files, unless scanned within `maxAge` seconds; as a job, or with `async`
    false to its end. Needed before files_browse, disk_top_files and such. For changes: sources_create."""

    common: ClassVar = {"root": "path"}
    root: Annotated[Path, Meta(description="File or directory to index")]
    async_: Annotated[bool, Meta(description="Return a job at once, else wait")] = msgspec.field(
        name="async", default=True
    )
    force: Annotated[bool, Meta(description="Scan even if the last scan is recent")] = False
    max_age: Annotated[float, Meta(ge=0, description="Seconds for which a scan stays recent; 0: always scan")] = 3600
    no_ignore: Annotated[bool, Meta(description="Also index the contents of .git, node_modules and such")] = False


class Job(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A run of `files_index`."""

    job_id: int
    root: str
    status: JobStatus
    progress: Annotated[float, Meta(description="0 to 100; never falls")]
    files: Annotated[int, Meta(description="Files found so far")]
    directories: int
    total_size: int
    created_at: Annotated[str, Meta(description="RFC 3339")]
    status_url: str
    started_at: str | None = None
    finished_at: str | None = None
    duration_ms: Annotated[int | None, Meta(description="From its start to its end, or to now")] = None
    skipped: bool = False
    skip_reason: str | None = None
    problem_count: Annotated[int, Meta(description="Directories and files that could not be read")] = 0
    problems: Annotated[list[str], Meta(description="The first of them, with the reason")] = []
    error: Annotated[str | None, Meta(description="Why it failed")] = None
    whole_folders: Annotated[Wholes | None, Meta(description="As in `files_index`")] = None
    attempt: Annotated[int, Meta(description="2 if it was restarted after its process died")] = 1


@tool.read("jobs_progress", deadline_s=10)
class JobProgress(Params[Job], frozen=True, kw_only=True, rename="camel"):
    """Progress of a scan begun by files_index."""

    job_id: Annotated[JobId, Meta(description="Job from `files_index`")]


class JobList(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Jobs, newest first."""

    jobs: list[Job]
    total: Annotated[int, Meta(description="Number that match, whatever the limit")]
    summary: Annotated[str | None, Meta(description="If the list is too long")] = None


@tool.read("jobs_list", deadline_s=10)
class ListJobs(Params[JobList], frozen=True, kw_only=True, rename="camel"):
    """List scans begun by files_index, newest first."""

    active_only: Annotated[bool, Meta(description="Only waiting or running jobs")] = False
    status: Annotated[JobStatus | None, Meta(description="Only jobs of this status")] = None
    min_progress: Annotated[Annotated[float, Meta(ge=0, le=100)] | None, Meta(description="At least so far")] = None
    max_progress: Annotated[Annotated[float, Meta(ge=0, le=100)] | None, Meta(description="At most so far")] = None
    limit: Annotated[int, Meta(ge=1, le=10_000, description="Jobs at most")] = 50


class CancelledJob(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The job after cancelling."""

    job_id: int
    status: JobStatus
    message: str


@tool.write("jobs_cancel", idempotent=False, deadline_s=60)
class CancelJob(Params[CancelledJob], frozen=True, kw_only=True, rename="camel"):
    """Cancel a job: stop a running scan begun by files_index; its findings stay."""

    job_id: Annotated[JobId, Meta(description="Job from `files_index`")]


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """The folders that differ."""

    different: Annotated[list[int], Meta(description="Indices of changed folders, from 0")]


@beside.read("compare_folders", deadline_s=60)
class CompareFolders(Params[Compared], frozen=True, kw_only=True):
    """List the folders that changed: other entries, or an entry with another inode, size or time.

    A folder that cannot be read, or is not below the roots, counts as changed.
    """

    paths: Annotated[list[str], Meta(max_length=MAX_FOLDERS, description="Real paths, each with its slash")]
    fingerprints: Annotated[
        list[bytes], Meta(max_length=MAX_FOLDERS, description="Fingerprint of each folder's last listing")
    ]
    ignore: Annotated[tuple[str, ...], Meta(description="Patterns of excluded files, as in .gitignore")] = ()
    empty_devices: Annotated[
        tuple[int, ...], Meta(description="File systems without real files, treated as empty (/proc)")
    ] = ()
