"""Operations of `documents` that read a content-addressed store of files and texts.

A document is a row: a path (or a name) and its content.  Several rows may share one content, whose SHA-256 is their
`hash`.  Clients call these as steps of the composite tools.
"""

from __future__ import annotations

import enum
from typing import Annotated, ClassVar, TypeAlias

import msgspec
from msgspec import Meta

from proto.errors import InvalidParams
from proto.operation import CLIENT, OPERATOR, Family, Params, Role, SaidIfAny, SaidToPrograms
from proto.ops.completing import Completing
from proto.wire.front import SERVICE as FRONT

SERVICE = "documents"
SURFACES = ("documents",)

step = Family(SERVICE, role=Role.STEP, surfaces=SURFACES)
completing = Family(SERVICE, role=Role.INTERNAL, surfaces=SURFACES, callers=(FRONT,))
shown = Family(SERVICE, role=Role.INTERNAL, surfaces=SURFACES, callers=(CLIENT, OPERATOR))
surfaceless_step = Family(SERVICE, role=Role.STEP)
of_files = Family(SERVICE, role=Role.INTERNAL, callers=("files",))

CORPUS = "documents"
"""Name of the corpus in the search and in the graph."""

Scalar: TypeAlias = str | int | float | bool | None
Metadata: TypeAlias = dict[str, Scalar] | list[str]
"""An object, or `["key=value"]` (the first `=` splits)."""


def pairs(metadata: Metadata, field_: str = "metadata") -> dict[str, Scalar]:
    """Return metadata as an object.  Raises InvalidParams if an item of a list is not `key=value`."""
    if isinstance(metadata, dict):
        found = dict(metadata)
    else:
        found = {}
        for item in metadata:
            key, equals, value = item.partition("=")
            if not equals:
                raise InvalidParams(f"parameter `{field_}`: {item[:80]!r} is no key=value", field=field_)
            found[key.strip()] = value
    if any(not key for key in found):
        raise InvalidParams(f"parameter `{field_}`: a key is empty", field=field_)
    return found


Hash = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=128,
        description="SHA-256 of the content in hexadecimal, whole or its first 8 digits or more; `sha256:` may precede",
    ),
]
Name = Annotated[
    str, Meta(min_length=1, max_length=4096, description="Name or path of a document, or the end of its path")
]
Glob = Annotated[str, Meta(min_length=1, max_length=4096)]
Pattern = Annotated[str, Meta(min_length=1, max_length=4096, description="Name or path, or a glob of them")]
Under = Annotated[
    str, Meta(max_length=4096, description="Only documents at or below this path, or that match this glob")
]
Extension = Annotated[str, Meta(max_length=64, description="Only documents with this extension")]
MimeType = Annotated[str, Meta(max_length=255, description="Only this MIME type; `image/*` is allowed")]
Tag = Annotated[str, Meta(min_length=1, max_length=256)]
Tags = Annotated[list[Tag], Meta(max_length=64, description="Only documents that carry every one of these tags")]
Collection = Annotated[str, Meta(min_length=1, max_length=256, description="Name of a collection")]
Session = Annotated[str, Meta(min_length=1, max_length=128, description="Only documents added in this session")]

Length = Annotated[int, Meta(ge=0, le=8 * 1024 * 1024, description="Bytes at most; default 1 MiB")]


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A document without its content; times are RFC 3339 in UTC."""

    id: Annotated[int, SaidToPrograms]
    hash: str
    name: Annotated[str, Meta(description="The last part of its path"), SaidToPrograms]
    path: Annotated[str, Meta(description="Where it was added from, or the name it was given")]
    size: Annotated[int, Meta(description="Bytes of its content")]
    mime_type: str
    extension: Annotated[str, Meta(description="With its dot, in lower case; empty if it has none"), SaidToPrograms]
    type: Annotated[str, Meta(description="text or binary")]
    tags: Annotated[list[str], SaidIfAny]
    metadata: Annotated[dict[str, Scalar], SaidIfAny]
    collections: Annotated[list[str], SaidIfAny]
    session: Annotated[str, Meta(description="The session it was added in")] | None
    created: Annotated[str, Meta(description="When this path was first added")]
    modified: Annotated[str, Meta(description="Last change of the file, or of a content added without one")]
    indexed: Annotated[str, Meta(description="When this content was added")]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The files that one `add` of a directory found."""

    id: str
    label: str
    directory: str
    collection: str | None
    created: str
    files: int
    bytes: int


class SnapshotFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file that differs between two snapshots: its size in each, and its contents' hashes."""

    path: Annotated[str, Meta(description="Relative to the snapshot's directory")]
    before_bytes: int | None = None
    after_bytes: int | None = None
    before_hash: str = ""
    after_hash: str = ""


class SnapshotDifference(msgspec.Struct, frozen=True, kw_only=True):
    """How the second snapshot differs from the first; the lists are sorted by path."""

    added: list[SnapshotFile]
    removed: list[SnapshotFile]
    changed: list[SnapshotFile]
    unchanged: Annotated[int, Meta(description="Number of files with equal contents")]
    truncated: Annotated[bool, Meta(description="Whether `limit` left files out")] = False


@shown.read("documents_compare", deadline_s=60)
class DocumentsCompareSnapshots(Params[SnapshotDifference], frozen=True, kw_only=True):
    """Compare two snapshots: files added, removed and changed from `before` to `after`."""

    before: Annotated[str, Meta(max_length=128, description="Id or label of a snapshot")]
    after: Annotated[str, Meta(max_length=128, description="Id or label of a snapshot")]
    limit: Annotated[int, Meta(ge=1, le=100_000, description="Files at most in each list")] = 1000


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """A content that a file had."""

    hash: str
    size: int
    modified: Annotated[str, Meta(description="Modification time of the file, RFC 3339")]
    snapshots: Annotated[list[str], Meta(description="Ids of the snapshots with this content, oldest first"), SaidIfAny]


class Versions(msgspec.Struct, frozen=True, kw_only=True):
    """Versions of a file, latest first."""

    versions: list[Version]


@shown.read("documents_versions", deadline_s=60)
class DocumentsVersions(Params[Versions], frozen=True, kw_only=True):
    """List the versions of a file that snapshots hold."""

    path: Annotated[str, Meta(min_length=1, max_length=4096, description="Absolute path of the file")]


class GraphNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the graph: a stored file, a symbol defined in one, or a module that is not stored."""

    node_key: Annotated[str, Meta(description="Its name, for `graph`")]
    type: Annotated[str, Meta(description="file, function, method, class, struct, interface, enum, type, …, or module")]
    label: str
    distance: Annotated[int, Meta(description="Steps from the origin")]
    hash: Annotated[str, Meta(description="Of its document")] | None = None
    path: Annotated[str, Meta(description="Of its document")] | None = None
    line: Annotated[int, Meta(description="Of a symbol: its first line")] | None = None


class GraphEdge(msgspec.Struct, frozen=True, kw_only=True):
    """An edge between two nodes, by their keys."""

    source: str
    target: str
    relation: Annotated[str, Meta(description="DEFINES, CALLS, IMPORTS or LINKS_TO")]
    resolved: Annotated[bool | None, Meta(description="Of a call: whether its definition is certain")] = None
    certainty: Annotated[str, Meta(description="Of a call: resolved or ambiguous")] | None = None


class ContentSource(enum.StrEnum):
    """The document's own bytes, or text extracted from it."""

    ORIGINAL = "original"
    EXTRACTED = "extracted_text"


class GetResult(Document, frozen=True, kw_only=True):
    """A document."""

    paths: Annotated[list[str], Meta(description="Paths of all documents with this content")]
    content: Annotated[str, Meta(description="With `include_content`: the text, or base64")] | None = None
    content_encoding: Annotated[str, Meta(description="utf-8 or base64")] | None = None
    content_source: Annotated[ContentSource, Meta(description="Source of `content`")] | None = None
    content_offset: Annotated[int | None, Meta(description="Where `content` starts in it, in bytes")] = None
    content_length: Annotated[int | None, Meta(description="Bytes of it in `content`")] = None
    content_truncated: Annotated[bool, Meta(description="Whether more follows `content`")] = False
    output_path: Annotated[str, Meta(description="The file that was written")] | None = None
    text_problem: Annotated[str, Meta(description="Why it has no searchable text, or not all of it")] | None = None
    text_charset: Annotated[str, Meta(description="If not UTF-8: its character set, and how that is known")] | None = (
        None
    )
    graph_enabled: bool = False
    related: Annotated[list[GraphNode], Meta(description="With `graph`: nodes within `depth` steps")] = []
    edges: Annotated[list[GraphEdge], Meta(description="With `graph`")] = []
    graph_truncated: Annotated[bool, Meta(description="Whether more nodes are related")] = False
    degraded: Annotated[list[str], Meta(description="What is missing from the graph, and why")] = []


@step.read("documents_get", title="Get a stored document", deadline_s=600)
class DocumentsGet(Params[GetResult], frozen=True, kw_only=True):
    """Get one stored document by `hash`, `name` or `path`: its metadata, its content in parts (`offset`, `length`; for
    a PDF or office document its text), its relations, or a copy as a file (`outputPath`). A note's text:
    notes_read."""

    taken: ClassVar = {"use_session": "", "extract_text": ""}
    hash: Hash | None = None
    name: Name | None = None
    path: Name | None = None
    outputPath: Annotated[str, Meta(max_length=4096, description="File to write to, below a root")] | None = None
    graph: Annotated[bool, Meta(description="Return related nodes")] = False
    depth: Annotated[int, Meta(ge=1, le=5, description="Steps in the graph")] = 2
    include_content: Annotated[bool, Meta(description="Return the content")] = False
    original: Annotated[bool, Meta(description="Return its own bytes as base64, not its text")] = False
    offset: Annotated[int, Meta(ge=0, description="First byte of the content to return")] = 0
    length: Length | None = None


class StoredContent(msgspec.Struct, frozen=True, kw_only=True):
    """A stored content, whole."""

    hash: str
    path: Annotated[str, Meta(description="Of one of its documents; empty if only snapshots have it")]
    data: bytes


@of_files.read("documents_content", deadline_s=30)
class DocumentsContent(Params[StoredContent], frozen=True, kw_only=True):
    """Return the whole bytes of a content of a document or snapshot: by its hash, or by a file's path in a snapshot."""

    hash: Hash | None = None
    path: Annotated[str, Meta(max_length=4096, description="Absolute, or relative to the snapshot's directory")] = ""
    snapshot: Annotated[str, Meta(max_length=128, description="Id or label")] = ""
    most: Annotated[int, Meta(ge=0, description="Bytes at most; a larger content is an error")]


class VerifyResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether every content still matches its hash."""

    objects: Annotated[int, Meta(description="Contents read and hashed")]
    bytes: int
    damaged: Annotated[list[str], Meta(description="Hash and path of damaged contents, and why"), SaidIfAny]
    problems: Annotated[list[str], Meta(description="What is wrong with the databases themselves"), SaidIfAny]


@surfaceless_step.read("documents_verify", deadline_s=86_400)
class DocumentsVerify(Params[VerifyResult], frozen=True, kw_only=True):
    """Verify the document store: read every stored content, compare it with its hash, check the databases. Slow: if
    you suspect damage."""


@completing.read("documents_names", deadline_s=5)
class DocumentsNames(Completing, Params[list[str]], frozen=True, kw_only=True):
    """Complete the argument `document_name` with document names that contain the typed text."""
