"""Operations of `retrieve`: named collections of text, found by words and by meaning.

A collection holds *groups* (a note, a document, a conversation's turn); a group holds *items* (its sections), each
with its text. Putting a group states its whole content at once, so that the write is idempotent and a crash can leave
neither half.
"""

from __future__ import annotations

import enum
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from proto.operation import Family, Params, Role

internal = Family("retrieve", role=Role.INTERNAL, callers=("*",))


Collection = Annotated[
    str,
    Meta(
        pattern=r"^[a-z][a-z0-9_-]{0,63}$",
        description="The collection's name: a small letter, then small letters, digits, _ and -, 64 in all at most",
    ),
]
Value: TypeAlias = str | int | float | bool | list[str] | None
"""What metadata may hold."""
Epoch: TypeAlias = Annotated[str, Meta(description="Another one stands for another database, to be fed from the start")]

MAX_WAIT_S = 600


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One searchable piece of a group."""

    key: Annotated[
        str, Meta(min_length=1, max_length=1024, description="Unique in its group, stable while the piece is the same")
    ]
    text: Annotated[str, Meta(description="What is searched and embedded")]
    heading: Annotated[str, Meta(description="Heading path of the piece, found by words as the text is")] = ""
    metadata: Annotated[dict[str, Value], Meta(description="Given back with a hit (its lines, say)")] = {}
    embed: Annotated[
        bool, Meta(description="Whether the piece gets a vector; without one it is found by words alone")
    ] = True


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A group and all its items."""

    id: Annotated[str, Meta(min_length=1, max_length=1024, description="Unique in the collection")]
    items: Annotated[list[Item], Meta(description="All of its pieces; those that are not here are removed")]
    title: Annotated[str, Meta(description="Found by words, with more weight than the text")] = ""
    metadata: Annotated[dict[str, Value], Meta(description="What filters look at, and given back with a hit")] = {}


class PutResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a put did; all of it is on disk and found by words."""

    groups: int
    items_written: int
    items_unchanged: int
    items_removed: int
    vectors_waiting: Annotated[int, Meta(description="Items of the collection whose vector is still to come")]
    epoch: Epoch = ""


@internal.write("retrieve_put", idempotent=True, deadline_s=60)
class RetrievePut(Params[PutResult], frozen=True, kw_only=True):
    """Set the whole content of groups, in one transaction; unchanged items keep their vectors."""

    collection: Collection
    groups: Annotated[list[Group], Meta(min_length=1, max_length=1024, description="The groups to set")]


class DeleteResult(msgspec.Struct, frozen=True, kw_only=True):
    """How much went; it is found no more by any means."""

    groups: int
    items: int
    epoch: Epoch = ""


@internal.destroy("retrieve_delete", idempotent=True, deadline_s=60)
class RetrieveDelete(Params[DeleteResult], frozen=True, kw_only=True):
    """Remove groups; ids that are not there count for nothing."""

    collection: Collection
    groups: Annotated[list[str], Meta(min_length=1, max_length=4096, description="Ids of the groups")]


class Scrubbed(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing of what was deleted is left in the collection's database and its log."""


@internal.write("retrieve_scrub", idempotent=True, deadline_s=120)
class RetrieveScrub(Params[Scrubbed], frozen=True, kw_only=True):
    """Take out what deletions leave behind: words in parts of the word index that are not merged yet, pages in the log.

    Takes a second for some hundred thousand pieces; for after deletions that are meant for good.
    """

    collection: Collection


class Filter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A condition on the groups' metadata; several must all hold."""

    field: Annotated[str, Meta(description="Name in the group's metadata")]
    any_of: (
        Annotated[list[str | int], Meta(description="Equal to one of these (for a list: holds one of them)")] | None
    ) = None
    prefix: Annotated[str, Meta(description="Text that starts with this")] | None = None
    at_least: Annotated[float, Meta(description="Number not below this")] | None = None
    at_most: Annotated[float, Meta(description="Number not above this")] | None = None


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """A group with its best piece; `score` is its best item's, in [0, 1]: of the fusion, or of the cross-encoder where
    it ran."""

    group: str
    key: str
    score: float
    title: str
    heading: str
    text: Annotated[str, Meta(description="The whole text of the piece")]
    group_metadata: dict[str, Value]
    item_metadata: dict[str, Value]
    lexical: Annotated[float | None, Meta(description="Its score by words, where it was found so")] = None
    vector: Annotated[float | None, Meta(description="Its cosine, where it was found so")] = None
    rerank: Annotated[float | None, Meta(description="The cross-encoder's score, where it ran")] = None


class SearchResult(msgspec.Struct, frozen=True, kw_only=True):
    """Hits, best first, and the truth about how they were found."""

    hits: list[Hit]
    stages: Annotated[list[str], Meta(description="What truly ran: lexical, vector, rerank or maxsim")]
    degraded: Annotated[list[str], Meta(description="What should have run and did not, each with its reason")] = []
    source: Annotated[
        str, Meta(description="hybrid, vector or lexical, each with +rerank where the cross-encoder ran")
    ] = "lexical"
    reranked: Annotated[bool, Meta(description="Whether the cross-encoder decided the order of the best")] = False
    vectors_waiting: int = 0


class Fusion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the two orders become one."""

    method: Annotated[
        str, Meta(pattern="^(weighted|rrf|lexical|vector)$", description="weighted, rrf, lexical or vector")
    ] = "weighted"
    vector_weight: Annotated[float, Meta(ge=0, le=1, description="Share of the vector score under `weighted`")] = 0.65


@internal.read("retrieve_search", deadline_s=30)
class RetrieveSearch(Params[SearchResult], frozen=True, kw_only=True):
    """Search a collection by words and by meaning side by side, fuse, rerank where a cross-encoder is there."""

    collection: Collection
    query: Annotated[str, Meta(min_length=1, max_length=65536, description="Any text; there is no query syntax")]
    limit: Annotated[int, Meta(ge=1, le=1000, description="Groups to answer at most")] = 20
    candidates: Annotated[int, Meta(ge=1, le=2000, description="Pieces that each stage hands on")] = 50
    filters: Annotated[list[Filter], Meta(description="Conditions that all must hold")] = msgspec.field(
        default_factory=list
    )
    fusion: Annotated[Fusion, Meta(description="How the two orders become one")] = Fusion()
    texts: (
        Annotated[
            int,
            Meta(ge=0, le=1000, description="So many hits come with title, heading, text and metadata, all by default"),
        ]
        | None
    ) = None


class CollectionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How much a collection holds and how far its vectors are."""

    collection: str
    groups: int
    items: int
    vectors: int
    vectors_waiting: int
    vectors_failed: Annotated[
        int, Meta(description="Of those that wait: pieces that the model failed on; they are tried again")
    ] = 0
    fingerprint: str | None
    size_bytes: int
    index: Annotated[str, Meta(description="Kind of vector index in use")]
    words: Annotated[str, Meta(description="Word index in use: fts5, or tantivy for large collections")] = "fts5"
    epoch: Epoch = ""
    degraded: Annotated[list[str], Meta(description="Why the collection does not hold all that it should")] = []


@internal.read("retrieve_status", deadline_s=10)
class RetrieveStatus(Params[CollectionStatus], frozen=True, kw_only=True):
    """How much a collection holds; one that was never written is empty, not an error."""

    collection: Collection


class GroupIds(msgspec.Struct, frozen=True, kw_only=True):
    """Ids of groups, sorted, and whether more follow the last one."""

    ids: list[str]
    more: bool
    epoch: Epoch = ""


class CollectionEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """The database that the collection is kept in."""

    epoch: Epoch


@internal.write("retrieve_epoch", idempotent=False, deadline_s=MAX_WAIT_S + 15)
class RetrieveEpoch(Params[CollectionEpoch], frozen=True, kw_only=True):
    """Wait until a collection is in another epoch than `filled`: a damaged one is begun again, empty, for its corpus to
    feed it again.

    To name an epoch in `filled` says that all that the corpus has is in the collection; until then a collection that
    was begun again answers `degraded`.
    """

    collection: Collection
    filled: Annotated[str, Meta(description="The epoch that the corpus has filled; empty: none yet")] = ""
    wait_s: Annotated[float, Meta(ge=0, le=MAX_WAIT_S, description="How long to wait for another one")] = 0.0


@internal.read("retrieve_groups", deadline_s=30)
class RetrieveGroups(Params[GroupIds], frozen=True, kw_only=True):
    """The ids of a collection's groups, page by page: what a caller needs to put two records in step after a crash."""

    collection: Collection
    after: Annotated[str, Meta(description="Ids greater than this one")] = ""
    limit: Annotated[int, Meta(ge=1, le=10000, description="Ids to answer at most")] = 10000


class Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """A group near another one."""

    group: str
    similarity: Annotated[float, Meta(description="Cosine of the two groups' vectors, to six places")]


class Neighbours(msgspec.Struct, frozen=True, kw_only=True):
    """The nearest groups, nearest first."""

    neighbours: list[Neighbour]
    has_vector: Annotated[bool, Meta(description="Whether the group that was asked for has a vector to compare")]
    vectors_waiting: Annotated[int, Meta(description="Items of the collection whose vector is still to come")] = 0


@internal.read("retrieve_similar", deadline_s=30)
class RetrieveSimilar(Params[Neighbours], frozen=True, kw_only=True):
    """The groups nearest to one group, exactly, by stored vectors alone: nothing is embedded.

    A group's vector is the mean of its items' vectors, made a unit vector.
    """

    collection: Collection
    group: Annotated[str, Meta(min_length=1, max_length=1024, description="Id of the group")]
    limit: Annotated[int, Meta(ge=1, le=10000, description="Groups to answer at most")] = 10
    threshold: Annotated[float, Meta(ge=-1, le=1, description="Least cosine")] = -1.0


class Pair(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Two groups, `first` before `second` in the order of ids."""

    first: str
    second: str
    similarity: float


class Pairs(msgspec.Struct, frozen=True, kw_only=True):
    """The most similar pairs, most similar first, those of one similarity in the order of ids."""

    pairs: list[Pair]
    more: Annotated[bool, Meta(description="Whether further pairs reach the threshold")]
    groups: Annotated[int, Meta(description="Groups that have a vector; all pairs of these were compared")]
    vectors_waiting: Annotated[int, Meta(description="Items of the collection whose vector is still to come")] = 0


@internal.read("retrieve_pairs", deadline_s=120)
class RetrievePairs(Params[Pairs], frozen=True, kw_only=True):
    """The most similar pairs of groups of a collection, over all pairs and exactly, each unordered pair once.

    Vectors are those of `retrieve_similar`.
    """

    collection: Collection
    threshold: Annotated[float, Meta(ge=-1, le=1, description="Least cosine")]
    limit: Annotated[int, Meta(ge=1, le=100_000, description="Pairs to answer at most")] = 1000


class Grouping(msgspec.Struct, frozen=True, kw_only=True):
    """Groups of a collection put together by what they are about; each is in exactly one list."""

    clusters: Annotated[list[list[str]], Meta(description="Ids, the most typical first; the largest cluster first")]
    groups: Annotated[int, Meta(description="Groups that have a vector")]
    vectors_waiting: Annotated[int, Meta(description="Items of the collection whose vector is still to come")] = 0


class Clustering(enum.StrEnum):
    """How groups are put together."""

    KMEANS = "kmeans"
    SIMILAR = "similar"


@internal.read("retrieve_clusters", deadline_s=120)
class RetrieveClusters(Params[Grouping], frozen=True, kw_only=True):
    """Put the groups of a collection together by their vectors (those of `retrieve_similar`); the same state of the
    collection always has the same answer."""

    collection: Collection
    method: Annotated[
        Clustering,
        Meta(description="kmeans: spherical k-means; similar: chains of groups, each at `threshold` from the next"),
    ] = Clustering.KMEANS
    count: (
        Annotated[
            int, Meta(ge=1, le=1000, description="Clusters of kmeans; by default about the root of half the groups")
        ]
        | None
    ) = None
    threshold: Annotated[float, Meta(ge=-1, le=1, description="Least cosine of `similar`")] = 0.8
