"""Operations of `retrieve` for clients: collections of their own, of texts that are embedded here or of vectors."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from linckia.proto.errors import InvalidParams
from linckia.proto.operation import OPERATOR, Family, Params, Role, Route
from linckia.proto.ops.retrieve import Collection, Filter, Name, Value

tool = Family("retrieve")

MOST_AT_ONCE = 1000

Payload: TypeAlias = dict[str, Value]
Vector: TypeAlias = Annotated[list[float], Meta(min_length=1, max_length=8192)]
Filters = Annotated[list[Filter], Meta(max_length=32, description="On the payload; all must hold")]
Ids = Annotated[list[Name], Meta(max_length=4096, description="Ids of documents")]
Documents: TypeAlias = Annotated[int, Meta(description="How many there are")]


def _post(name: str) -> Route:
    return Route("POST", f"/v1/collections/{name}")


class CollectionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A collection and what it holds."""

    collection: str
    dimensions: Annotated[int | None, Meta(description="Of its vectors; null where it takes text")]
    documents: int
    bytes: Annotated[int, Meta(description="Of ids, texts, payloads and vectors that were given")]
    vectors_waiting: Annotated[int, Meta(description="Pieces of text that are not found by meaning yet")] = 0
    trouble: Annotated[str, Meta(description="Why it cannot be read, and what to do; empty where it can")] = ""


@tool.write("collection_create", idempotent=True, deadline_s=30, http=_post("create"))
class CollectionCreate(Params[CollectionInfo], frozen=True, kw_only=True):
    """Create a collection of your own: of texts, which are embedded here, or of vectors that you bring."""

    collection: Collection
    dimensions: (
        Annotated[int, Meta(ge=1, le=8192, description="Of vectors that you bring; absent: it takes text")] | None
    ) = None


class CollectionList(msgspec.Struct, frozen=True, kw_only=True):
    """All collections that clients have created, by name, and the quota."""

    collections: list[CollectionInfo]
    most_collections: int
    most_documents: Annotated[int, Meta(description="In each")]
    most_bytes: Annotated[int, Meta(description="In each")]


@tool.read("collection_list", deadline_s=30, http=Route("GET", "/v1/collections"))
class CollectionListParams(Params[CollectionList], frozen=True, kw_only=True):
    """List the collections that clients have created, and the quota."""


class CollectionCounted(msgspec.Struct, frozen=True, kw_only=True):
    """How many documents fit."""

    documents: Documents


@tool.read("collection_count", deadline_s=30, http=_post("count"))
class CollectionCount(Params[CollectionCounted], frozen=True, kw_only=True):
    """Count a collection's documents, or those whose payload fits `filters`."""

    collection: Collection
    filters: Filters = []


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is stored under an id."""

    id: Annotated[Name, Meta(description="Unique in the collection; a document of the same id is replaced")]
    text: Annotated[str, Meta(max_length=1_000_000, description="Found by words, and embedded if it is to be")] = ""
    vector: Annotated[Vector | None, Meta(description="Where the collection is of vectors; its length counts not")] = (
        None
    )
    payload: Annotated[Payload, Meta(description="What filters look at, and given back with a hit")] = {}


class CollectionUpserted(msgspec.Struct, frozen=True, kw_only=True):
    """The documents are on disk, and found by words and by vectors that were given."""

    upserted: int
    documents: Annotated[int, Meta(description="In the collection now")]
    vectors_waiting: Annotated[int, Meta(description="Pieces of text that are not found by meaning yet")]


@tool.write("collection_upsert", idempotent=True, deadline_s=60, http=_post("upsert"))
class CollectionUpsert(Params[CollectionUpserted], frozen=True, kw_only=True):
    """Put documents into a collection, all or none; one of the same id is replaced."""

    collection: Collection
    documents: Annotated[
        list[Document], Meta(min_length=1, max_length=MOST_AT_ONCE, description="What to put under which id")
    ]


class CollectionPage(msgspec.Struct, frozen=True, kw_only=True):
    """Documents in the order of their ids; without vectors, but in an export."""

    documents: list[Document]
    more: Annotated[bool, Meta(description="Whether others follow; ask again with the last id as `after`")]


@tool.read("collection_documents", deadline_s=30, http=_post("documents"))
class CollectionDocuments(Params[CollectionPage], frozen=True, kw_only=True):
    """Read a collection's documents by their ids, or those whose payload fits `filters`, page by page."""

    collection: Collection
    ids: Ids = []
    filters: Filters = []
    after: Annotated[str, Meta(description="Only ids after this one")] = ""
    limit: Annotated[int, Meta(ge=1, le=MOST_AT_ONCE, description="Documents to answer at most")] = 100


@Family("retrieve", role=Role.INTERNAL, callers=(OPERATOR,)).read("collection_export", deadline_s=60)
class CollectionExport(Params[CollectionPage], frozen=True, kw_only=True):
    """The next documents by their ids, with the vectors that were given."""

    collection: Collection
    after: Annotated[str, Meta(description="The last id of the page before")] = ""


class CollectionHit(msgspec.Struct, frozen=True, kw_only=True):
    """A document that was found."""

    id: str
    score: Annotated[float, Meta(description="0 to 1, higher is better")]
    similarity: Annotated[float | None, Meta(description="Cosine with the query, where that is known")]
    text: Annotated[str, Meta(description="The piece of its text that fits best")]
    payload: Payload


class CollectionFound(msgspec.Struct, frozen=True, kw_only=True):
    """Documents, best first, and how they were found."""

    hits: list[CollectionHit]
    stages: Annotated[list[str], Meta(description="What truly ran: lexical, vector, rerank or maxsim")]
    degraded: Annotated[list[str], Meta(description="What should have run and did not, each with its reason")] = []


@tool.read("collection_search", deadline_s=30, http=_post("search"))
class CollectionSearch(Params[CollectionFound], frozen=True, kw_only=True):
    """Search a collection: by words and meaning of `query`, by `vector` where it is of vectors, or by both; one of the
    two must be given."""

    collection: Collection
    query: Annotated[str, Meta(max_length=65536, description="Any text; there is no query syntax")] = ""
    vector: Annotated[Vector | None, Meta(description="Of the collection's dimensions")] = None
    filters: Filters = []
    limit: Annotated[int, Meta(ge=1, le=1000, description="Documents to answer at most")] = 10

    def check(self) -> None:
        if not self.query.strip() and self.vector is None:
            raise InvalidParams("parameter `query` is blank; say what to look for, or give `vector`", field="query")


class CollectionDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """They are gone: no search finds them."""

    deleted: int
    documents: Annotated[int, Meta(description="In the collection now")]


@tool.destroy("collection_delete", idempotent=True, deadline_s=60, http=_post("delete"))
class CollectionDelete(Params[CollectionDeleted], frozen=True, kw_only=True):
    """Delete documents: either by their `ids`, or those whose payload fits `filters`."""

    collection: Collection
    ids: Ids = []
    filters: Filters = []

    def check(self) -> None:
        if bool(self.ids) is bool(self.filters):
            raise InvalidParams("give either `ids` or `filters`, and not an empty list", field="ids")


class CollectionDropped(msgspec.Struct, frozen=True, kw_only=True):
    """Whether there was such a collection; there is none now."""

    dropped: bool


@tool.destroy("collection_drop", idempotent=True, deadline_s=60, http=_post("drop"))
class CollectionDrop(Params[CollectionDropped], frozen=True, kw_only=True):
    """Delete a whole collection that clients have created, with all that it holds."""

    collection: Collection
