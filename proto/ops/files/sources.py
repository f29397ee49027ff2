"""Operations of `files`: sources, the folders that are followed or scanned under a name."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from linckia.proto.operation import Params
from linckia.proto.ops.files.shared import Deleted, Path, tool

SourceName = Annotated[str, Meta(min_length=1, max_length=1024, description="Name of a source")]

SourceType = Literal["live", "manual"]

SourceStatus = Literal["stopped", "starting", "running", "completed", "error"]


class Source(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A source and how it stands."""

    name: str
    type: SourceType
    path: str
    enabled: bool
    watch_recursive: bool
    debounce_ms: int
    status: Annotated[
        SourceStatus,
        Meta(
            description="stopped; starting, while the state is taken; running; completed, of a manual one after its"
            " scan; error, while what keeps it from running lasts"
        ),
    ]
    created_at: Annotated[str, Meta(description="RFC 3339")]
    updated_at: Annotated[str, Meta(description="RFC 3339")]
    error: Annotated[str | None, Meta(description="What is wrong")] = None


@tool.write("source-create", idempotent=False, deadline_s=30)
class SourceCreate(Params[Source], frozen=True, kw_only=True):
    """Follow a folder: keep the index in step with each change from now on (`live`), or name one to be scanned by
    source-start (`manual`). A single scan: index."""

    name: SourceName
    type: Annotated[SourceType, Meta(description="live or manual")]
    path: Annotated[Path, Meta(description="Folder below the roots")]
    enabled: Annotated[bool, Meta(description="A live source starts by itself")] = True
    watch_recursive: Annotated[bool, Meta(description="Of live sources: folders below it as well")] = True
    debounce_ms: Annotated[
        int,
        Meta(ge=0, le=3_600_000, description="Of live sources: changes so close together are one"),
    ] = 500


class SourceStarted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a source is doing now."""

    name: str
    status: SourceStatus
    message: str
    job_id: Annotated[int | None, Meta(description="The scan of a manual source, for job-progress")] = msgspec.field(
        name="jobId", default=None
    )


@tool.write("source-start", idempotent=True, deadline_s=30)
class SourceStart(Params[SourceStarted], frozen=True, kw_only=True):
    """Start a source: a live one follows its folder, a manual one scans it once."""

    name: SourceName


@tool.write("source-stop", idempotent=True, deadline_s=60)
class SourceStop(Params[SourceStarted], frozen=True, kw_only=True):
    """Stop following a folder until source-start; what is in the index stays."""

    name: SourceName


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """All sources, by name."""

    sources: list[Source]
    total: int


@tool.read("source-list", deadline_s=30)
class SourceList(Params[Sources], frozen=True, kw_only=True):
    """List all sources (folders that are followed) and how they stand."""


@tool.read("source-get", deadline_s=30)
class SourceGet(Params[Source], frozen=True, kw_only=True):
    """Read what a source is and how it stands."""

    name: SourceName


@tool.destroy("source-delete", idempotent=False, deadline_s=60)
class SourceDelete(Params[Deleted], frozen=True, kw_only=True):
    """Delete a source; what is in the index stays."""

    name: SourceName


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """What a source has done."""

    name: str
    type: SourceType
    status: SourceStatus
    entries_indexed: Annotated[int, Meta(description="Entries at or below its path that are in the index")]
    last_scan_at: Annotated[str | None, Meta(description="When its path was last scanned to the end, RFC 3339")]
    total_scans: Annotated[int, Meta(description="Scans of its path that are on record, whoever asked for them")]
    failed_scans: int
    average_scan_duration_ms: int
    changes: Annotated[int, Meta(description="Of live sources: changes that were taken in since it was started")]
    last_change_at: Annotated[str | None, Meta(description="When the last of them were, RFC 3339")]
    error: Annotated[str | None, Meta(description="What is wrong")]


@tool.read("source-stats", deadline_s=60)
class SourceStats(Params[Stats], frozen=True, kw_only=True):
    """What a source has done: entries, scans, changes."""

    name: SourceName
