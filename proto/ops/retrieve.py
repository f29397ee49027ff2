"""Operations of `retrieve`: named collections of text, searched by words and by meaning.

A collection holds *groups* (a note, a document, a turn); a group holds *items* (its sections), each with its text.
A put states the whole content of a group, so it is idempotent and a crash cannot leave half of it.
"""

from __future__ import annotations

import enum
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from proto.operation import OPERATOR, Family, Params, Role
from proto.wire.frames import Backlog

internal = Family("retrieve", role=Role.INTERNAL, callers=("documents", "knowledge", "memory", "transcripts", OPERATOR))

Collection = Annotated[
    str, Meta(pattern=r"^[a-z][a-z0-9_-]{0,63}$", description="A small letter, then small letters, digits, _ and -")
]
Value: TypeAlias = str | int | float | bool | list[str] | None
"""Permitted values of metadata."""
Epoch: TypeAlias = Annotated[str, Meta(description="If it changes, the database is new and must be fed from the start")]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1024)]
Cosine: TypeAlias = Annotated[float, Meta(ge=-1, le=1, description="Least cosine")]
Waiting: TypeAlias = Annotated[int, Meta(description="Items of the collection without a vector yet")]

MAX_WAIT_S = 600

UNLIKELY = 0.05
"""Default least score of users' searches: of right answers among the first ten hits, one in a hundred scores less."""

NEAREST = 3
"""If no hit reaches `UNLIKELY`, so many are returned nevertheless: the reader judges better than a score."""

DOUBTFUL = 0.2
"""If no hit reaches this score, nothing relevant was found."""

MinScore: TypeAlias = Annotated[float, Meta(ge=0, le=1, description="Leave out lower scores")]
Score: TypeAlias = Annotated[
    float, Meta(description="Confidence that this answers the query, 0 to 1; the same scale for every query")
]
Similarity: TypeAlias = Annotated[float, Meta(description="Cosine of query and passage")]
Matched: TypeAlias = Annotated[list[str], Meta(description="Query words it contains")]


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One searchable piece of a group."""

    key: Annotated[Name, Meta(description="Unique in its group, stable while the piece is unchanged")]
    text: Annotated[str, Meta(description="Text to search and embed")]
    heading: Annotated[str, Meta(description="Heading path of the piece, searched by words like the text")] = ""
    metadata: Annotated[dict[str, Value], Meta(description="Returned with a hit (such as its lines)")] = {}
    embed: Annotated[bool, Meta(description="Whether it gets a vector; without, it is found by words only")] = True


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A group and all its items."""

    id: Annotated[Name, Meta(description="Unique in the collection")]
    items: Annotated[list[Item], Meta(description="All of its pieces; missing ones are removed")]
    title: Annotated[str, Meta(description="Searched by words, with more weight than the text")] = ""
    names: Annotated[str, Meta(description="Searched by words like the title, but neither shown nor embedded")] = ""
    metadata: Annotated[dict[str, Value], Meta(description="Filtered on, and returned with a hit")] = {}


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """The write is on disk: new text is found by words, deleted text is not found at all."""

    vectors_waiting: Waiting = 0
    epoch: Epoch = ""


@internal.write("retrieve_put", idempotent=True, deadline_s=60)
class RetrievePut(Params[Written], frozen=True, kw_only=True):
    """Set the whole content of groups, in one transaction; unchanged items keep their vectors."""

    collection: Collection
    groups: Annotated[list[Group], Meta(min_length=1, max_length=1024, description="The groups to set")]


@internal.destroy("retrieve_delete", idempotent=True, deadline_s=60)
class RetrieveDelete(Params[Written], frozen=True, kw_only=True):
    """Remove groups; unknown ids are ignored."""

    collection: Collection
    groups: Annotated[list[str], Meta(min_length=1, max_length=4096, description="Ids of the groups")]


class Scrubbed(msgspec.Struct, frozen=True, kw_only=True):
    """Deleted data is gone from the collection's database and its log."""


@internal.write("retrieve_scrub", idempotent=True, deadline_s=120, callers=("memory", "transcripts", OPERATOR))
class RetrieveScrub(Params[Scrubbed], frozen=True, kw_only=True):
    """Purge traces of deletions from files: words, vectors, pages of the log.  Takes a second per 100,000 pieces."""

    collection: Collection


class Filter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A condition on the groups' metadata; several must all hold."""

    field: Annotated[str, Meta(description="Name in the group's metadata")]
    any_of: Annotated[list[str | int] | None, Meta(description="Equal to one of these, or a list with one")] = None
    prefix: Annotated[str | None, Meta(description="Text that starts with this")] = None
    at_least: Annotated[float | None, Meta(description="Number not below this")] = None
    at_most: Annotated[float | None, Meta(description="Number not above this")] = None


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """A group with its best piece; `score`, in [0, 1], is the confidence that it answers the query."""

    group: str
    key: str
    score: float
    title: str
    heading: str
    text: Annotated[str, Meta(description="The whole text of the piece")]
    group_metadata: dict[str, Value]
    item_metadata: dict[str, Value]
    lexical: Annotated[float | None, Meta(description="Its score by words, if found that way")] = None
    vector: Annotated[float | None, Meta(description="Its cosine, if found that way")] = None
    rerank: Annotated[float | None, Meta(description="The cross-encoder's score, if it ran")] = None
    matched: Matched = []


class SearchResult(msgspec.Struct, frozen=True, kw_only=True):
    """Hits, best first, and how they were found."""

    @property
    def note(self) -> str:
        """A note for the user if no hit is relevant, else empty."""
        if self.best is None or self.best >= DOUBTFUL:
            return ""
        count = len(self.hits) + self.unlikely
        said = f"nothing relevant was found: the best of {count} scores {self.best:.2f}"
        return f"{said}; these are the nearest, unlikely ones" if self.hits and self.best < UNLIKELY else said

    hits: list[Hit] = []
    best: Annotated[float | None, Meta(description="Best score, even if it is not among the hits")] = None
    unlikely: Annotated[int, Meta(description="Groups left out for a score below `min_score`")] = 0
    stages: Annotated[list[str], Meta(description="What actually ran: lexical, vector, rerank or maxsim")]
    degraded: Annotated[list[str], Meta(description="What should have run and did not, with the reason")] = []
    source: Annotated[str, Meta(description="hybrid, vector or lexical, with +rerank if that ran")] = "lexical"
    reranked: Annotated[bool, Meta(description="Whether the cross-encoder ordered the best hits")] = False
    vectors_waiting: int = 0


class Fusion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the two rankings are fused."""

    method: Annotated[
        str, Meta(pattern="^(weighted|rrf|lexical|vector)$", description="weighted, rrf, lexical or vector")
    ] = "weighted"
    vector_weight: (
        Annotated[
            float,
            Meta(ge=0, le=1, description="Share of the vector score under `weighted`; default: chosen by the results"),
        ]
        | None
    ) = None


class Surroundings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Groups that follow each other, such as turns: a hit also counts by the group before it, and by others of its
    whole."""

    follows: Annotated[str, Meta(description="Metadata with the id of the group before")]
    whole: Annotated[str, Meta(description="Metadata that names what a group is part of")]


@internal.read("retrieve_search", deadline_s=30)
class RetrieveSearch(Params[SearchResult], frozen=True, kw_only=True):
    """Search a collection by words and by meaning in parallel, fuse, and rerank if there is a cross-encoder."""

    collection: Collection
    query: Annotated[str, Meta(min_length=1, max_length=65536, description="Any text; there is no query syntax")]
    limit: Annotated[int, Meta(ge=1, le=1000, description="Groups at most")] = 20
    candidates: Annotated[int, Meta(ge=1, le=2000, description="Pieces that each stage passes on")] = 50
    filters: Annotated[list[Filter], Meta(description="Conditions that all must hold")] = []
    fusion: Fusion = Fusion()
    texts: Annotated[int, Meta(ge=0, le=1000, description="Number of hits returned with more than ids")] | None = None
    min_score: MinScore = 0.0
    around: Surroundings | None = None


class CollectionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Size of a collection and progress of its vectors."""

    collection: str
    groups: int = 0
    items: int = 0
    vectors: int = 0
    vectors_waiting: int = 0
    vectors_failed: Annotated[int, Meta(description="Of those: pieces that the model failed on; retried")] = 0
    backlog: Annotated[Backlog | None, Meta(description="Speed of their progress; null if none wait")] = None
    fingerprint: str | None = None
    coming: Annotated[str | None, Meta(description="Fingerprint of the next model: searched once all is ready")] = None
    no_model: Annotated[str, Meta(description="Why no vectors come: no model is installed, and how to get one")] = ""
    size_bytes: int = 0
    index: Annotated[str, Meta(description="Kind of vector index in use")] = "none"
    words: Annotated[str, Meta(description="Word index in use: fts5, or tantivy if large")] = "fts5"
    epoch: Epoch = ""
    degraded: Annotated[list[str], Meta(description="Why the collection is incomplete")] = []


@internal.read("retrieve_status", deadline_s=10, callers=("documents", "knowledge", "transcripts", OPERATOR))
class RetrieveStatus(Params[CollectionStatus], frozen=True, kw_only=True):
    """Report the size of a collection; one never written is empty, not an error."""

    collection: Collection


class GroupIds(msgspec.Struct, frozen=True, kw_only=True):
    """Ids of groups, sorted, and whether more follow."""

    ids: list[str] = []
    more: bool = False
    epoch: Epoch = ""


class CollectionEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """The database of the collection."""

    epoch: Epoch


@internal.write("retrieve_epoch", idempotent=False, deadline_s=MAX_WAIT_S + 15)
class RetrieveEpoch(Params[CollectionEpoch], frozen=True, kw_only=True):
    """Wait until the epoch differs from `filled`: a damaged collection restarts empty and must be fed again.

    Passing an epoch in `filled` states that the collection has the whole corpus; until then it is `degraded`.
    """

    collection: Collection
    filled: Annotated[str, Meta(description="The epoch that has the whole corpus; empty: none yet")] = ""
    wait_s: Annotated[float, Meta(ge=0, le=MAX_WAIT_S, description="How long to wait for a new one")] = 0.0


@internal.read("retrieve_groups", deadline_s=30)
class RetrieveGroups(Params[GroupIds], frozen=True, kw_only=True):
    """List the ids of a collection's groups, page by page, so that a caller can reconcile its own records after a
    crash."""

    collection: Collection
    after: Annotated[str, Meta(description="Ids greater than this one")] = ""
    limit: Annotated[int, Meta(ge=1, le=10000, description="Ids at most")] = 10000


Everywhere: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=80, description="Name of the collection; a client's begins with own.")
]
ItemId: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]

MAX_SETTLED = 1024


class Outbox(msgspec.Struct, frozen=True, kw_only=True):
    """Items of a collection that wait for a vector of the model in use."""

    collection: str
    waiting: int
    failed: Annotated[int, Meta(description="Of those: items that the model failed on; retried")] = 0
    trouble: Annotated[str, Meta(description="Why none are embedded at the moment; empty if they are")] = ""


class Outboxes(msgspec.Struct, frozen=True, kw_only=True):
    """The outboxes of all collections."""

    outboxes: list[Outbox]


@internal.read("retrieve_outboxes", deadline_s=60, callers=(OPERATOR,))
class RetrieveOutboxes(Params[Outboxes], frozen=True, kw_only=True):
    """Count the items that wait for a vector, in each collection, or in one."""

    collection: Annotated[str, Meta(description="Only this one; a client's begins with own.; empty: all")] = ""


class WaitingItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item that waits for a vector; `hash` identifies the words to embed."""

    id: ItemId
    hash: bytes
    text: Annotated[str, Meta(description="What is embedded, without any prefix of the model's")]


class WaitingItems(msgspec.Struct, frozen=True, kw_only=True):
    """A page of items that wait for a vector, the newest first."""

    items: list[WaitingItem] = []


@internal.read("retrieve_waiting", deadline_s=60, callers=(OPERATOR,))
class RetrieveWaiting(Params[WaitingItems], frozen=True, kw_only=True):
    """Return items that wait for a vector, the newest first, page by page.

    The service itself starts with the oldest, so whoever embeds these pages hardly does its work again.
    """

    collection: Everywhere
    before: Annotated[ItemId, Meta(description="Items with lesser ids: the last one of the page before")] = 2**63 - 1
    limit: Annotated[int, Meta(ge=1, le=4096, description="Items at most")] = 1024


class SettledItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item as it was when its text was embedded."""

    id: ItemId
    hash: bytes


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """The vectors are on disk."""

    vectors_waiting: Waiting = 0


@internal.write("retrieve_settle", idempotent=True, deadline_s=120, callers=(OPERATOR,))
class RetrieveSettle(Params[Settled], frozen=True, kw_only=True):
    """Store vectors of the model in use that were computed elsewhere.

    Items whose words have changed since are ignored, as are removed ones. A vector that is there already is replaced.
    """

    collection: Everywhere
    fingerprint: Annotated[str, Meta(min_length=1, description="Of the model that made the vectors")]
    items: Annotated[list[SettledItem], Meta(min_length=1, max_length=MAX_SETTLED, description="Items of the vectors")]
    vectors: Annotated[bytes, Meta(description="Unit vectors, one after the other: float16, little-endian")]


class Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """A group similar to another."""

    group: str
    similarity: Annotated[float, Meta(description="Cosine of the two groups' vectors, to six places")]


class Neighbours(msgspec.Struct, frozen=True, kw_only=True):
    """The nearest groups, nearest first."""

    neighbours: list[Neighbour] = []
    has_vector: Annotated[bool, Meta(description="Whether the requested group has a vector")] = False
    vectors_waiting: Waiting = 0


@internal.read("retrieve_similar", deadline_s=30, callers=("knowledge", OPERATOR))
class RetrieveSimilar(Params[Neighbours], frozen=True, kw_only=True):
    """Find the groups nearest to one group, exactly, by stored vectors: nothing is embedded.

    A group's vector is the normalised mean of its items' vectors.
    """

    collection: Collection
    group: Name
    limit: Annotated[int, Meta(ge=1, le=10000, description="Groups at most")] = 10
    threshold: Cosine = -1.0


class Pair(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Two groups, `first` before `second` in the order of ids."""

    first: str
    second: str
    similarity: float


class Pairs(msgspec.Struct, frozen=True, kw_only=True):
    """The most similar pairs, best first; ties are ordered by id."""

    pairs: list[Pair] = []
    more: Annotated[bool, Meta(description="Whether further pairs reach the threshold")] = False
    groups: Annotated[int, Meta(description="Groups with a vector, whose pairs were all compared")] = 0
    vectors_waiting: Waiting = 0


@internal.read("retrieve_pairs", deadline_s=120, callers=("knowledge", OPERATOR))
class RetrievePairs(Params[Pairs], frozen=True, kw_only=True):
    """Find the most similar pairs among all groups, exactly, each pair once; vectors as in `retrieve_similar`."""

    collection: Collection
    threshold: Cosine
    limit: Annotated[int, Meta(ge=1, le=100_000, description="Pairs at most")] = 1000
    nearest: (
        Annotated[int, Meta(ge=1, le=100, description="Only pairs with one of a group's this many nearest")] | None
    ) = None


class Grouping(msgspec.Struct, frozen=True, kw_only=True):
    """Groups clustered by topic; each is in exactly one cluster."""

    clusters: Annotated[list[list[str]], Meta(description="Ids, the most typical first; the largest first")] = []
    groups: Annotated[int, Meta(description="Groups with a vector")] = 0
    vectors_waiting: Waiting = 0


class Clustering(enum.StrEnum):
    """Spherical k-means, or chains of groups, each at `threshold` from the next."""

    KMEANS = "kmeans"
    SIMILAR = "similar"


@internal.read("retrieve_clusters", deadline_s=120, callers=("knowledge", OPERATOR))
class RetrieveClusters(Params[Grouping], frozen=True, kw_only=True):
    """Cluster groups by their vectors (as in `retrieve_similar`), deterministically."""

    collection: Collection
    method: Clustering = Clustering.KMEANS
    count: Annotated[int, Meta(ge=1, le=1000, description="For kmeans; default by the number of groups")] | None = None
    threshold: Annotated[Cosine, Meta(description="For `similar`")] = 0.8
