"""Operations of `files` that read the index, entry by entry, and examine its database."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from proto.operation import Params, SaidIfAny
from services.files.operations.shared import Kind, Offset, Path, Summary, tool, within


class NavigateEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An entry of the directory."""

    name: str
    path: str
    size: Annotated[int, Meta(description="Bytes; of a directory, of all below it")]
    kind: Kind
    mtime: Annotated[str, Meta(description="Last change, RFC 3339")]
    thumbnail_url: Annotated[str | None, Meta(description="URL of its thumbnail, if it exists yet")] = None


class NavigateResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A page of a directory."""

    path: str
    entries: list[NavigateEntry]
    total: Annotated[int, Meta(description="Entries of the directory, whatever the page")]
    has_more: Annotated[bool, Meta(description="Whether more follow"), SaidIfAny]
    summary: Summary = None
    scanning: Annotated[int | None, Meta(description="The job now scanning here: some entries may be missing")] = None


@within.read("files_browse", surfaces=("files",), deadline_s=30)
class Navigate(Params[NavigateResult], frozen=True, kw_only=True):
    """Browse a folder: list its direct entries, as `ls` does, by name, largest or latest first, page by page.
    Needs files_index before. Details of one file: files_inspect; the largest of all below: disk_top_files."""

    path: Annotated[Path, Meta(description="Directory to list")]
    limit: Annotated[int, Meta(ge=1, le=1_000_000, description="Entries at most")] = 100
    offset: Offset = 0
    sort: Annotated[Literal["name", "size", "mtime"], Meta(description="name in either case, size or mtime")] = "name"
    desc: Annotated[bool, Meta(description="Sort descending")] = False


class Artifact(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An artefact made from a file."""

    type: Annotated[str, Meta(description="thumbnail, video-timeline, metadata, …")]
    mime_type: str
    url: Annotated[str, Meta(description="Its URL; only the path if HTTP is off")]
    metadata: dict[str, Any] | None = None


class InspectResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Details of a file or directory."""

    path: str
    kind: Kind
    size: Annotated[int, Meta(description="Bytes; of a directory, of all below it")]
    disk_size: Annotated[int, Meta(description="Bytes on the disk; of a directory, with all below it")]
    modified_at: Annotated[str, Meta(description="RFC 3339")]
    created_at: Annotated[str, Meta(description="RFC 3339; else the last status change, if not recorded")]
    changed_at: Annotated[str, Meta(description="Last change of content, name, owner or mode, RFC 3339")]
    scanned_at: Annotated[str, Meta(description="Last comparison with the disk, RFC 3339")]
    inode: int
    links: Annotated[int, Meta(description="Number of hard links")]
    resource_uri: str
    metadata_uri: str
    metadata_count: int
    metadata: list[Artifact]
    extension: str | None = None
    mime_type: Annotated[str | None, Meta(description="By its extension")] = None
    files: Annotated[int | None, Meta(description="Files below a directory")] = None
    directories: Annotated[int | None, Meta(description="Directories below a directory")] = None
    target: Annotated[str | None, Meta(description="Where a symbolic link points")] = None
    thumbnail_uri: Annotated[str | None, Meta(description="URL of its thumbnail")] = None
    timeline_uri: Annotated[str | None, Meta(description="URL of the first frame of a video")] = None
    problem: Annotated[str | None, Meta(description="Why a directory could not be read")] = None


@within.read("files_inspect", surfaces=("files",), deadline_s=60)
class Inspect(Params[InspectResult], frozen=True, kw_only=True):
    """Inspect one file or folder: size, times, thumbnail, frames of a video, EXIF and other metadata. Contents of a
    folder: files_browse."""

    path: Annotated[Path, Meta(description="File or directory to inspect")]


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """State of the database."""

    database_path: str
    database_size: Annotated[int, Meta(description="Bytes, with its log")]
    integrity_check: Annotated[str, Meta(description="`ok`, or the problem SQLite found")]
    entry_count: int
    resource_set_count: int
    orphaned_entries: Annotated[int, Meta(description="Entries in no directory")]
    stale_entries: Annotated[int, Meta(description="Entries not scanned in the last hour")]
    wrong_sums: Annotated[int, Meta(description="Directories whose sums do not match their contents")]
    rebuilt: Annotated[bool, Meta(description="Whether the database was damaged at the start and rebuilt")]


@tool.read("files_diagnose", deadline_s=600)
class DbDiagnose(Params[Diagnosis], frozen=True, kw_only=True):
    """Diagnose the database of the file index."""


class SessionInfoResult(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the index, and the session's preferences."""

    database_path: str
    database_size: Annotated[int, Meta(description="Bytes, with its log")]
    entry_count: int
    resource_set_count: int
    source_count: int
    plan_count: int
    query_count: int
    roots: Annotated[list[str], Meta(description="Folders that may be indexed and changed")]
    preferences: Annotated[dict[str, Any], Meta(description="Of this session")]


@tool.read("preferences_get", deadline_s=30)
class SessionInfo(Params[SessionInfoResult], frozen=True, kw_only=True):
    """The file index: where, how large; and this session's preferences."""


class Preferences(msgspec.Struct, frozen=True, kw_only=True):
    """All current preferences of the session."""

    preferences: dict[str, Any]


@tool.write("preferences_set", idempotent=True, deadline_s=30)
class SessionSetPreferences(Params[Preferences], frozen=True, kw_only=True):
    """Set preferences for this session, read back by preferences_get; null removes one."""

    preferences: Annotated[dict[str, Any], Meta(description='As {"default_sort": "size"}')]
