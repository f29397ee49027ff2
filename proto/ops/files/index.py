"""Operations of `files`: bringing the index of the file system in step with the disk, and the jobs that do it."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from linckia.proto.operation import OPERATOR, Family, Params, Role
from linckia.proto.ops.files.shared import Path, tool, within

COMPARE = "compare"
"""The service that looks at folders beside a scan: looking at a million files takes longer than all else that a rescan
does, and a Python process looks with one processor."""

beside = Family(COMPARE, role=Role.INTERNAL, callers=("files", OPERATOR))

MAX_FOLDERS = 10_000

JobStatus = Literal["pending", "running", "completed", "failed", "cancelled"]

JobId = Annotated[int, Meta(ge=0)] | Annotated[str, Meta(pattern="^[0-9]{1,18}$", description="A job's number")]


class Wholes(msgspec.Struct, frozen=True, kw_only=True):
    """Folders that stand as one row each, all together; counted in every size above them."""

    folders: int
    files: int
    directories: int
    size: int
    first: Annotated[list[str], Meta(description="Some of them")]


class IndexResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What was indexed; or the job that does it, where the call does not wait."""

    root: str
    status: JobStatus
    job_id: Annotated[int | None, Meta(description="For job-progress and cancel-job")] = None
    status_url: Annotated[str | None, Meta(description="The job as a resource")] = None
    files: Annotated[int | None, Meta(description="Files at or below the path")] = None
    directories: Annotated[int | None, Meta(description="Directories at or below the path, itself included")] = None
    total_size: Annotated[int | None, Meta(description="Bytes of all of them")] = None
    duration_ms: int | None = None
    skipped: Annotated[bool, Meta(description="Whether the index was young enough to be left as it is")] = False
    skip_reason: str | None = None
    ignored: Annotated[list[str], Meta(description="Patterns of the settings; what they name is left out")] = []
    whole_folders: Annotated[
        Wholes | None, Meta(description="`.git`, `node_modules` and the like; `no_ignore` lists what is in them")
    ] = None
    problem_count: Annotated[int, Meta(description="Directories and files that could not be read")] = 0
    problems: Annotated[list[str], Meta(description="The first of them, with the reason")] = []


@within.write("index", surfaces=("files",), idempotent=True, deadline_s=86_400)
class Index(Params[IndexResult], frozen=True, kw_only=True, rename="camel"):
    """Scan a file or folder into the index of files, unless scanned within `maxAge` seconds; as a job, or with `async`
    false to its end. Before navigate, top-files and the like. To follow changes: source-create."""

    common: ClassVar = {"root": "path"}
    root: Annotated[Path, Meta(description="File or directory to index")]
    async_: Annotated[bool, Meta(description="Answer a job at once, else when done")] = msgspec.field(
        name="async", default=True
    )
    force: Annotated[bool, Meta(description="Scan even if the last scan is young")] = False
    max_age: Annotated[float, Meta(ge=0, description="Seconds for which a scan is young enough; 0: always scan")] = 3600
    no_ignore: Annotated[bool, Meta(description="Rows also for what is in .git, node_modules and the like")] = False


class Job(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A run of `index`."""

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
    duration_ms: Annotated[int | None, Meta(description="From its start until it ended, or until now")] = None
    skipped: bool = False
    skip_reason: str | None = None
    problem_count: Annotated[int, Meta(description="Directories and files that could not be read")] = 0
    problems: Annotated[list[str], Meta(description="The first of them, with the reason")] = []
    error: Annotated[str | None, Meta(description="Why it failed")] = None
    whole_folders: Annotated[Wholes | None, Meta(description="As `index` answers it")] = None
    attempt: Annotated[int, Meta(description="2 where it was begun anew after its process had died")] = 1


@tool.read("job-progress", deadline_s=10)
class JobProgress(Params[Job], frozen=True, kw_only=True, rename="camel"):
    """How far a scan begun by index has come."""

    job_id: Annotated[JobId, Meta(description="The job, as `index` answered it")]


class JobList(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Jobs, newest first."""

    jobs: list[Job]
    total: Annotated[int, Meta(description="How many match, whatever the limit")]
    summary: Annotated[str | None, Meta(description="Where the list would have been too long")] = None


@tool.read("list-jobs", deadline_s=10)
class ListJobs(Params[JobList], frozen=True, kw_only=True, rename="camel"):
    """List scans begun by index, newest first."""

    active_only: Annotated[bool, Meta(description="Only jobs that wait or run")] = False
    status: Annotated[JobStatus | None, Meta(description="Only jobs of this status")] = None
    min_progress: Annotated[Annotated[float, Meta(ge=0, le=100)] | None, Meta(description="At least so far")] = None
    max_progress: Annotated[Annotated[float, Meta(ge=0, le=100)] | None, Meta(description="At most so far")] = None
    limit: Annotated[int, Meta(ge=1, le=10_000, description="Jobs to answer at most")] = 50


class CancelledJob(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The job as it ended."""

    job_id: int
    status: JobStatus
    message: str


@tool.write("cancel-job", idempotent=False, deadline_s=60)
class CancelJob(Params[CancelledJob], frozen=True, kw_only=True, rename="camel"):
    """Cancel a job: stop a running scan begun by index; what it has found stays."""

    job_id: Annotated[JobId, Meta(description="The job, as `index` answered it")]


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """What was found."""

    different: Annotated[list[int], Meta(description="Which of the folders, counted from 0, are not as they were")]


@beside.read("compare_folders", deadline_s=60)
class CompareFolders(Params[Compared], frozen=True, kw_only=True):
    """Tell which folders are not as they were listed: other entries, or an entry with another inode, size or time.

    A folder that cannot be read, or is not below the roots, is different.
    """

    paths: Annotated[list[str], Meta(max_length=MAX_FOLDERS, description="Real paths, each with its slash")]
    fingerprints: Annotated[
        list[bytes], Meta(max_length=MAX_FOLDERS, description="Of each folder, what its last listing came to")
    ]
    ignore: Annotated[tuple[str, ...], Meta(description="Patterns, as in .gitignore, of what was left out")] = ()
    empty_devices: Annotated[
        tuple[int, ...], Meta(description="File systems that hold no files, and are shown empty (/proc)")
    ] = ()
