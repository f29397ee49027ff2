"""Operations of `knowledge`: search, read and link Markdown notes below the roots. A note is a *hollow node*: its text
stays in its file, and only its path, hash, title, metadata and links are stored."""

from __future__ import annotations

import enum
from typing import Annotated, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta

from proto.operation import OPERATOR, Family, Params, Resource, Role, SaidIfAny
from proto.ops.completing import Completing
from proto.ops.graph import Direction
from proto.ops.retrieve import UNLIKELY, Matched, MinScore, Score, Similarity
from proto.wire.frames import Backlog
from proto.wire.front import SERVICE as FRONT

tool = Family("knowledge", surfaces=("knowledge",))
resource = Family("knowledge", role=Role.RESOURCE, surfaces=("knowledge",))
operator = Family("knowledge", callers=(OPERATOR,))
completing = Family("knowledge", role=Role.INTERNAL, surfaces=("knowledge",), callers=(FRONT,))

NodeId = Annotated[str, Meta(min_length=1, max_length=1024, description="Id of a note, from notes_search")]
Instant: TypeAlias = str | int | float
"""RFC 3339 with any offset, `YYYY-MM-DDTHH:MM` (UTC), a date, or Unix seconds."""

_SINCE = "Only notes from then (`date`, else last change) on: RFC 3339, date, `last week`"


class SearchHit(msgspec.Struct, frozen=True, kw_only=True):
    """A note that was found, with the passage that matched."""

    id: Annotated[str, Meta(description="Id of the note, for notes_read and notes_links")]
    score: Score
    preview: Annotated[str, Meta(description="Title of the note")]
    source: Annotated[str, Meta(description="What found it: vector+rerank, hybrid+rerank, hybrid, vector or lexical")]
    snippet: Annotated[str, Meta(description="The passage that matched")]
    context: Annotated[
        str, Meta(description="Its headings and lines; for the best five also a language model's remark")
    ]
    path: Annotated[str, Meta(description="The note's file, relative to its root")] = ""
    first_line: Annotated[int | None, Meta(description="First line of the snippet in the file, from 1")] = None
    last_line: Annotated[int | None, Meta(description="Where it ends")] = None
    similarity: Similarity | None = None
    matched: Matched = []


class SearchMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """How the answer was found."""

    query: Annotated[str, Meta(description="The query as given")]
    sonar_enabled: Annotated[bool, Meta(description="Whether a language model refined the answer")]
    intent: Annotated[str | None, Meta(description="The language model's reading of the query")]
    analysis: Annotated[str | None, Meta(description="The language model's remarks on the results")]
    stages: Annotated[list[str], Meta(description="What actually ran: lexical, vector, rerank, sonar")]
    degraded: Annotated[list[str], Meta(description="What did not run, or is not indexed yet, and why"), SaidIfAny]
    hint: Annotated[str | None, Meta(description="How to narrow the query, if it names a time")] = None


class SearchDocumentsResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Notes, best first."""

    results: list[SearchHit]
    metadata: SearchMetadata
    left_out: Annotated[int, Meta(description="Notes found that did not fit into `max_tokens`")] = 0
    unlikely: Annotated[int, Meta(description="Left out for a score below `min_score`")] = 0
    note: Annotated[str, Meta(description="Set if no result is likely to be an answer")] = ""


@tool.read("notes_search", surfaces=("knowledge", "core"), title="Search notes", deadline_s=30)
class SearchDocuments(Params[SearchDocumentsResult], frozen=True, kw_only=True):
    """Notes: find Markdown notes by meaning and by words, best notes first, each with the passage that matched. Not
    conversations (chats_search), stored files (documents_search) or all at once (everything_search)."""

    query: Annotated[str, Meta(min_length=1, max_length=8192, description="Plain language")]
    limit: Annotated[int, Meta(ge=1, le=1000, description="Notes at most")] = 20
    tags: Annotated[list[str], Meta(max_length=32, description="Only notes with all these tags")] = []
    path: Annotated[str, Meta(max_length=4096, description="Only paths that start with this: `guides/`")] = ""
    since: Annotated[Instant | None, Meta(description=_SINCE)] = None
    until: Annotated[Instant | None, Meta(description="Or earlier; a date includes its whole day")] = None
    max_tokens: Annotated[int, Meta(ge=1, le=2**31, description="Length of the answer, about")] | None = None
    min_score: MinScore = UNLIKELY


class NodeContent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The current file with front matter, or the requested part of it."""

    text: str
    lines: Annotated[str, Meta(description="First and last line of a part, `10-80`")] = ""
    total_lines: Annotated[int, Meta(description="With a part: lines of the whole file")] = 0
    hash: Annotated[str, Meta(description="Of the whole file, for `if_match`")] = ""


@tool.read(
    "notes_read", is_essential=True, surfaces=("knowledge", "core"), title="Read a note", deadline_s=30, text="text"
)
class ReadNodeContent(Params[NodeContent], frozen=True, kw_only=True):
    """Read a note, or one section (under a heading) or some `lines` of it, from its file, by the note's id. Ids come
    from notes_search."""

    id: NodeId
    lines: Annotated[str, Meta(max_length=24, description="Only these lines: `10-80`, `10-`")] = ""
    section: Annotated[str, Meta(max_length=1024, description="Only the text under this heading")] = ""


class NoteLink(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An edge between two notes; `source` is given with a `direction` other than `out`, both with a `depth` above 1."""

    target: Annotated[str, Meta(description="Id of the note (or the name) that the edge points to")]
    type: Annotated[str, Meta(description="CITES, LINKS_TO, REFERENCES, FOLLOWS, IMPLEMENTS, TAGGED_AS, SIMILAR, …")]
    source: Annotated[str | None, Meta(description="Id of the note that the edge starts from")] = None
    depth: Annotated[int | None, Meta(description="Steps from the requested note")] = None


@tool.read("notes_links", title="Links of a note", deadline_s=30)
class ExploreLinks(Params[list[NoteLink]], frozen=True, kw_only=True):
    """Follow the links of one note: its links, or with `direction` its backlinks. Further away:
    graph_neighbors."""

    id: NodeId
    relation: Annotated[str, Meta(max_length=256, description="Only this type; `similar`: by meaning")] | None = None
    direction: Annotated[Direction, Meta(description="Edges from here (out), to here (in), or both")] = Direction.OUT
    depth: Annotated[int, Meta(ge=1, le=5, description="Steps to follow")] = 1


@tool.read("notes_tree", deadline_s=10)
class ListDirectoryStructure(Params[list[str]], frozen=True, kw_only=True):
    """List the folders that hold notes, each ending in `/`. Files of a folder on disk:
    files_browse."""


Tag = Annotated[str, Meta(min_length=1, max_length=256, description="A tag; no comma, line break or `-->`")]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A file or folder that is not fully indexed."""

    path: str
    reason: str


class BrokenLink(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A link whose target does not exist."""

    note: Annotated[str, Meta(description="Id of the note that has it")]
    path: Annotated[str, Meta(description="Its file, relative to its root")]
    link: Annotated[str, Meta(description="As written")]
    line: Annotated[int | None, Meta(description="Line in the file, from 1")] = None
    meant: Annotated[list[str], Meta(description="Existing notes it may mean, the likeliest first")] = []


class KnowledgeStatusResult(msgspec.Struct, frozen=True, kw_only=True):
    """How up to date the index is."""

    notes: Annotated[int, Meta(description="Notes known")]
    edges: Annotated[int, Meta(description="Links between notes")]
    pending: Annotated[int, Meta(description="Notes whose latest text is not indexed yet")]
    scanning: Annotated[bool, Meta(description="Whether the first scan since the start is still running")]
    last_scan: Annotated[str | None, Meta(description="End of the last scan, RFC 3339")]
    scan_ms: Annotated[float, Meta(description="Its duration in milliseconds")]
    scan_interval_s: Annotated[float, Meta(description="Seconds between two scans of all folders")]
    unwatched: Annotated[str | None, Meta(description="Why changes are only found by the next scan, if so")]
    roots: list[str]
    problems: Annotated[list[Problem], Meta(description="What is not fully indexed (the first 100)"), SaidIfAny]
    problem_count: int
    broken_links: Annotated[list[BrokenLink], Meta(description="Links without a target, at most `limit`")] = []
    broken_link_count: int = 0
    orphans: Annotated[list[str], Meta(description="Ids of notes without any link, at most `limit`")] = []
    orphan_count: int = 0
    waiting: Annotated[str | None, Meta(description="Why indexing is paused")]
    graph_pending: Annotated[int, Meta(description="Notes whose links are not in the graph yet")]
    graph_waiting: Annotated[str | None, Meta(description="Why feeding the graph is paused")]
    vectors_waiting: Annotated[int | None, Meta(description="Pieces not found by meaning yet; null: unknown")] = None
    vectors_backlog: Annotated[Backlog | None, Meta(description="Progress and speed; null: none wait")] = None
    rebuilt: Annotated[bool, Meta(description="Whether the database was damaged and rebuilt")]
    size_bytes: Annotated[int, Meta(description="Size of the database of notes and links")]


@tool.read("notes_status", deadline_s=10)
class KnowledgeStatus(Params[KnowledgeStatusResult], frozen=True, kw_only=True):
    """State of the notes: broken links, notes that nothing links to (orphans), and how many are known, wait to be
    indexed, or were left out and why."""

    limit: Annotated[int, Meta(ge=0, le=1000, description="Links and orphans listed")] = 10


class StatsSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Four lines of text."""

    text: str


@resource.read(
    "knowledge_stats_summary",
    deadline_s=10,
    text="text",
    resource=Resource(uri="amalfa://stats/summary", name="stats-summary", mime_type="text/plain"),
)
class KnowledgeStatsSummary(Params[StatsSummary], frozen=True, kw_only=True):
    """Numbers of nodes, edges and vectors of the notes, and their size on disk."""


@resource.read(
    "knowledge_note",
    deadline_s=30,
    text="text",
    completion="knowledge_names",
    resource=Resource(
        uri="linckia://notes/{id}", former=("amalfa://notes/{id}",), name="note", mime_type="text/markdown"
    ),
)
class KnowledgeNote(Params[NodeContent], frozen=True, kw_only=True):
    """A note's Markdown, by its id."""

    id: NodeId


@completing.read("knowledge_names", deadline_s=5)
class KnowledgeNames(Completing, Params[list[str]], frozen=True, kw_only=True):
    """Complete the argument `id` with note ids that contain the typed text."""


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Two notes of similar meaning without a link."""

    source_id: Annotated[str, Meta(description="The note that the link would start from")]
    target_id: Annotated[str, Meta(description="The note that the link would point to")]
    similarity: Annotated[float, Meta(description="Cosine of the two notes' vectors")]
    reason: Annotated[str, Meta(description="What they have in common")]
    suggested_link_type: Annotated[str, Meta(description="references, follows or implements")]


@tool.read("notes_gaps", deadline_s=120)
class FindGaps(Params[list[Gap]], frozen=True, kw_only=True):
    """Find notes that are similar in meaning and not linked: links to add, with reasons. The same text:
    notes_duplicates; broken links: notes_status."""

    limit: Annotated[int, Meta(ge=1, le=1000, description="Pairs at most")] = 10
    threshold: Annotated[float, Meta(ge=0, le=1, description="Least similarity")] = 0.8


class DuplicateNote(msgspec.Struct, frozen=True, kw_only=True):
    """A note of a group of duplicates."""

    id: str
    path: Annotated[str, Meta(description="Relative to its root")]


class DuplicateGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Notes with the same text."""

    notes: Annotated[list[DuplicateNote], Meta(description="The one that most notes link to first")]
    size: Annotated[int, Meta(description="Number of notes, listed or not")]
    share: Annotated[float, Meta(description="Least share of text in common; 1: all of it")]


class DuplicateNotes(msgspec.Struct, frozen=True, kw_only=True):
    """Groups of near-duplicates, the most alike first."""

    groups: list[DuplicateGroup]
    more: Annotated[int, Meta(description="Groups beyond `limit`")]
    degraded: Annotated[list[str], Meta(description="What may be missing, and why"), SaidIfAny]


@tool.read("notes_duplicates", deadline_s=120)
class FindDuplicateNotes(Params[DuplicateNotes], frozen=True, kw_only=True):
    """Duplicate notes: which say the same twice, exactly or nearly. Stored files: files_duplicates."""

    limit: Annotated[int, Meta(ge=1, le=1000, description="Groups at most")] = 10
    threshold: Annotated[float, Meta(ge=0.3, le=1, description="Least share of text in common")] = 0.8


class TaggedNote(msgspec.Struct, frozen=True, kw_only=True):
    """A note with its tags."""

    id: str
    title: str
    path: Annotated[str, Meta(description="Relative to its root")]
    tags: list[str]
    date: Annotated[str | None, Meta(description="The `date` of its front matter, else its last change; RFC 3339")]


@tool.read("notes_tagged", deadline_s=30)
class QueryByTags(Params[list[TaggedNote]], frozen=True, kw_only=True):
    """List the notes that carry tags, latest first. By words: notes_search."""

    tags: Annotated[list[Tag], Meta(min_length=1, max_length=32, description="The tags to look for")]
    match: Annotated[Literal["all", "any"], Meta(description="all: every tag; any: one of them")] = "all"
    limit: Annotated[int, Meta(ge=1, le=1000, description="Notes at most")] = 100


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """A note worth reading, and why."""

    id: str
    title: str
    score: Annotated[float, Meta(description="Higher is better; comparable within this answer only")]
    reason: Annotated[str, Meta(description="The passage that matched, or the notes that link to it")]


class ReadingList(msgspec.Struct, frozen=True, kw_only=True):
    """Notes, in reading order."""

    results: list[Reading]
    stages: Annotated[list[str], Meta(description="What actually ran: lexical, vector, rerank, links")]
    degraded: Annotated[list[str], Meta(description="What did not run, or is not indexed yet, and why"), SaidIfAny]


@tool.read("notes_suggest", deadline_s=30)
class SuggestReading(Params[ReadingList], frozen=True, kw_only=True):
    """What to read before you begin a task: notes that match it, and those that several of them link with."""

    common: ClassVar = {"context": "query"}
    context: Annotated[str, Meta(min_length=1, max_length=65536, description="The task in plain words, or a note's id")]
    limit: Annotated[int, Meta(ge=1, le=100, description="Notes at most")] = 5


class TemporalSearchResult(msgspec.Struct, frozen=True, kw_only=True):
    """Notes from a time, best first."""

    results: list[SearchHit]
    metadata: SearchMetadata
    since: Annotated[str | None, Meta(description="From this moment (RFC 3339)")]
    until: Annotated[str | None, Meta(description="To this moment (RFC 3339)")]


_RANGES = (
    "`2026-01-17`, `2026`, `2026-01-01..2026-03-31` (or one end), `September 2026`, `3 weeks ago`, `last 7 days`, UTC; "
    "German too"
)


@tool.read("notes_search_dates", deadline_s=30)
class TemporalSearch(Params[TemporalSearchResult], frozen=True, kw_only=True):
    """Search notes from a time (this week, January 2026, a range), by the front matter's `date`, else the last
    change."""

    query: Annotated[str, Meta(min_length=1, max_length=8192, description="Plain language")]
    date_range: Annotated[str, Meta(min_length=1, max_length=128, description=_RANGES)]
    limit: Annotated[int, Meta(ge=1, le=1000, description="Notes at most")] = 20


class ClusterMethod(enum.StrEnum):
    """How notes are grouped."""

    TOPICS = "topics"
    KMEANS = "kmeans"
    SIMILAR = "similar"
    LINKS = "links"


class ClusteredNote(msgspec.Struct, frozen=True, kw_only=True):
    """A note of a cluster."""

    id: str
    title: str


_METHODS = "`topics` (default): links and meaning; `kmeans`: `count`, by meaning; `similar`: chains; `links`"
_MIN_SIZE = "Least notes of a cluster; default 1 for kmeans, else 2"


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """Notes on one topic."""

    label: Annotated[str, Meta(description="Its most distinctive terms")]
    size: Annotated[int, Meta(description="Number of notes")]
    notes: Annotated[list[ClusteredNote], Meta(description="The most typical first, at most `notes_each`")]


class ClusterDocumentsResult(msgspec.Struct, frozen=True, kw_only=True):
    """Clusters, the largest first."""

    method: ClusterMethod
    clusters: list[Cluster]
    notes: Annotated[int, Meta(description="Notes in a cluster")]
    left_out: Annotated[int, Meta(description="Notes in no cluster: too few alike, too short, or not embedded yet")]
    degraded: Annotated[list[str], Meta(description="What may be missing, and why"), SaidIfAny]


@tool.read("notes_cluster", deadline_s=120)
class ClusterDocuments(Params[ClusterDocumentsResult], frozen=True, kw_only=True):
    """Group all notes into topics with labels."""

    method: Annotated[ClusterMethod, Meta(description=_METHODS)] | None = None
    count: Annotated[int, Meta(ge=1, le=1000, description="Topics of `kmeans`")] | None = None
    threshold: Annotated[float, Meta(ge=0, le=1, description="Least similarity of `similar`")] = 0.8
    min_size: Annotated[int, Meta(ge=1, le=10000, description=_MIN_SIZE)] | None = None
    notes_each: Annotated[int, Meta(ge=1, le=10000, description="Notes listed per topic")] = 20


class KnowledgeIngestResult(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of notes below the paths."""

    notes: Annotated[int, Meta(description="Notes below the paths")]
    indexed: Annotated[int, Meta(description="Of those, new or changed ones")]
    failed: Annotated[list[Problem], Meta(description="Notes that could not be indexed (the first 100)")]
    failed_count: int
    vectors_waiting: Annotated[int, Meta(description="Pieces of all notes not found by meaning yet")]
    no_model: Annotated[str, Meta(description="Why none will be: no model is installed, and how to get one")] = ""


@operator.write("knowledge_ingest", idempotent=True, deadline_s=86_400)
class KnowledgeIngest(Params[KnowledgeIngestResult], frozen=True, kw_only=True):
    """Scan the folders now, and return once every note below the paths is indexed; the work goes on without the
    caller."""

    paths: Annotated[list[str], Meta(max_length=1024, description="Absolute paths in roots; default all")] = []
    vectors: Annotated[bool, Meta(description="Wait also for meaning, if there is a model")] = True
