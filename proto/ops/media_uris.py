"""Resources of `media`: what was made from contents, as `synthesis://metadata…`, in JSON, page by page."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from proto.operation import Access, Params, Resource, Role, operation
from proto.ops.files.shared import SURFACES, Offset
from proto.ops.files.uris import JSON, PAGED, PageLimit
from proto.ops.media import SERVICE, Hash, MediaArtifact


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


class MetadataRecords(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page of them, by hash."""

    metadata: list[MetadataRecord]
    total: int
    offset: int
    has_more: bool = False
    next: Annotated[str, Meta(description="The URI of the next page")] = ""


class ThumbnailRecord(MediaArtifact, frozen=True, kw_only=True):
    """A thumbnail, and the content that it is of."""

    hash: Hash


class ThumbnailRecords(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page of thumbnails, by hash."""

    thumbnails: list[ThumbnailRecord]
    total: int
    offset: int
    has_more: bool = False
    next: Annotated[str, Meta(description="The URI of the next page")] = ""


def resource(uri: str, name: str, *, paged: bool = False) -> dict[str, Any]:
    """What `@operation` is told of a resource at `synthesis://` and `uri`, in JSON."""
    return {
        "service": SERVICE, "access": Access.READ, "idempotent": True, "deadline_s": 30, "role": Role.RESOURCE,
        "surfaces": SURFACES,
        "resource": Resource(
            uri=f"synthesis://{uri}", name=name, mime_type=JSON, query=PAGED if paged else ()
        ),
    }  # fmt: skip


@operation("media_metadata", **resource("metadata", "metadata", paged=True))
class AllMetadata(Params[MetadataRecords], frozen=True, kw_only=True):
    """All that was made from files and is kept, by the hash of their content; `?offset=` and `?limit=` lead through."""

    offset: Offset = 0
    limit: PageLimit = 100


@operation("media_metadata_thumbnails", **resource("metadata/thumbnails", "metadata-thumbnails", paged=True))
class AllThumbnails(Params[ThumbnailRecords], frozen=True, kw_only=True):
    """All thumbnails that are kept; `?offset=` and `?limit=` lead through."""

    offset: Offset = 0
    limit: PageLimit = 100


@operation("media_metadata_of", **resource("metadata/{hash}", "metadata-by-hash"))
class MetadataOf(Params[MetadataRecord], frozen=True, kw_only=True):
    """What was made from files of one content, by its SHA-256."""

    hash: Hash
