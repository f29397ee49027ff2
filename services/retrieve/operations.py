"""Operations of `retrieve` for clients: their own collections, of texts that Linckia embeds or of given vectors."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from proto.errors import InvalidParams
from proto.operation import OPERATOR, Family, Params, Role, Route
from proto.ops.retrieve import Collection, Filter, Name, Value

tool = Family("retrieve")
_operator = Family("retrieve", role=Role.INTERNAL, callers=(OPERATOR,))

MAX_AT_ONCE = 1000

Payload: TypeAlias = dict[str, Value]
Vector: TypeAlias = Annotated[list[float], Meta(min_length=1, max_length=8192)]
Filters = Annotated[list[Filter], Meta(max_length=32, description="On the payload; all must hold")]
Ids = Annotated[list[Name], Meta(max_length=4096, description="Ids of documents")]
Documents: TypeAlias = Annotated[int, Meta(description="How many there are")]


def _post(name: str) -> Route:
    return Route("POST", f"/v1/collections/{name}")


class CollectionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A collection and its size."""

    collection: str
    dimensions: Annotated[int | None, Meta(description="Of its vectors; null if it takes text")]
    documents: int
    bytes: Annotated[int, Meta(description="Of ids, texts, payloads and given vectors")]
    vectors_waiting: Annotated[int, Meta(description="Pieces of text not yet found by meaning")] = 0
    trouble: Annotated[str, Meta(description="Why it cannot be read, and what to do; empty if it can")] = ""


@tool.write("collections_create", idempotent=True, deadline_s=30, http=_post("create"))
class CollectionCreate(Params[CollectionInfo], frozen=True, kw_only=True):
    """Create a collection of your own: of texts, which Linckia embeds, or of vectors that you bring."""

    collection: Collection
    dimensions: (
        Annotated[int, Meta(ge=1, le=8192, description="Of vectors that you bring; absent: it takes text")] | None
    ) = None


class CollectionList(msgspec.Struct, frozen=True, kw_only=True):
    """All client-created collections, by name, and the quota."""

    collections: list[CollectionInfo]
    most_collections: int
    most_documents: Annotated[int, Meta(description="In each")]
    most_bytes: Annotated[int, Meta(description="In each")]


@tool.read("collections_list", deadline_s=30, http=Route("GET", "/v1/collections"))
class CollectionListParams(Params[CollectionList], frozen=True, kw_only=True):
    """List client-created collections, and the quota."""


class CollectionCounted(msgspec.Struct, frozen=True, kw_only=True):
    """How many documents match."""

    documents: Documents


@tool.read("collections_count", deadline_s=30, http=_post("count"))
class CollectionCount(Params[CollectionCounted], frozen=True, kw_only=True):
    """Count a collection's documents, or those whose payload matches `filters`."""

    collection: Collection
    filters: Filters = []


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A document of a collection."""

    id: Annotated[Name, Meta(description="Unique in the collection; a document of the same id is replaced")]
    text: Annotated[
        str, Meta(max_length=1_000_000, description="Searched by words; embedded if the collection takes text")
    ] = ""
    vector: Annotated[Vector | None, Meta(description="If the collection takes vectors; its norm is ignored")] = None
    payload: Annotated[Payload, Meta(description="Filtered on, and returned with a hit")] = {}


class CollectionUpserted(msgspec.Struct, frozen=True, kw_only=True):
    """The documents are on disk, and found by words and by given vectors."""

    upserted: int
    documents: Annotated[int, Meta(description="In the collection now")]
    vectors_waiting: Annotated[int, Meta(description="Pieces of text not yet found by meaning")]


@tool.write("collections_upsert", idempotent=True, deadline_s=60, http=_post("upsert"))
class CollectionUpsert(Params[CollectionUpserted], frozen=True, kw_only=True):
    """Put documents into a collection, all or none; one of the same id is replaced."""

    collection: Collection
    documents: Annotated[
        list[Document], Meta(min_length=1, max_length=MAX_AT_ONCE, description="What to put under which id")
    ]


class CollectionPage(msgspec.Struct, frozen=True, kw_only=True):
    """Documents ordered by id; with vectors only in an export."""

    documents: list[Document]
    more: Annotated[bool, Meta(description="Whether more follow; pass the last id as `after`")]


@tool.read("collections_documents", deadline_s=30, http=_post("documents"))
class CollectionDocuments(Params[CollectionPage], frozen=True, kw_only=True):
    """Read a collection's documents by id, or those whose payload matches `filters`, page by page."""

    collection: Collection
    ids: Ids = []
    filters: Filters = []
    after: Annotated[str, Meta(description="Only ids after this one")] = ""
    limit: Annotated[int, Meta(ge=1, le=MAX_AT_ONCE, description="Documents at most")] = 100


@Family("retrieve", role=Role.INTERNAL, callers=(OPERATOR,)).read("collection_export", deadline_s=60)
class CollectionExport(Params[CollectionPage], frozen=True, kw_only=True):
    """Read the next documents by id, with given vectors."""

    collection: Collection
    after: Annotated[str, Meta(description="The last id of the previous page")] = ""


class CollectionHit(msgspec.Struct, frozen=True, kw_only=True):
    """A document that was found."""

    id: str
    score: Annotated[float, Meta(description="0 to 1, higher is better")]
    similarity: Annotated[float | None, Meta(description="Cosine with the query, if known")]
    text: Annotated[str, Meta(description="The best matching piece of its text")]
    payload: Payload


class CollectionFound(msgspec.Struct, frozen=True, kw_only=True):
    """Documents, best first, and how they were found."""

    hits: list[CollectionHit]
    stages: Annotated[list[str], Meta(description="What actually ran: lexical, vector, rerank or maxsim")]
    degraded: Annotated[list[str], Meta(description="What should have run and did not, with the reason")] = []


@tool.read("collections_search", deadline_s=30, http=_post("search"))
class CollectionSearch(Params[CollectionFound], frozen=True, kw_only=True):
    """Search a collection: by words and meaning of `query`, by `vector` if it takes vectors, or by both; one of the
    two is required."""

    collection: Collection
    query: Annotated[str, Meta(max_length=65536, description="Any text; there is no query syntax")] = ""
    vector: Annotated[Vector | None, Meta(description="Of the collection's dimensions")] = None
    filters: Filters = []
    limit: Annotated[int, Meta(ge=1, le=1000, description="Documents at most")] = 10

    def check(self) -> None:
        if not self.query.strip() and self.vector is None:
            raise InvalidParams("parameter `query` is blank; say what to look for, or give `vector`", field="query")


class CollectionDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """They are gone: no search finds them."""

    deleted: int
    documents: Annotated[int, Meta(description="In the collection now")]


@tool.destroy("collections_delete", idempotent=True, deadline_s=60, http=_post("delete"))
class CollectionDelete(Params[CollectionDeleted], frozen=True, kw_only=True):
    """Delete documents: either by `ids`, or those whose payload matches `filters`."""

    collection: Collection
    ids: Ids = []
    filters: Filters = []

    def check(self) -> None:
        if bool(self.ids) is bool(self.filters):
            raise InvalidParams("give either `ids` or `filters`, and not an empty list", field="ids")


class CollectionDropped(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the collection existed before."""

    dropped: bool


@tool.destroy("collections_drop", idempotent=True, deadline_s=60, http=_post("drop"))
class CollectionDrop(Params[CollectionDropped], frozen=True, kw_only=True):
    """Delete a whole client-created collection and its contents."""

    collection: Collection


class Moving(msgspec.Struct, frozen=True, kw_only=True):
    """How far the migration of one collection is."""

    collection: str
    copied: Annotated[int, Meta(description="Groups that were copied")] = 0
    groups: Annotated[int, Meta(description="Groups in all")] = 0
    comparing: Annotated[bool, Meta(description="Whether the copy is compared with the original")] = False
    done: Annotated[bool, Meta(description="Whether the collection is in its new place")] = False


class Migrated(msgspec.Struct, frozen=True, kw_only=True):
    """How far a migration is; call again until nothing is left."""

    moved: Annotated[list[str], Meta(description="Collections that this call brought to their new place")] = []
    moving: Annotated[Moving | None, Meta(description="The collection being moved; null if none")] = None
    left: Annotated[list[str], Meta(description="Collections that are not there yet")] = []


@_operator.write("retrieve_migrate", idempotent=True, deadline_s=120)
class RetrieveMigrate(Params[Migrated], frozen=True, kw_only=True):
    """Move collections to a PostgreSQL server, or back into files, while they are used; works for about `for_s`.

    Interrupted at any point, it resumes. Every group is compared with its original before the copy takes its place.
    """

    to: Annotated[Literal["postgres", "local"], Meta(description="Where they are to be kept")]
    collection: Annotated[str, Meta(description="Only this one; a client's begins with own.; empty: all")] = ""
    for_s: Annotated[float, Meta(gt=0, le=60, description="How long this call works at least")] = 10.0
