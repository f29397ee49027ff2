"""Operations of `documents` that list documents, collections and snapshots, and tell how full the store is."""

from __future__ import annotations

import enum
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from proto.operation import Params, SaidIfAny
from proto.ops.documents.reading import (
    Collection,
    Document,
    Extension,
    Hash,
    Metadata,
    MimeType,
    Session,
    Snapshot,
    Tags,
    Under,
    step,
)


class SortBy(enum.StrEnum):
    """Sort field."""

    NAME = "name"
    SIZE = "size"
    CREATED = "created"
    MODIFIED = "modified"
    INDEXED = "indexed"


class ListResult(msgspec.Struct, frozen=True, kw_only=True):
    """A page of documents, and the total."""

    total: Annotated[int, Meta(description="Matching documents, on all pages")]
    documents: list[Document]
    paths: Annotated[list[str] | None, Meta(description="With `paths_only`, instead of documents")]
    truncated: Annotated[bool, Meta(description="Whether more documents follow"), SaidIfAny]
    next_offset: Annotated[int | None, Meta(description="Value of `offset` for the next page")]


@step.read("documents_list", deadline_s=30)
class DocumentsList(Params[ListResult], frozen=True, kw_only=True):
    """List stored documents, filtered and sorted by name, size, time, type, tag or collection; the most `recent`.
    Files on disk: files_browse."""

    taken: ClassVar = {"name": "pattern", "use_session": "", "include_diff": ""}
    limit: Annotated[int, Meta(ge=1, le=1_000_000, description="Documents at most")] | None = None
    offset: Annotated[int, Meta(ge=0, description="Documents to skip")] = 0
    sort_by: SortBy | None = None
    sort_order: Literal["asc", "desc"] | None = None
    recent: Annotated[int, Meta(ge=1, description="Only this many of the latest added")] | None = None
    type: Literal["text", "binary"] | None = None
    extension: Extension | None = None
    mime_type: MimeType | None = None
    paths_only: Annotated[bool, Meta(description="Return only paths")] = False
    pattern: Annotated[str, Meta(max_length=4096, description="Glob that the name or the path matches")] | None = None
    path: Under | None = None
    tags: Tags = []
    collection: Collection | None = None
    metadata: Annotated[Metadata, Meta(description="Only documents whose metadata has all of these values")] = {}
    session: Session | None = None
    hash: Hash | None = None


class TypeCount(msgspec.Struct, frozen=True, kw_only=True):
    """Number of documents of a type."""

    type: str
    documents: int
    bytes: int


class StatusResult(msgspec.Struct, frozen=True, kw_only=True):
    """The store in numbers."""

    total_objects: Annotated[int, Meta(description="Documents")]
    total_bytes: Annotated[int, Meta(description="Their sizes, added up")]
    unique_objects: Annotated[int, Meta(description="Different contents")]
    unique_blocks: Annotated[int, Meta(description="Blocks of contents; large ones are stored in several")]
    deduplicated_bytes: Annotated[int, Meta(description="Bytes saved because they were stored already")]
    dedup_ratio: Annotated[float, Meta(description="deduplicated_bytes / total_bytes")]
    stored_bytes: Annotated[int, Meta(description="Bytes of the compressed blocks")]
    disk_bytes: Annotated[int, Meta(description="Bytes of the databases on disk")]
    collections: int
    snapshots: int
    extraction_waiting: Annotated[int, Meta(description="Contents waiting for text extraction")]
    index_waiting: Annotated[int, Meta(description="Contents waiting for the index (still found)")]
    search_waiting: Annotated[int, Meta(description="Contents waiting for the search")]
    graph_waiting: Annotated[int, Meta(description="Documents waiting for the graph")]
    vectors_waiting: Annotated[int | None, Meta(description="Passages waiting for their vector; null: unknown")]
    quarantined: Annotated[int, Meta(description="Contents whose text could not be extracted")]
    file_types: Annotated[list[TypeCount] | None, Meta(description="By extension, with `file_types`")]
    mime_types: Annotated[list[TypeCount] | None, Meta(description="By MIME type, with `detailed`")]
    quarantine: Annotated[list[str] | None, Meta(description="Which and why, with `detailed`")]
    degraded: Annotated[list[str], SaidIfAny]


@step.read("documents_status", deadline_s=30)
class DocumentsStatus(Params[StatusResult], frozen=True, kw_only=True):
    """Size of the document store, what deduplication saves, what still waits to be indexed. Health of services:
    kernel_status."""

    taken: ClassVar = {"verbose": "detailed"}
    detailed: Annotated[bool, Meta(description="By MIME type, and unreadable contents")] = False
    file_types: Annotated[bool, Meta(description="By extension")] = False


class CollectionCount(msgspec.Struct, frozen=True, kw_only=True):
    """A collection and its size."""

    name: str
    documents: int
    bytes: int


class CollectionsResult(msgspec.Struct, frozen=True, kw_only=True):
    """Collections by name."""

    collections: list[CollectionCount]
    total: int


@step.read("documents_collections", deadline_s=30)
class DocumentsListCollections(Params[CollectionsResult], frozen=True, kw_only=True):
    """List collections of stored documents and their sizes."""


class SnapshotsResult(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshots, the latest first."""

    snapshots: list[Snapshot]
    total: int


@step.read("documents_snapshots", deadline_s=30)
class DocumentsListSnapshots(Params[SnapshotsResult], frozen=True, kw_only=True):
    """List the snapshots (stored versions of a folder, one for each `documents_add` of it), for
    documents_restore."""

    taken: ClassVar = {"with_labels": ""}
    limit: Annotated[int, Meta(ge=1, le=100_000, description="Snapshots at most")] | None = None
    offset: Annotated[int, Meta(ge=0, description="Snapshots to skip")] = 0
