"""Operations of `files` that make, fill and link resource sets."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from proto.operation import Params
from services.files.operations.shared import (
    Deleted,
    Description,
    FileEntry,
    Limit,
    Offset,
    Path,
    SetName,
    Summary,
    tool,
)

MAX_PATHS = 100_000
"""Most paths in one change."""


class ResourceSet(msgspec.Struct, frozen=True, kw_only=True):
    """A resource set; its counts exclude the sets below it."""

    name: str
    description: str
    entry_count: int
    child_count: int
    created_at: Annotated[str, Meta(description="RFC 3339")]
    updated_at: Annotated[str, Meta(description="RFC 3339")]


@tool.write("sets_create", idempotent=False, deadline_s=10)
class ResourceSetCreate(Params[ResourceSet], frozen=True, kw_only=True):
    """Create an empty resource set (a named group of files and of other sets) under a new name."""

    name: SetName
    description: Description = ""


class ResourceSets(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All resource sets, by name."""

    resource_sets: list[ResourceSet]
    total: int
    summary: Annotated[str | None, Meta(description="If not all fit: how many there are")] = None


@tool.read("sets_list", deadline_s=30)
class ResourceSetList(Params[ResourceSets], frozen=True, kw_only=True):
    """List all resource sets (named groups of files)."""


class ResourceSetDetails(ResourceSet, frozen=True, kw_only=True, omit_defaults=True):
    """A resource set, its links, and a page of its entries if requested."""

    children: Annotated[list[str], Meta(description="Names of the sets directly below it")]
    parents: Annotated[list[str], Meta(description="Names of the sets directly above it")]
    total_size: Annotated[int, Meta(description="Bytes of the files among its own entries")]
    entries: list[FileEntry] | None = None
    limit: int | None = None
    offset: int | None = None
    has_more: Annotated[bool | None, Meta(description="Whether more entries follow")] = None
    summary: Summary = None


@tool.read("sets_get", deadline_s=30)
class ResourceSetGet(Params[ResourceSetDetails], frozen=True, kw_only=True):
    """Read a resource set, and with `include_entries` its own files by path."""

    name: SetName
    include_entries: Annotated[bool, Meta(description="Return its entries too")] = False
    limit: Limit = 100
    offset: Offset = 0


class SetChanged(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a set changed."""

    name: str
    operation: str
    changed: Annotated[int, Meta(description="Entries added or removed")]
    unchanged: Annotated[int, Meta(description="Entries already in the set, or not in it")]
    entry_count: Annotated[int, Meta(description="Entries now in the set")]
    not_indexed: Annotated[list[Path], Meta(description="Paths to remove that are not indexed")] = []


@tool.write("sets_modify", idempotent=True, deadline_s=60)
class ResourceSetModify(Params[SetChanged], frozen=True, kw_only=True):
    """Add files of the index to a resource set or remove them from it, by path; all or none."""

    name: SetName
    operation: Annotated[Literal["add", "remove"], Meta(description="What to do with the paths")]
    paths: Annotated[list[Path], Meta(max_length=MAX_PATHS, description="Paths of the entries")]


@tool.destroy("sets_delete", idempotent=False, deadline_s=60)
class ResourceSetDelete(Params[Deleted], frozen=True, kw_only=True):
    """Delete a resource set; its files, and sets below it, stay."""

    name: SetName


class EdgeChanged(msgspec.Struct, frozen=True, kw_only=True):
    """A link between two sets."""

    parent: str
    child: str
    changed: Annotated[bool, Meta(description="False if nothing changed")]
    message: str


@tool.write("sets_add_child", idempotent=True, deadline_s=10)
class ResourceSetAddChild(Params[EdgeChanged], frozen=True, kw_only=True):
    """Put a resource set below another: nest them. Several parents are allowed, cycles are not."""

    parent: SetName
    child: SetName


@tool.write("sets_remove_child", idempotent=False, deadline_s=10)
class ResourceSetRemoveChild(Params[EdgeChanged], frozen=True, kw_only=True):
    """Remove a resource set from below another; both stay."""

    parent: SetName
    child: SetName
