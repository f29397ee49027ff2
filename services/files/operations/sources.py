"""Operations of `files`: sources, named folders that are followed or scanned."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from proto.operation import Params
from services.files.operations.shared import Deleted, Path, tool

SourceName = Annotated[str, Meta(min_length=1, max_length=1024, description="Name of a source")]

SourceType = Literal["live", "manual"]

SourceStatus = Literal["stopped", "starting", "running", "completed", "error"]


class Source(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A source and its status."""

    name: str
    type: SourceType
    path: str
    enabled: bool
    watch_recursive: bool
    debounce_ms: int
    status: Annotated[
        SourceStatus,
        Meta(
            description="stopped; starting, during the first scan; running; completed, for a manual one after its"
            " scan; error, while something keeps it from running"
        ),
    ]
    created_at: Annotated[str, Meta(description="RFC 3339")]
    updated_at: Annotated[str, Meta(description="RFC 3339")]
    error: Annotated[str | None, Meta(description="The problem")] = None


@tool.write("sources_create", idempotent=False, deadline_s=30)
class SourceCreate(Params[Source], frozen=True, kw_only=True):
    """Follow a folder: update the index on each change from now on (`live`), or name one to be scanned by sources_start
    (`manual`). A single scan: files_index."""

    name: SourceName
    type: Annotated[SourceType, Meta(description="live or manual")]
    path: Annotated[Path, Meta(description="Folder below the roots")]
    enabled: Annotated[bool, Meta(description="Start a live source at once")] = True
    watch_recursive: Annotated[bool, Meta(description="For live sources: include folders below it")] = True
    debounce_ms: Annotated[
        int,
        Meta(ge=0, le=3_600_000, description="For live sources: combine changes this close together"),
    ] = 500


class SourceStarted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Current status of a source."""

    name: str
    status: SourceStatus
    message: str
    job_id: Annotated[int | None, Meta(description="The scan of a manual source, for jobs_progress")] = msgspec.field(
        name="jobId", default=None
    )


@tool.write("sources_start", idempotent=True, deadline_s=30)
class SourceStart(Params[SourceStarted], frozen=True, kw_only=True):
    """Start a source: a live one follows its folder, a manual one scans it once."""

    name: SourceName


@tool.write("sources_stop", idempotent=True, deadline_s=60)
class SourceStop(Params[SourceStarted], frozen=True, kw_only=True):
    """Stop following a folder until sources_start; the index stays."""

    name: SourceName


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """All sources, by name."""

    sources: list[Source]
    total: int


@tool.read("sources_list", deadline_s=30)
class SourceList(Params[Sources], frozen=True, kw_only=True):
    """List all sources (followed folders) and their status."""


@tool.read("sources_get", deadline_s=30)
class SourceGet(Params[Source], frozen=True, kw_only=True):
    """Read a source's definition and status."""

    name: SourceName


@tool.destroy("sources_delete", idempotent=False, deadline_s=60)
class SourceDelete(Params[Deleted], frozen=True, kw_only=True):
    """Delete a source; the index stays."""

    name: SourceName


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a source."""

    name: str
    type: SourceType
    status: SourceStatus
    entries_indexed: Annotated[int, Meta(description="Indexed entries at or below its path")]
    last_scan_at: Annotated[str | None, Meta(description="Last complete scan of its path, RFC 3339")]
    total_scans: Annotated[int, Meta(description="Recorded scans of its path, whoever requested them")]
    failed_scans: int
    average_scan_duration_ms: int
    changes: Annotated[int, Meta(description="For live sources: changes indexed since it was started")]
    last_change_at: Annotated[str | None, Meta(description="Time of the last one, RFC 3339")]
    error: Annotated[str | None, Meta(description="The problem")]


@tool.read("sources_stats", deadline_s=60)
class SourceStats(Params[Stats], frozen=True, kw_only=True):
    """Statistics of a source: entries, scans, changes."""

    name: SourceName
