"""Operations of `documents` that store contents piece by piece, from `fetch`."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from proto.operation import OPERATOR, Family, Params, Role, SaidIfAny
from proto.ops.documents.reading import (
    SERVICE,
    Collection,
    Metadata,
    Tag,
)
from proto.outcomes import PerItem

internal = Family(SERVICE, role=Role.INTERNAL, callers=("fetch", OPERATOR))

NewTags = Annotated[list[Tag], Meta(max_length=256, description="Tags to give")]
MimeType = Annotated[
    str, Meta(max_length=255, pattern=r"^[^/\s]+/[^/\s]+(;.*)?$", description="Such as text/plain, if known")
]
SessionToAdd = Annotated[
    str, Meta(max_length=128, description="Id or label of a session; by default the one you started")
]
Sha256 = Annotated[
    str, Meta(pattern=r"^[0-9a-fA-F]{64}$", description="SHA-256 that the content must have: 64 hexadecimal digits")
]
DocumentPath = Annotated[str, Meta(min_length=1, max_length=4096)]
UploadId = Annotated[str, Meta(min_length=1, max_length=64)]


class AddResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was stored; it is on disk, and list, get, grep and search by words find it."""

    per_item: ClassVar = PerItem(done=("files",), failed="failed_count", details="failed")

    hash: Annotated[str, Meta(description="Of the content; null for a directory")] | None
    path: str
    name: str
    size: Annotated[int, Meta(description="Bytes; of a directory, of all its files")]
    is_new: Annotated[bool, Meta(description="Whether this content was not stored before")]
    documents_added: Annotated[int, Meta(description="New paths")]
    documents_updated: Annotated[int, Meta(description="Paths whose content changed")]
    documents_unchanged: int
    files: Annotated[int, Meta(description="Files stored, now or before")]
    bytes_stored: Annotated[int, Meta(description="Bytes of new contents")]
    failed: Annotated[list[str], Meta(description="Files that could not be read, and why (the first 100)"), SaidIfAny]
    failed_count: int
    skipped: Annotated[int, Meta(description="Links and special files, which are not stored")]
    snapshot_id: Annotated[str, Meta(description="Of a directory")] | None
    text_waiting: Annotated[int, Meta(description="Contents whose text is still being extracted")]
    ignored: Annotated[
        dict[str, int], Meta(description="Of a directory: folders left out by name, as .git and node_modules; how many")
    ] = {}
    without_text: Annotated[
        list[str], Meta(description="Files without text, or not all of it, and why (the first 100)")
    ] = []


class UploadBegun(msgspec.Struct, frozen=True, kw_only=True):
    """An upload to send pieces to."""

    upload_id: str


@internal.write("documents_put_begin", idempotent=True, deadline_s=30)
class DocumentsPutBegin(Params[UploadBegun], frozen=True, kw_only=True):
    """Begin an upload that comes in pieces; nothing is stored until it is committed. It is dropped if nothing
    arrives for an hour, or when this service dies."""

    path: Annotated[str, Meta(min_length=1, max_length=4096, description="The document's path, a URL say")]
    name: Annotated[DocumentPath | None, Meta(description="Its name; the path's last part")] = None
    tags: NewTags = []
    metadata: Annotated[Metadata, Meta(description="Values to give")] = {}
    collection: Collection | None = None
    mimeType: Annotated[str, Meta(max_length=255, description="MIME type, if known")] | None = None
    session: Annotated[str, Meta(max_length=128, description="Session to add to")] | None = None


class UploadProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far an upload is."""

    received: Annotated[int, Meta(description="Bytes")]


@internal.write("documents_put_piece", idempotent=True, deadline_s=60)
class DocumentsPutPiece(Params[UploadProgress], frozen=True, kw_only=True):
    """Add the next piece of an upload; a repeated piece is ignored."""

    upload_id: UploadId
    offset: Annotated[int, Meta(ge=0, description="Bytes before this piece")]
    data: Annotated[bytes, Meta(description="1 MiB at most")]


@internal.write("documents_put_commit", idempotent=True, deadline_s=120)
class DocumentsPutCommit(Params[AddResult], frozen=True, kw_only=True):
    """Store the upload as a document, once every byte has arrived; committing twice returns the same result."""

    upload_id: UploadId
    size: Annotated[int, Meta(ge=0, description="Bytes that were sent")]
    sha256: Sha256 | None = None
    mimeType: Annotated[str, Meta(max_length=255, description="MIME type, if known only now")] | None = None
    name: Annotated[str, Meta(min_length=1, max_length=4096, description="If known only now")] | None = None
    metadata: Annotated[Metadata, Meta(description="More values to give")] = {}


class UploadAbandoned(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the upload existed."""

    was_there: bool


@internal.write("documents_put_abandon", idempotent=True, deadline_s=30)
class DocumentsPutAbandon(Params[UploadAbandoned], frozen=True, kw_only=True):
    """Drop an upload."""

    upload_id: UploadId
