"""Operations of `files` on disk usage: treemaps, largest entries, duplicates, growth, age and type."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from proto.mcp import Content
from proto.operation import CLIENT, OPERATOR, Family, Params, Role
from services.files.operations.shared import FileEntry, Instant, Kind, Limit, Offset, Path, within

shown = Family("files", role=Role.INTERNAL, callers=(CLIENT, OPERATOR), surfaces=("files",), within_roots=True)
"""Operations for programs such as the operator's page, which no list of tools has."""

Measure = Annotated[Literal["apparent", "disk"], Meta(description="Size, or space on disk")]


@within.read("disk_treemap", deadline_s=60)
class DiskTreemap(Params[Content], frozen=True, kw_only=True, rename="camel"):
    """Draw a picture (treemap, SVG or PNG) of what takes the space below an indexed folder. As a list:
    disk_top_folders."""

    path: Annotated[Path, Meta(description="Indexed directory")]
    format: Annotated[Literal["svg", "png"], Meta(description="PNG is for models")] = "png"
    depth: Annotated[int, Meta(ge=1, le=12, description="Levels of directories")] = 3
    width: Annotated[int, Meta(ge=64, le=4096, description="Pixels")] = 1024
    height: Annotated[int, Meta(ge=64, le=4096, description="Pixels")] = 768
    measure: Measure = "apparent"


class _Largest(msgspec.Struct, frozen=True, kw_only=True):
    path: Annotated[Path, Meta(description="Indexed directory")]
    limit: Limit = 20
    offset: Offset = 0
    measure: Measure = "apparent"


class TopEntries(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Entries, largest first."""

    path: str
    entries: list[FileEntry]
    total: Annotated[int, Meta(description="Number in all")]
    has_more: bool = False
    summary: str | None = None


@within.read("disk_top_files", deadline_s=30)
class TopFiles(_Largest, Params[TopEntries], frozen=True, kw_only=True, rename="camel"):
    """List the largest files below an indexed folder: what takes up the space on the disk."""


@within.read("disk_top_folders", deadline_s=30)
class TopDirectories(_Largest, Params[TopEntries], frozen=True, kw_only=True, rename="camel"):
    """List the largest folders below an indexed folder, each with its contents."""

    depth: Annotated[Annotated[int, Meta(ge=1, le=1000)] | None, Meta(description="Levels below; null: all")] = None


class Duplicates(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Files with the same content."""

    size: Annotated[int, Meta(description="Bytes of each")]
    paths: Annotated[list[str], Meta(description="One per inode; hard links are not duplicates")]
    wasted: Annotated[int, Meta(description="Bytes that one copy would save")]


class DuplicateGroups(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Groups of equal files, the most wasteful first."""

    groups: list[Duplicates]
    total: Annotated[int, Meta(description="Groups found")]
    wasted: Annotated[int, Meta(description="Bytes saved in all")]
    compared: Annotated[int, Meta(description="Files whose content was read, wholly or in part")]
    unreadable: Annotated[int, Meta(description="Files that could not be read or changed meanwhile")] = 0
    has_more: bool = False
    summary: str | None = None


@within.read("files_duplicates", deadline_s=3600)
class FindDuplicates(Params[DuplicateGroups], frozen=True, kw_only=True, rename="camel"):
    """Find duplicate files (the same content) below an indexed folder, by size and hash; pictures too. Similar notes:
    notes_gaps."""

    path: Annotated[Path, Meta(description="Indexed directory")]
    min_size: Annotated[int, Meta(ge=0, le=2**62, description="Leave out smaller files, in bytes")] = 1
    limit: Annotated[int, Meta(ge=1, le=100_000, description="Groups at most")] = 100
    offset: Offset = 0


class Growth(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """How a directory changed."""

    path: str
    before: Annotated[int, Meta(description="Bytes then; 0 if missing")]
    after: Annotated[int, Meta(description="Bytes at the later time; 0 if gone")]
    change: int
    files_before: int
    files_after: int


class Comparison(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Growth by directory, the largest changes first."""

    path: str
    since: Annotated[str, Meta(description="End of the earlier scan, RFC 3339")]
    until: Annotated[str, Meta(description="End of the later one; absent for the current index")] = ""
    change: Annotated[int, Meta(description="Bytes, of the whole")]
    before: int
    after: int
    files_before: int
    files_after: int
    directories: list[Growth]
    total: Annotated[int, Meta(description="Directories that changed")]
    has_more: bool = False
    scans: Annotated[list[str], Meta(description="Ends of comparable scans, newest first")]


@within.read("disk_compare", deadline_s=60)
class CompareScans(Params[Comparison], frozen=True, kw_only=True, rename="camel"):
    """How folders grew or shrank between scans: what filled the disk since a date. Growth only; versions of documents:
    documents_snapshots."""

    path: Annotated[Path, Meta(description="Indexed directory")]
    since: Annotated[
        Instant | None, Meta(description="The last scan by then, else the first after; null: the one before")
    ] = None
    until: Annotated[Instant | None, Meta(description="The last scan by then; null: now")] = None
    depth: Annotated[int, Meta(ge=0, le=1000, description="Levels of directories")] = 3
    limit: Annotated[int, Meta(ge=1, le=100_000, description="Directories at most")] = 100
    offset: Offset = 0


class FileSystem(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A mounted file system."""

    path: Annotated[str, Meta(description="Where it is mounted")]
    kind: str
    source: str
    size: int
    used: int
    free: Annotated[int, Meta(description="Writable bytes")]
    inodes: int
    free_inodes: int
    roots: Annotated[list[str], Meta(description="Roots of this server on it")]


class FileSystems(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """File systems of the roots, or mounted below them."""

    file_systems: list[FileSystem]


@within.read("disk_free", deadline_s=30)
class DiskFree(Params[FileSystems], frozen=True, kw_only=True, rename="camel"):
    """Free space of each file system of the roots."""


class Share(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Files with something in common."""

    name: Annotated[str, Meta(description="An age, a media type, or an extension")]
    count: int
    size: int


class SpaceSummary(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Files below a directory, summed up."""

    path: str
    size: int
    disk_size: int
    files: int
    directories: int
    by_age: Annotated[list[Share], Meta(description="By last change, newest first")]
    by_type: Annotated[list[Share], Meta(description="By media type, largest first")]
    by_extension: Annotated[list[Share], Meta(description="Largest first; files without one have an empty name")]
    more_extensions: Annotated[int, Meta(description="Extensions left out")] = 0


@within.read("disk_summary", deadline_s=60)
class SpaceSummaryOf(Params[SpaceSummary], frozen=True, kw_only=True, rename="camel"):
    """Sum up the files below an indexed folder by age, media type and extension."""

    path: Annotated[Path, Meta(description="Indexed directory")]
    extensions: Annotated[int, Meta(ge=1, le=1000, description="Extensions at most")] = 20


class MapEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An entry of a folder; the sizes of a folder include everything below it."""

    name: str
    kind: Kind
    size: int
    disk_size: int
    mtime: Annotated[str, Meta(description="Last change, RFC 3339")]
    files: Annotated[int, Meta(description="Files below a folder")] = 0
    inside: Annotated[list[MapEntry], Meta(description="The largest entries of a folder")] = []


class FolderMap(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A folder with everything below it, and a page of its entries."""

    path: str
    size: int
    disk_size: Annotated[int, Meta(description="Bytes on the disk")]
    files: int
    directories: int
    scanned_at: Annotated[str, Meta(description="Last comparison with the disk, RFC 3339")]
    entries: list[MapEntry]
    total: Annotated[int, Meta(description="Entries of the folder, whatever the page")]
    next_offset: Annotated[int | None, Meta(description="Value of `offset` for the next page")] = None


@shown.read("disk_map", deadline_s=30)
class DiskMap(Params[FolderMap], frozen=True, kw_only=True, rename="camel"):
    """Return a page of an indexed folder's entries, with the largest entries of its largest folders."""

    path: Annotated[Path, Meta(description="Indexed directory")]
    measure: Measure = "apparent"
    sort: Literal["name", "size", "mtime"] = "size"
    desc: Annotated[bool, Meta(description="Sort descending")] = True
    limit: Annotated[int, Meta(ge=1, le=1000, description="Entries at most")] = 500
    offset: Offset = 0
    inside: Annotated[int, Meta(ge=0, le=64, description="Folders whose largest entries are returned too")] = 0
