"""Operations of `files` that walk the graph of resource sets, and find and sum up their entries."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from proto.operation import Params, detail
from services.files.operations.shared import EntryPage, FileEntry, Filter, Instant, Limit, Offset, SetName, Whole, tool

TimeField = Literal["mtime", "ctime", "added_at"]
MetricField = Literal["size", "disk_size", "links", "inode", "depth"]
ExactField = Literal[
    "kind", "path", "parent", "name", "extension", "size", "disk_size", "mtime", "ctime", "inode", "links"
]
TextField = Literal["path", "name", "parent", "extension", "kind"]
TextMode = Literal["contains", "prefix", "suffix", "regex", "glob"]
Metric = Literal["size", "count", "files", "directories"]

Depth = Annotated[int, Meta(ge=0, description="Levels to follow")]

ChildSets = Annotated[bool, detail("With the sets below it")]


class SetNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A resource set."""

    name: str
    entry_count: int
    child_count: int
    depth: Annotated[int, Meta(description="Steps from the requested set")] = 0
    entries: Annotated[list[FileEntry] | None, Meta(description="Its first entries")] = None


class Children(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The sets below one, nearest first."""

    resource_set: str
    children: list[SetNode]
    entries: Annotated[list[FileEntry] | None, Meta(description="The first entries of the set itself")] = None
    summary: Annotated[str | None, Meta(description="If the list is too long")] = None


@tool.read("sets_children", deadline_s=30)
class ResourceChildren(Params[Children], frozen=True, kw_only=True):
    """List the resource sets below one. Its files: sets_get."""

    name: SetName
    depth: Annotated[Depth | None, Meta(description="Levels to follow; null: all")] = 1
    include_entries: Annotated[bool, Meta(description="With the first 100 entries of each")] = False


class ParentNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A resource set above another."""

    name: str
    depth: Annotated[int, Meta(description="Steps from the requested set")] = 0


class Parents(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The sets above one, nearest first."""

    resource_set: str
    parents: list[ParentNode]
    summary: Annotated[str | None, Meta(description="If the list is too long")] = None


@tool.read("sets_parents", deadline_s=30)
class ResourceParent(Params[Parents], frozen=True, kw_only=True):
    """List the resource sets above one."""

    name: SetName
    depth: Annotated[Depth | None, Meta(description="Levels to follow; null: all")] = 1


class SumPart(msgspec.Struct, frozen=True, kw_only=True):
    """What a set adds to the value, beyond those before it."""

    name: str
    value: int


class SumResult(msgspec.Struct, frozen=True, kw_only=True):
    """The value and its parts: the set's own if it has entries, then each child's."""

    resource_set: str
    metric: Metric
    value: int
    breakdown: Annotated[list[SumPart], Meta(description="Adds up to the value")]


@tool.read("sets_sum", deadline_s=60)
class ResourceSum(Params[SumResult], frozen=True, kw_only=True):
    """Sum a metric (size, count, files, folders) over a resource set and the sets below it, each entry once."""

    name: SetName
    metric: Annotated[Metric, Meta(description="Bytes, entries, files or directories")]
    include_children: ChildSets = True
    depth: Annotated[Depth | None, Meta(description="Levels of sets to follow; null: all")] = None


class SetEntryPage(EntryPage, frozen=True, kw_only=True):
    """A page of matching entries of a resource set."""

    resource_set: str


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A set, and the page to return."""

    name: SetName
    include_children: ChildSets = True
    limit: Annotated[Limit, Meta(description="Entries at most")] = 1_000_000
    offset: Offset = 0


@tool.read("sets_time_range", deadline_s=60)
class ResourceTimeRange(Wanted, Params[SetEntryPage], frozen=True, kw_only=True):
    """Find entries of a resource set by time, latest first: both ends inclusive, a date as end is its whole day."""

    common: ClassVar = {"min": "since", "max": "until"}
    field: Annotated[TimeField, Meta(description="added_at: to the set")]
    min: Annotated[Instant | None, Meta(description="RFC 3339, date, Unix seconds")] = None
    max: Annotated[Instant | None, Meta(description="RFC 3339, date, Unix seconds")] = None


@tool.read("sets_metric_range", deadline_s=60)
class ResourceMetricRange(Wanted, Params[SetEntryPage], frozen=True, kw_only=True):
    """Find entries of a resource set by size within a range, both ends inclusive, largest first."""

    metric: Annotated[MetricField, Meta(description="depth: directories above it")]
    min: Annotated[Whole | None, Meta(description="Least value")] = None
    max: Annotated[Whole | None, Meta(description="Greatest value")] = None


@tool.read("sets_match", deadline_s=60)
class ResourceIs(Wanted, Params[SetEntryPage], frozen=True, kw_only=True):
    """Find entries of a resource set with exactly this value in a field. Parts of it: sets_fuzzy_match."""

    field: Annotated[ExactField, Meta(description="Field to compare")]
    value: Annotated[str | Whole, Meta(description="An extension with or without its dot")]


@tool.read("sets_fuzzy_match", deadline_s=60)
class ResourceFuzzyMatch(Wanted, Params[SetEntryPage], frozen=True, kw_only=True):
    """Find entries of a resource set by a pattern of a field: literally by `contains`, `prefix`, `suffix`; by `regex`
    (RE2) anywhere; by a `glob` of the whole. Not the content of files."""

    field: Annotated[TextField, Meta(description="Field to search")]
    pattern: Annotated[str, Meta(max_length=8192, description="Pattern to match")]
    mode: Annotated[TextMode, Meta(description="How to match")] = "contains"
    case_sensitive: Annotated[bool, Meta(description="Whether case matters")] = False


@tool.read("sets_search", deadline_s=60)
class ResourceSearch(Filter, Params[SetEntryPage], frozen=True, kw_only=True):
    """Find entries of a resource set by several criteria at once: kind, extension, name, path, size, time. Not the
    content of files: documents_search, files_grep."""

    common: ClassVar = {"min_mtime": "since", "max_mtime": "until"}
    name: SetName
    include_children: ChildSets = False
    limit: Limit = 100
    offset: Offset = 0
