"""Operations of `documents` for `linckia export` and `import`: unchanged rows and contents. Times are in ns."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from proto.operation import OPERATOR, Family, Params, Role
from proto.ops.documents.reading import SERVICE, Scalar

carried = Family(SERVICE, role=Role.INTERNAL, callers=(OPERATOR,))

Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$", description="Of a content")]

INLINE_BYTES = 1024 * 1024
"""Contents up to this length come with their rows; longer ones as uploads (`documents_put_begin`)."""

ANSWER_BYTES = 4 * INLINE_BYTES
"""Approximate limit of the contents in one answer."""


class CarriedDocument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A document."""

    path: Annotated[str, Meta(min_length=1, max_length=4096)]
    name: Annotated[str, Meta(min_length=1, max_length=4096)]
    hash: Sha256
    mime_type: Annotated[str | None, Meta(description="If its owner gave one")] = None
    session: str | None = None
    tags: list[str] = []
    metadata: dict[str, Scalar] = {}
    collections: list[str] = []
    created_ns: int
    modified_ns: int
    indexed_ns: int


class CarriedFolder(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that a session watches."""

    folder: str
    interval_ms: int


class CarriedSession(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session."""

    id: str
    label: str
    started_ns: int
    stopped_ns: int | None = None
    watches: list[CarriedFolder] = []


class CarriedSnapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A snapshot, without its files."""

    id: str
    label: str
    directory: str
    collection: str | None = None
    created_ns: int
    files: int
    bytes: int


class CarriedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a snapshot, with its absolute path."""

    path: str
    hash: Annotated[str, Meta(description="Empty if its content was lost")]
    size: int
    modified_ns: int
    mode: int


class ExportedRows(msgspec.Struct, frozen=True, kw_only=True):
    """A page of documents; empty at the end."""

    documents: list[CarriedDocument]


@carried.read("documents_export", deadline_s=60)
class DocumentsExport(Params[ExportedRows], frozen=True, kw_only=True):
    """Read the next documents by path."""

    after: Annotated[str, Meta(description="The last path of the previous page")] = ""


class ExportedWork(msgspec.Struct, frozen=True, kw_only=True):
    """Sessions and snapshots, oldest first."""

    sessions: list[CarriedSession]
    snapshots: list[CarriedSnapshot]


@carried.read("documents_export_work", deadline_s=60)
class DocumentsExportWork(Params[ExportedWork], frozen=True, kw_only=True):
    """Read all sessions and snapshots."""


class ExportedFiles(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a snapshot's files; empty at the end."""

    files: list[CarriedFile]


@carried.read("documents_export_files", deadline_s=60)
class DocumentsExportFiles(Params[ExportedFiles], frozen=True, kw_only=True):
    """Read the files of a snapshot from `offset` on."""

    snapshot_id: str
    offset: Annotated[int, Meta(ge=0)] = 0


class ExportedContent(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a content, or why it cannot be read."""

    data: bytes = b""
    size: Annotated[int, Meta(description="Of the whole")] = 0
    problem: str = ""


class ExportedContents(msgspec.Struct, frozen=True, kw_only=True):
    """As many of the requested contents as fit, in order; at least one."""

    contents: list[ExportedContent]


@carried.read("documents_export_contents", deadline_s=60)
class DocumentsExportContents(Params[ExportedContents], frozen=True, kw_only=True):
    """Read contents from `offset` on, at most a megabyte of each; contents held only by a snapshot are included."""

    hashes: Annotated[list[Sha256], Meta(min_length=1, max_length=10_000)]
    offset: Annotated[int, Meta(ge=0)] = 0


class MissingContents(msgspec.Struct, frozen=True, kw_only=True):
    """Hashes of contents that are not stored."""

    hashes: list[str]


@carried.read("documents_missing", deadline_s=60)
class DocumentsMissing(Params[MissingContents], frozen=True, kw_only=True):
    """List which of these contents are not stored."""

    hashes: Annotated[list[Sha256], Meta(max_length=10_000)]


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """How much was new."""

    changed: Annotated[int, Meta(description="Rows")]


@carried.write("documents_import", idempotent=True, deadline_s=120)
class DocumentsImport(Params[Imported], frozen=True, kw_only=True):
    """Import rows unchanged; repeating it changes nothing. If a path exists, the content indexed last stays, and tags,
    collections and metadata are added. Files are added to a snapshot in order, after all their contents."""

    documents: list[CarriedDocument] = []
    contents: Annotated[list[bytes], Meta(description="Of these documents, if not yet stored")] = []
    sessions: list[CarriedSession] = []
    snapshot: CarriedSnapshot | None = None
    offset: Annotated[int, Meta(ge=0, description="Files of the snapshot already sent")] = 0
    files: list[CarriedFile] = []
