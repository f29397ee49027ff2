"""What the operations of `files` share: the types of paths, times and entries in their parameters and answers."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

SERVICE = "files"
SURFACES = ("files",)

Path = Annotated[str, Meta(min_length=1, max_length=32768, description="Absolute path")]
"""A path. Bytes that are not UTF-8 are characters from U+10FE80 to U+10FEFF: 0x10FE00 and the byte."""

Instant: TypeAlias = str | int | float
"""RFC 3339 with any offset, `YYYY-MM-DDTHH:MM` (UTC), a date, or Unix seconds."""

Kind = Literal["file", "directory", "symlink", "other"]

SetName = Annotated[str, Meta(min_length=1, max_length=1024, description="Name of a resource set")]

Limit = Annotated[int, Meta(ge=1, le=1_000_000, description="Entries to answer at most")]
Offset = Annotated[int, Meta(ge=0, le=2**53, description="Entries to pass over, for the next page")]


class FileEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file, directory or link as it is in the index."""

    path: str
    name: str
    kind: Kind
    size: Annotated[int, Meta(description="Bytes; of a directory, of all below it")]
    disk_size: Annotated[int, Meta(description="Bytes on the disk; of a directory, with all below it")]
    mtime: Annotated[str, Meta(description="Last change of the content, RFC 3339")]
    ctime: Annotated[str, Meta(description="Last change of the content or of name, owner or mode, RFC 3339")]
    added_at: Annotated[str | None, Meta(description="When it came into the resource set, RFC 3339")] = None
