"""Resources of `media`: what was made from contents, as `synthesis://metadata…`, in JSON, page by page."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from proto.operation import Params
from proto.ops.media import Hash, MediaArtifact
from proto.ops.pages import Page, Paged, resource


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
