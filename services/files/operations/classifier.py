"""Operations of `files`: jobs that remake thumbnails and metadata of files."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from proto.operation import Params
from services.files.operations.index import JobId
from services.files.operations.shared import Path, tool

Classifier = Literal["thumbnail", "timeline", "metadata"]

ClassifierStatus = Literal["pending", "running", "completed", "failed"]


class ClassifierJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job that makes thumbnails and metadata of one file."""

    id: int
    source_path: str
    operations: list[Classifier]
    status: ClassifierStatus
    progress: Annotated[int, Meta(description="0 to 100")]
    created_at: Annotated[str, Meta(description="RFC 3339")]
    started_at: str | None = None
    completed_at: str | None = None
    error: Annotated[str | None, Meta(description="Why it failed")] = None


class ClassifierStarted(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The job that was started."""

    job_id: Annotated[int, Meta(description="For classifier_progress")]
    source_path: str
    operations: list[Classifier]
    status: ClassifierStatus


@tool.write("classifier_run", idempotent=True, deadline_s=30)
class RerunClassifier(Params[ClassifierStarted], frozen=True, kw_only=True, rename="camel"):
    """Make thumbnail, video frames and metadata of a file again, as a job. To read them: files_inspect."""

    common: ClassVar = {"sourcePath": "path"}
    source_path: Annotated[Path, Meta(description="File in the index")]
    operations: Annotated[list[Classifier], Meta(max_length=100, description="Which; default all")] = []


@tool.read("classifier_progress", deadline_s=10)
class ClassifierJobProgress(Params[ClassifierJob], frozen=True, kw_only=True, rename="camel"):
    """Progress of a job of classifier_run."""

    job_id: Annotated[JobId, Meta(description="Job from `classifier_run`")]


class ClassifierJobs(msgspec.Struct, frozen=True, kw_only=True):
    """Classifier jobs, newest first."""

    jobs: list[ClassifierJob]
    total: Annotated[int, Meta(description="Number in all, whatever the limit")]


@tool.read("classifier_jobs", deadline_s=10)
class ListClassifierJobs(Params[ClassifierJobs], frozen=True, kw_only=True):
    """List jobs of classifier_run, newest first."""

    status: Annotated[ClassifierStatus | None, Meta(description="Only jobs of this status")] = None
    limit: Annotated[int, Meta(ge=1, le=10_000, description="Jobs at most")] = 50
