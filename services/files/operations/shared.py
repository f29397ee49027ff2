"""Types shared by the operations of `files`: paths, times and entries."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from proto.operation import Family, Role
from proto.ops.pages import Offset

tool = Family("files", surfaces=("files",))
within = Family("files", surfaces=("files",), within_roots=True)
"""Operations whose result depends only on the given paths and the files below them."""
step = Family("files", role=Role.STEP, within_roots=True)
"""The same as steps of the composite tools only: a longer list costs every client."""
whole_step = Family("files", role=Role.STEP)
"""Steps that answer from the whole index."""

Path = Annotated[str, Meta(min_length=1, max_length=32768, description="Absolute path")]
"""A path. Bytes that are not UTF-8 map to the characters U+10FE80 to U+10FEFF: 0x10FE00 plus the byte."""

Instant: TypeAlias = str | int | float
"""RFC 3339 with any offset, `YYYY-MM-DDTHH:MM` (UTC), a date, or Unix seconds."""

Kind = Literal["file", "directory", "symlink", "other"]

SetName = Annotated[str, Meta(min_length=1, max_length=1024, description="Resource set")]

Description = Annotated[str, Meta(max_length=65_536, description="What it is for")]

Limit = Annotated[int, Meta(ge=1, le=1_000_000, description="Entries at most")]


class FileEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An indexed file, directory or link."""

    path: str
    name: str
    kind: Kind
    size: Annotated[int, Meta(description="Bytes; of a directory, of all below it")]
    disk_size: Annotated[int, Meta(description="Bytes on the disk; of a directory, with all below it")]
    mtime: Annotated[str, Meta(description="Last change of the content, RFC 3339")]
    ctime: Annotated[str, Meta(description="Last change of the content or of name, owner or mode, RFC 3339")]
    added_at: Annotated[str | None, Meta(description="When it joined the resource set, RFC 3339")] = None


Summary = Annotated[str | None, Meta(description="If the page is too long: the totals, and how to continue")]


class EntryPage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page of entries."""

    entries: list[FileEntry]
    total_count: Annotated[int, Meta(description="Number that match, on all pages")]
    returned_count: int
    offset: int
    limit: int
    has_more: Annotated[bool, Meta(description="Whether more follow")]
    summary: Summary = None


Whole = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class Filter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Criteria for entries."""

    kind: Annotated[Kind | None, Meta(description="file, directory, symlink or other")] = None
    extension: Annotated[str, Meta(max_length=256, description="`.jpg` or `jpg`, in either case")] | None = None
    path_contains: Annotated[str, Meta(max_length=8192, description="Part of the path, in either case")] | None = None
    name_contains: Annotated[str, Meta(max_length=8192, description="Part of the name, in either case")] | None = None
    min_size: Annotated[Whole | None, Meta(description="Least size in bytes")] = None
    max_size: Annotated[Whole | None, Meta(description="Greatest size in bytes")] = None
    min_mtime: Annotated[Instant | None, Meta(description="Changed then or later: RFC 3339, date, `last week`")] = None
    max_mtime: Annotated[Instant | None, Meta(description="Changed then or earlier; of a date, all day")] = None
    sort_by: Annotated[Literal["size", "name", "mtime", "ctime", "path"], Meta(description="Sort field")] = "size"
    sort_desc: Annotated[bool, Meta(description="Sort descending")] = True


class Deleted(msgspec.Struct, frozen=True, kw_only=True):
    """The deleted item."""

    name: str
    deleted: bool
    message: str


__all__ = ["Deleted", "Description", "EntryPage", "FileEntry", "Filter", "Instant", "Kind", "Limit", "Offset", "Path"]
__all__ += ["SetName", "Summary", "Whole", "tool"]
