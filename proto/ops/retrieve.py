"""Operations of `retrieve`: named collections of text, found by words and by meaning.

A collection holds *groups* (a note, a document, a turn); a group holds *items* (its sections), each with its text.
Putting a group states its whole content, so that the write is idempotent and a crash can leave neither half.
"""

from __future__ import annotations

import enum
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from linckia.proto.frames import Backlog
from linckia.proto.operation import OPERATOR, Family, Params, Role

internal = Family("retrieve", role=Role.INTERNAL, callers=("documents", "knowledge", "memory", "transcripts", OPERATOR))


Collection = Annotated[
    str, Meta(pattern=r"^[a-z][a-z0-9_-]{0,63}$", description="A small letter, then small letters, digits, _ and -")
]
Value: TypeAlias = str | int | float | bool | list[str] | None
"""What metadata may hold."""
Epoch: TypeAlias = Annotated[str, Meta(description="Another one stands for another database, to be fed from the start")]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1024)]
Cosine: TypeAlias = Annotated[float, Meta(ge=-1, le=1, description="Least cosine")]
Waiting: TypeAlias = Annotated[int, Meta(description="Items of the collection whose vector is still to come")]

MAX_WAIT_S = 600

UNLIKELY = 0.05
"""Hits below it are left out of users' searches unless less is asked for: of right answers among the first ten, one in
a hundred is below."""

DOUBTFUL = 0.2
"""Where no hit reaches this, nothing relevant was found."""

MinScore: TypeAlias = Annotated[float, Meta(ge=0, le=1, description="Leave out less sure ones")]
Score: TypeAlias = Annotated[
    float, Meta(description="How sure it is that this answers the query, from 0 to 1; the same scale for every query")
]
Similarity: TypeAlias = Annotated[float, Meta(description="Cosine of query and passage")]
Matched: TypeAlias = Annotated[list[str], Meta(description="Words of the query that it holds")]


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One searchable piece of a group."""

    key: Annotated[Name, Meta(description="Unique in its group, stable while the piece is the same")]
    text: Annotated[str, Meta(description="What is searched and embedded")]
    heading: Annotated[str, Meta(description="Heading path of the piece, found by words as the text is")] = ""
    metadata: Annotated[dict[str, Value], Meta(description="Given back with a hit (its lines, say)")] = {}
    embed: Annotated[bool, Meta(description="Whether it gets a vector; without one it is found by words alone")] = True


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A group and all its items."""

    id: Annotated[Name, Meta(description="Unique in the collection")]
    items: Annotated[list[Item], Meta(description="All of its pieces; those that are not here are removed")]
    title: Annotated[str, Meta(description="Found by words, with more weight than the text")] = ""
    names: Annotated[str, Meta(description="Found by words as the title is, but neither shown nor embedded")] = ""
    metadata: Annotated[dict[str, Value], Meta(description="What filters look at, and given back with a hit")] = {}


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """It is on disk: what was put is found by words, what was deleted by no means."""

    vectors_waiting: Waiting = 0
    epoch: Epoch = ""


@internal.write("retrieve_put", idempotent=True, deadline_s=60)
class RetrievePut(Params[Written], frozen=True, kw_only=True):
    """Set the whole content of groups, in one transaction; unchanged items keep their vectors."""

    collection: Collection
    groups: Annotated[list[Group], Meta(min_length=1, max_length=1024, description="The groups to set")]


@internal.destroy("retrieve_delete", idempotent=True, deadline_s=60)
class RetrieveDelete(Params[Written], frozen=True, kw_only=True):
    """Remove groups; ids that are not there count for nothing."""

    collection: Collection
    groups: Annotated[list[str], Meta(min_length=1, max_length=4096, description="Ids of the groups")]


class Scrubbed(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing of what was deleted is left in the collection's database and its log."""


@internal.write("retrieve_scrub", idempotent=True, deadline_s=120, callers=("memory", "transcripts", OPERATOR))
class RetrieveScrub(Params[Scrubbed], frozen=True, kw_only=True):
    """Take out what deletions leave behind in files: words, vectors, pages of the log.  A second for 100,000 pieces."""

    collection: Collection


class Filter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A condition on the groups' metadata; several must all hold."""

    field: Annotated[str, Meta(description="Name in the group's metadata")]
    any_of: Annotated[list[str | int] | None, Meta(description="Equal to one of these, or a list with one")] = None
    prefix: Annotated[str | None, Meta(description="Text that starts with this")] = None
    at_least: Annotated[float | None, Meta(description="Number not below this")] = None
    at_most: Annotated[float | None, Meta(description="Number not above this")] = None


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """A group with its best piece; `score`, in [0, 1], is how sure it is that this answers the query."""

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
    matched: Matched = []


class SearchResult(msgspec.Struct, frozen=True, kw_only=True):
    """Hits, best first, and the truth about how they were found."""

    @property
    def note(self) -> str:
        """What is to be said of the hits as a whole: that none is an answer."""
        if self.best is None or self.best >= DOUBTFUL:
            return ""
        count = len(self.hits) + self.unlikely
        return f"nothing relevant was found: the best of {count} scores {self.best:.2f}"

    hits: list[Hit] = []
    best: Annotated[
        float | None, Meta(description="Score of the best there was, whether it is among the hits or not")
    ] = None
    unlikely: Annotated[int, Meta(description="Groups that were left out for a score below `min_score`")] = 0
    stages: Annotated[list[str], Meta(description="What truly ran: lexical, vector, rerank or maxsim")]
    degraded: Annotated[list[str], Meta(description="What should have run and did not, each with its reason")] = []
    source: Annotated[str, Meta(description="hybrid, vector or lexical, with +rerank where that ran")] = "lexical"
    reranked: Annotated[bool, Meta(description="Whether the cross-encoder decided the order of the best")] = False
    vectors_waiting: int = 0


class Fusion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the two orders become one."""

    method: Annotated[
        str, Meta(pattern="^(weighted|rrf|lexical|vector)$", description="weighted, rrf, lexical or vector")
    ] = "weighted"
    vector_weight: (
        Annotated[
            float,
            Meta(ge=0, le=1, description="Share of the vector score under `weighted`; by what is found if not given"),
        ]
        | None
    ) = None


@internal.read("retrieve_search", deadline_s=30)
class RetrieveSearch(Params[SearchResult], frozen=True, kw_only=True):
    """Search a collection by words and by meaning side by side, fuse, rerank where a cross-encoder is there."""

    collection: Collection
    query: Annotated[str, Meta(min_length=1, max_length=65536, description="Any text; there is no query syntax")]
    limit: Annotated[int, Meta(ge=1, le=1000, description="Groups to answer at most")] = 20
    candidates: Annotated[int, Meta(ge=1, le=2000, description="Pieces that each stage hands on")] = 50
    filters: Annotated[list[Filter], Meta(description="Conditions that all must hold")] = []
    fusion: Fusion = Fusion()
    texts: Annotated[int, Meta(ge=0, le=1000, description="So many hits come with more than their ids")] | None = None
    min_score: MinScore = 0.0


class CollectionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How much a collection holds and how far its vectors are."""

    collection: str
    groups: int = 0
    items: int = 0
    vectors: int = 0
    vectors_waiting: int = 0
    vectors_failed: Annotated[int, Meta(description="Of those: pieces that the model failed on; tried again")] = 0
    backlog: Annotated[Backlog | None, Meta(description="How quickly these come; null where none does")] = None
    fingerprint: str | None = None
    coming: (
        Annotated[str, Meta(description="Fingerprint of another model: once all vectors are of it, these are searched")]
        | None
    ) = None
    size_bytes: int = 0
    index: Annotated[str, Meta(description="Kind of vector index in use")] = "none"
    words: Annotated[str, Meta(description="Word index in use: fts5, or tantivy where it is large")] = "fts5"
    epoch: Epoch = ""
    degraded: Annotated[list[str], Meta(description="Why the collection does not hold all that it should")] = []


@internal.read("retrieve_status", deadline_s=10, callers=("documents", "knowledge", "transcripts", OPERATOR))
class RetrieveStatus(Params[CollectionStatus], frozen=True, kw_only=True):
    """How much a collection holds; one that was never written is empty, not an error."""

    collection: Collection


class GroupIds(msgspec.Struct, frozen=True, kw_only=True):
    """Ids of groups, sorted, and whether more follow the last one."""

    ids: list[str] = []
    more: bool = False
    epoch: Epoch = ""


class CollectionEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """The database that the collection is kept in."""

    epoch: Epoch


@internal.write("retrieve_epoch", idempotent=False, deadline_s=MAX_WAIT_S + 15)
class RetrieveEpoch(Params[CollectionEpoch], frozen=True, kw_only=True):
    """Wait until a collection is in another epoch than `filled`: a damaged one is begun again, empty, to be fed again.

    To name an epoch in `filled` says that all that the corpus has is in the collection; until then it is `degraded`.
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

    neighbours: list[Neighbour] = []
    has_vector: Annotated[bool, Meta(description="Whether the group that was asked for has one to compare")] = False
    vectors_waiting: Waiting = 0


@internal.read("retrieve_similar", deadline_s=30, callers=("knowledge", OPERATOR))
class RetrieveSimilar(Params[Neighbours], frozen=True, kw_only=True):
    """The groups nearest to one group, exactly, by stored vectors alone: nothing is embedded.

    A group's vector is the mean of its items' vectors, made a unit vector.
    """

    collection: Collection
    group: Name
    limit: Annotated[int, Meta(ge=1, le=10000, description="Groups to answer at most")] = 10
    threshold: Cosine = -1.0


class Pair(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Two groups, `first` before `second` in the order of ids."""

    first: str
    second: str
    similarity: float


class Pairs(msgspec.Struct, frozen=True, kw_only=True):
    """The most similar pairs, most similar first, those of one similarity in the order of ids."""

    pairs: list[Pair] = []
    more: Annotated[bool, Meta(description="Whether further pairs reach the threshold")] = False
    groups: Annotated[int, Meta(description="Groups that have a vector; all pairs of these were compared")] = 0
    vectors_waiting: Waiting = 0


@internal.read("retrieve_pairs", deadline_s=120, callers=("knowledge", OPERATOR))
class RetrievePairs(Params[Pairs], frozen=True, kw_only=True):
    """The most similar pairs of groups, over all pairs and exactly, each once; by the vectors of `retrieve_similar`."""

    collection: Collection
    threshold: Cosine
    limit: Annotated[int, Meta(ge=1, le=100_000, description="Pairs to answer at most")] = 1000
    nearest: Annotated[int, Meta(ge=1, le=100, description="Only with one of a group's so many nearest")] | None = None


class Grouping(msgspec.Struct, frozen=True, kw_only=True):
    """Groups of a collection put together by what they are about; each is in exactly one list."""

    clusters: Annotated[list[list[str]], Meta(description="Ids, the most typical first; the largest first")] = []
    groups: Annotated[int, Meta(description="Groups that have a vector")] = 0
    vectors_waiting: Waiting = 0


class Clustering(enum.StrEnum):
    """Spherical k-means, or chains of groups, each at `threshold` from the next."""

    KMEANS = "kmeans"
    SIMILAR = "similar"


@internal.read("retrieve_clusters", deadline_s=120, callers=("knowledge", OPERATOR))
class RetrieveClusters(Params[Grouping], frozen=True, kw_only=True):
    """Put groups together by their vectors (those of `retrieve_similar`), always in the same way."""

    collection: Collection
    method: Clustering = Clustering.KMEANS
    count: Annotated[int, Meta(ge=1, le=1000, description="Of kmeans; by default by the groups")] | None = None
    threshold: Annotated[Cosine, Meta(description="Of `similar`")] = 0.8
