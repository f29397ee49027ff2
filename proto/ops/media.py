"""Operations of `media`: what can be made from a file (a thumbnail, frames of a video) and said of it, by its content.

Everything is made once for each content, and kept under the content's hash. A file that cannot be decoded is a file
without a thumbnail; one that takes its decoder's life twice is not decoded again.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from linckia.proto.errors import Kind
from linckia.proto.http import CONTENT_PATH, FILE_CHUNK_BYTES, FileChunk
from linckia.proto.operation import CLIENT, OPERATOR, Family, Params, Role, Route
from linckia.proto.ops.pages import Page, Paged, resource

SERVICE = "media"

internal = Family(SERVICE, role=Role.INTERNAL, callers=("files", OPERATOR))
served = Family(SERVICE, role=Role.INTERNAL, callers=(CLIENT, OPERATOR), surfaces=("files",), within_roots=True)
lent = Family(SERVICE, role=Role.INTERNAL, callers=("decode",))


MAX_CHUNK_BYTES = FILE_CHUNK_BYTES

THUMBNAIL, POSTER, TIMELINE = "thumbnail", "video-poster", "video-timeline"
"""Types of artefacts; the poster of a video is its thumbnail as well."""

Hash = Annotated[
    str, Meta(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the file's content: 64 of the digits 0-9 and a-f")
]
Name = Annotated[str, Meta(pattern=r"^[a-z0-9_]{1,40}\.jpg$", description="Of an artefact, such as `thumb.jpg`")]


class MediaKind(enum.StrEnum):
    """What a file is, by its first bytes."""

    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"
    PDF = "pdf"
    TEXT = "text"
    OTHER = "other"


class MediaArtifact(msgspec.Struct, frozen=True, kw_only=True):
    """A picture that was made from a file."""

    name: Name
    type: Annotated[str, Meta(description="thumbnail, video-poster or video-timeline")]
    mime_type: str
    path: Annotated[str, Meta(description="What `media_content`, and so /api/content?path=, knows it by")]
    width: int
    height: int
    size: Annotated[int, Meta(description="Bytes")]
    metadata: Annotated[dict[str, Any], Meta(description="Of a frame of a video: its number and its time")]


class MediaInspection(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a file's content."""

    path: Annotated[str, Meta(description="The file's real path")]
    kind: MediaKind
    mime_type: str
    size: Annotated[int, Meta(description="Bytes")]
    hash: Annotated[str | None, Meta(description="SHA-256 of the content; null where nothing can be made from it")]
    metadata: Annotated[
        dict[str, Any],
        Meta(description="Dimensions, EXIF, duration, codecs, tags, pages, counts of a text: what this kind has"),
    ]
    artifacts: list[MediaArtifact]
    problem: Annotated[str | None, Meta(description="Why there is less than there could be")]


@internal.read("media_inspect", deadline_s=120)
class MediaInspect(Params[MediaInspection], frozen=True, kw_only=True):
    """Say what a file's content is, and make the pictures of it that are not there yet."""

    path: Annotated[str, Meta(min_length=1, max_length=4096, description="A file below the roots")]


class ArtifactContent(msgspec.Struct, frozen=True, kw_only=True):
    """An artefact."""

    mime_type: str
    data: bytes


class KnownThumbnails(msgspec.Struct, frozen=True, kw_only=True):
    """Of each file what its thumbnail is known by; empty where none was made yet."""

    paths: list[str]


@internal.read("media_thumbnails", deadline_s=10)
class MediaThumbnails(Params[KnownThumbnails], frozen=True, kw_only=True):
    """Which files have a thumbnail already; nothing is read or made."""

    versions: Annotated[
        list[Annotated[str, Meta(max_length=200)]],
        Meta(max_length=10_000, description="Of each its device, inode, size, mtime and ctime in ns, joined by `-`"),
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
    """Shorter than it was asked for only at the end of the file."""

    data: bytes


@lent.read("media_bytes", deadline_s=30)
class MediaBytes(Params[FilePart], frozen=True, kw_only=True):
    """Read a part of a file that is being decoded, for as long as it is."""

    hash: Hash
    offset: Annotated[int, Meta(ge=0)]
    limit: Annotated[int, Meta(ge=1, le=MAX_CHUNK_BYTES)]


# What was made from contents, as resources `synthesis://metadata…`, page by page


class MetadataRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of a content, wherever files have it."""

    hash: Hash
    uri: Annotated[str, Meta(description="synthesis://metadata/ and the hash")]
    metadata: Annotated[
        dict[str, Any],
        Meta(description="Dimensions, EXIF, duration, codecs, tags, pages, counts of a text: what this kind has"),
    ]
    artifacts: Annotated[list[MediaArtifact], Meta(description="/api/content?path= and `path` serves one")]
    used_at: Annotated[str, Meta(description="When it was last asked for, RFC 3339")]
    problem: Annotated[str | None, Meta(description="Why there is less than there could be")] = None


class MetadataRecords(Page, frozen=True, kw_only=True):
    """A page of them, by hash."""

    metadata: list[MetadataRecord]


class ThumbnailRecord(MediaArtifact, frozen=True, kw_only=True):
    """A thumbnail, and the content that it is of."""

    hash: Hash


class ThumbnailRecords(Page, frozen=True, kw_only=True):
    """A page of thumbnails, by hash."""

    thumbnails: list[ThumbnailRecord]


@resource("media_metadata", "metadata", "metadata")
class AllMetadata(Paged, Params[MetadataRecords], frozen=True, kw_only=True):
    """All that was made from files and is kept, by the hash of their content; `?offset=` and `?limit=` lead through."""


@resource("media_metadata_thumbnails", "metadata/thumbnails", "metadata-thumbnails")
class AllThumbnails(Paged, Params[ThumbnailRecords], frozen=True, kw_only=True):
    """All thumbnails that are kept; `?offset=` and `?limit=` lead through."""


@resource("media_metadata_of", "metadata/{hash}", "metadata-by-hash")
class MetadataOf(Params[MetadataRecord], frozen=True, kw_only=True):
    """What was made from files of one content, by its SHA-256."""

    hash: Hash
