"""Operations of `media`: artefacts (thumbnails, frames of a video) and metadata of files, by content.

Everything is made once per content and stored under the content's hash. A file that cannot be decoded has no thumbnail;
one that kills its decoder twice is not decoded again.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from proto.errors import Kind
from proto.http import CONTENT_PATH, FILE_CHUNK_BYTES, FileChunk
from proto.operation import CLIENT, OPERATOR, Family, Params, Role, Route, SaidIfAny
from proto.ops.pages import Page, Paged, resource

SERVICE = "media"

internal = Family(SERVICE, role=Role.INTERNAL, callers=("files", OPERATOR))
served = Family(SERVICE, role=Role.INTERNAL, callers=(CLIENT, OPERATOR), surfaces=("files",), within_roots=True)
lent = Family(SERVICE, role=Role.INTERNAL, callers=("decode",))

MAX_CHUNK_BYTES = FILE_CHUNK_BYTES
MAX_PART_BYTES = 1024 * 1024

THUMBNAIL, POSTER, TIMELINE = "thumbnail", "video-poster", "video-timeline"
"""Types of artefacts; the poster of a video is also its thumbnail."""

Hash = Annotated[
    str, Meta(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the file's content: 64 of the digits 0-9 and a-f")
]
Name = Annotated[str, Meta(pattern=r"^[a-z0-9_]{1,40}\.jpg$", description="Name of an artefact, such as `thumb.jpg`")]


class MediaKind(enum.StrEnum):
    """Kind of a file, judged by its first bytes."""

    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"
    PDF = "pdf"
    TEXT = "text"
    OTHER = "other"


class MediaArtifact(msgspec.Struct, frozen=True, kw_only=True):
    """A picture made from a file."""

    name: Name
    type: Annotated[str, Meta(description="thumbnail, video-poster or video-timeline")]
    mime_type: str
    path: Annotated[str, Meta(description="Its `path` for media_content and /api/content?path=")]
    width: int
    height: int
    size: Annotated[int, Meta(description="Bytes")]
    metadata: Annotated[dict[str, Any], Meta(description="For a frame of a video: its number and time"), SaidIfAny]


class MediaInspection(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata and artefacts of a file's content."""

    path: Annotated[str, Meta(description="The file's real path")]
    kind: MediaKind
    mime_type: str
    size: Annotated[int, Meta(description="Bytes")]
    hash: Annotated[str | None, Meta(description="SHA-256 of the content; null if nothing can be made from it")]
    metadata: Annotated[
        dict[str, Any],
        Meta(description="Dimensions, EXIF, duration, codecs, tags, pages, counts of a text: as this kind has them"),
    ]
    artifacts: list[MediaArtifact]
    problem: Annotated[str | None, Meta(description="Why something is missing")]


@internal.read("media_inspect", deadline_s=120)
class MediaInspect(Params[MediaInspection], frozen=True, kw_only=True):
    """Describe a file's content, and make its missing artefacts."""

    path: Annotated[str, Meta(min_length=1, max_length=4096, description="A file below the roots")]


class ArtifactContent(msgspec.Struct, frozen=True, kw_only=True):
    """An artefact."""

    mime_type: str
    data: bytes


class KnownThumbnails(msgspec.Struct, frozen=True, kw_only=True):
    """Path of each file's thumbnail; empty if none was made yet."""

    paths: list[str]


@internal.read("media_thumbnails", deadline_s=10)
class MediaThumbnails(Params[KnownThumbnails], frozen=True, kw_only=True):
    """Find existing thumbnails; nothing is read or made."""

    versions: Annotated[
        list[Annotated[str, Meta(max_length=200)]],
        Meta(
            max_length=10_000, description="For each file its device, inode, size, mtime and ctime in ns, joined by `-`"
        ),
    ]


@internal.read("media_artifact", deadline_s=30)
class MediaArtifactParams(Params[ArtifactContent], frozen=True, kw_only=True):
    """Read an artefact that `media_inspect` named."""

    hash: Hash
    name: Name


class ContentChunk(FileChunk, frozen=True, kw_only=True):
    """A part of a file, or of an artefact."""


@served.read("media_content", deadline_s=60, http=Route("GET", CONTENT_PATH, file=True, statuses={Kind.OPERATION: 404}))
class MediaContent(Params[ContentChunk], frozen=True, kw_only=True):
    """Read a part of a file below the roots, or of an artefact."""

    path: Annotated[str, Meta(min_length=1, max_length=4096, description="A file's path, or an artefact's")]
    offset: Annotated[int, Meta(ge=0)] = 0
    limit: Annotated[int, Meta(ge=0, le=MAX_CHUNK_BYTES)] = MAX_CHUNK_BYTES


class FilePart(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a file; shorter than `limit` only at its end."""

    data: bytes


@lent.read("media_bytes", deadline_s=30)
class MediaBytes(Params[FilePart], frozen=True, kw_only=True):
    """Read a part of a file while it is being decoded."""

    hash: Hash
    offset: Annotated[int, Meta(ge=0)]
    limit: Annotated[int, Meta(ge=1, le=MAX_PART_BYTES)]


# Artefacts and metadata as resources `synthesis://metadata…`, page by page


class MetadataRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Metadata and artefacts of a content, whatever files have it."""

    hash: Hash
    uri: Annotated[str, Meta(description="synthesis://metadata/ and the hash")]
    metadata: Annotated[
        dict[str, Any],
        Meta(description="Dimensions, EXIF, duration, codecs, tags, pages, counts of a text: as this kind has them"),
    ]
    artifacts: Annotated[list[MediaArtifact], Meta(description="/api/content?path= and `path` serves one")]
    used_at: Annotated[str, Meta(description="Last request, RFC 3339")]
    problem: Annotated[str | None, Meta(description="Why something is missing")] = None


class MetadataRecords(Page, frozen=True, kw_only=True):
    """A page of records, by hash."""

    metadata: list[MetadataRecord]


class ThumbnailRecord(MediaArtifact, frozen=True, kw_only=True):
    """A thumbnail and the hash of its content."""

    hash: Hash


class ThumbnailRecords(Page, frozen=True, kw_only=True):
    """A page of thumbnails, by hash."""

    thumbnails: list[ThumbnailRecord]


@resource("media_metadata", "metadata", "metadata")
class AllMetadata(Paged, Params[MetadataRecords], frozen=True, kw_only=True):
    """All stored artefacts and metadata, by content hash; page with `?offset=` and `?limit=`."""


@resource("media_metadata_thumbnails", "metadata/thumbnails", "metadata-thumbnails")
class AllThumbnails(Paged, Params[ThumbnailRecords], frozen=True, kw_only=True):
    """All stored thumbnails; page with `?offset=` and `?limit=`."""


@resource("media_metadata_of", "metadata/{hash}", "metadata-by-hash")
class MetadataOf(Params[MetadataRecord], frozen=True, kw_only=True):
    """Artefacts and metadata of one content, by its SHA-256."""

    hash: Hash
