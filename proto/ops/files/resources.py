"""Operations of `files`: walking the graph of resource sets, and finding and summing up their entries."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from proto.operation import Family, Params
from proto.ops.files.shared import SERVICE, SURFACES, FileEntry, Filter, Instant, Limit, Offset, SetName, Whole

tool = Family(SERVICE, surfaces=SURFACES)


TIME_FIELDS = ("mtime", "ctime", "added_at")
METRIC_FIELDS = ("size", "disk_size", "links", "inode", "depth")
EXACT_FIELDS = (
    "kind", "path", "parent", "name", "extension", "size", "disk_size", "mtime", "ctime", "inode", "links",
)  # fmt: skip
TEXT_FIELDS = ("path", "name", "parent", "extension", "kind")
MODES = ("contains", "prefix", "suffix", "regex", "glob")
SUMS = ("size", "count", "files", "directories")

Depth = Annotated[int, Meta(ge=0, description="Levels to follow")]

ChildSets = Annotated[bool, Meta(description="Take in the sets below it, each entry once")]


class SetNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A resource set."""

    name: str
    entry_count: int
    child_count: int
    depth: Annotated[int, Meta(description="Steps from the set that was asked for")] = 0
    entries: Annotated[list[FileEntry] | None, Meta(description="Its first entries")] = None


class Children(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The sets below one, nearest first."""

    resource_set: str
    children: list[SetNode]
    entries: Annotated[list[FileEntry] | None, Meta(description="The first entries of the set itself")] = None
    summary: Annotated[str | None, Meta(description="Where the list would have been too long")] = None


@tool.read("resource-children", deadline_s=30)
class ResourceChildren(Params[Children], frozen=True, kw_only=True):
    """List the resource sets below one, each once."""

    name: SetName
    depth: Annotated[Depth | None, Meta(description="Levels to follow; null: all")] = 1
    include_entries: Annotated[bool, Meta(description="Answer the first 100 entries of each set as well")] = False


class ParentNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A resource set above another."""

    name: str
    depth: Annotated[int, Meta(description="Steps from the set that was asked for")] = 0


class Parents(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The sets above one, nearest first."""

    resource_set: str
    parents: list[ParentNode]
    summary: Annotated[str | None, Meta(description="Where the list would have been too long")] = None


@tool.read("resource-parent", deadline_s=30)
class ResourceParent(Params[Parents], frozen=True, kw_only=True):
    """List the resource sets above one, each once."""

    name: SetName
    depth: Annotated[Depth | None, Meta(description="Levels to follow; null: all")] = 1


class SumPart(msgspec.Struct, frozen=True, kw_only=True):
    """What a set adds to the value that those before it did not."""

    name: str
    value: int


class SumResult(msgspec.Struct, frozen=True, kw_only=True):
    """The value, and how it comes about: the set's own part where it has entries, then each child's."""

    resource_set: str
    metric: str
    value: int
    breakdown: Annotated[list[SumPart], Meta(description="Adds up to the value")]


@tool.read("resource-sum", deadline_s=60)
class ResourceSum(Params[SumResult], frozen=True, kw_only=True):
    """Sum up a metric over a resource set and the sets below it. Each entry counts once; what lies in a directory
    that is in the sets is part of that directory's size."""

    name: SetName
    metric: Annotated[
        str,
        Meta(description="size (bytes), count (entries), files or directories", extra_json_schema={"enum": [*SUMS]}),
    ]
    include_children: ChildSets = True
    depth: Annotated[Depth | None, Meta(description="Levels of sets to follow; null: all")] = None


class EntryPage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One page of the entries that match."""

    resource_set: str
    entries: list[FileEntry]
    total_count: Annotated[int, Meta(description="How many match, whatever the page")]
    returned_count: int
    offset: int
    limit: int
    has_more: Annotated[bool, Meta(description="Whether more follow the last one")]
    summary: Annotated[
        str | None, Meta(description="Where the page would have been too long: what there is, and how to go on")
    ] = None


Many = Annotated[Limit, Meta(description="Entries to answer at most")]


@tool.read("resource-time-range", deadline_s=60)
class ResourceTimeRange(Params[EntryPage], frozen=True, kw_only=True):
    """Find the entries of a resource set whose time lies in a range, latest first. Both ends are inclusive; a date as
    `max` means the whole day."""

    name: SetName
    field: Annotated[
        str,
        Meta(description="mtime, ctime or added_at (to the set)", extra_json_schema={"enum": list(TIME_FIELDS)}),
    ]
    min: Annotated[Instant | None, Meta(description="From: RFC 3339, a date, or Unix seconds")] = None
    max: Annotated[Instant | None, Meta(description="To: RFC 3339, a date, or Unix seconds")] = None
    include_children: ChildSets = True
    limit: Many = 1_000_000
    offset: Offset = 0


@tool.read("resource-metric-range", deadline_s=60)
class ResourceMetricRange(Params[EntryPage], frozen=True, kw_only=True):
    """Find the entries of a resource set whose metric lies in a range, both ends inclusive, largest first."""

    name: SetName
    metric: Annotated[
        str,
        Meta(
            description="size, disk_size (bytes), links, inode, or depth (directories above it)",
            extra_json_schema={"enum": list(METRIC_FIELDS)},
        ),
    ]
    min: Annotated[Whole | None, Meta(description="Least value")] = None
    max: Annotated[Whole | None, Meta(description="Greatest value")] = None
    include_children: ChildSets = True
    limit: Many = 1_000_000
    offset: Offset = 0


@tool.read("resource-is", deadline_s=60)
class ResourceIs(Params[EntryPage], frozen=True, kw_only=True):
    """Find the entries of a resource set of which a field has exactly this value."""

    name: SetName
    field: Annotated[str, Meta(description="Field to compare", extra_json_schema={"enum": list(EXACT_FIELDS)})]
    value: Annotated[str | Whole, Meta(description="Value it must have; an extension with or without its dot")]
    include_children: ChildSets = True
    limit: Many = 1_000_000
    offset: Offset = 0


@tool.read("resource-fuzzy-match", deadline_s=60)
class ResourceFuzzyMatch(Params[EntryPage], frozen=True, kw_only=True):
    """Find the entries of a resource set of which a field matches a pattern. `contains`, `prefix` and `suffix` take it
    literally; `regex` (RE2) finds it anywhere; `glob` must match the whole field, its `*` crosses `/`."""

    name: SetName
    field: Annotated[str, Meta(description="Field to search", extra_json_schema={"enum": list(TEXT_FIELDS)})]
    pattern: Annotated[str, Meta(max_length=8192, description="Pattern to match")]
    mode: Annotated[str, Meta(description="How to match", extra_json_schema={"enum": list(MODES)})] = "contains"
    case_sensitive: Annotated[bool, Meta(description="Whether case matters")] = False
    include_children: ChildSets = True
    limit: Many = 1_000_000
    offset: Offset = 0


@tool.read("resource-search", deadline_s=60)
class ResourceSearch(Filter, Params[EntryPage], frozen=True, kw_only=True):
    """Search a resource set by several criteria at once."""

    name: SetName
    include_children: Annotated[bool, Meta(description="Take in the sets below it, each entry once")] = False
    limit: Limit = 100
    offset: Offset = 0
