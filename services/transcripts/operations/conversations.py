"""Operations of `transcripts`: conversations with language models, stored by content, searched, resumed, deleted.

A conversation is a chain of nodes, one per message. All conversations form a forest: those that start alike share their
first nodes. A node's hash is the SHA-256 of its content and its parent's hash, so nothing is stored twice, however
often a client repeats its history.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta

from proto.errors import Kind
from proto.operation import CLIENT, OPERATOR, Family, Params, Role, Route, SaidIfAny, detail
from proto.ops.retrieve import UNLIKELY, MinScore, Score, Value

SERVICE = "transcripts"

tool = Family(SERVICE, surfaces=("transcripts",))
served = Family(SERVICE, role=Role.INTERNAL, callers=(CLIENT, OPERATOR), surfaces=("transcripts",))
operator = Family(SERVICE, role=Role.INTERNAL, callers=(OPERATOR,))

Hash = Annotated[str, Meta(pattern="^[0-9a-f]{64}$", description="Hash of a turn, 64 hex digits")]
ConversationId = Annotated[str, Meta(pattern="^[0-9a-f]{32}$", description="Id of a conversation, 32 hex digits")]
Instant: TypeAlias = str | int | float
"""RFC 3339 with any offset, a date, or Unix seconds."""

STATUSES = {Kind.OPERATION: 500, Kind.UNKNOWN_OPERATION: 503, Kind.OVERLOADED: 503, Kind.MAYBE_EXECUTED: 503}
"""Statuses of the HTTP routes. Temporary failures are 503: the client may retry, and the turn is stored once."""


def _dag(path: str) -> Route:
    return Route("GET", f"/dag/{path}", missing="node not found", statuses=STATUSES)


Json = dict[str, Any]


class Block(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of a message. `is_error` is always present; other empty fields are omitted.

    Fields are sorted by name, which is their order in canonical JSON.
    """

    image_base64: str = ""
    image_url: str = ""
    is_error: Annotated[bool, SaidIfAny]
    media_type: str = ""
    text: str = ""
    tool_input: Json | None = None
    tool_name: str = ""
    tool_output: str = ""
    tool_result_id: str = ""
    tool_use_id: str = ""
    type: Annotated[str, Meta(description="text, image, tool_use or tool_result")]


class Bucket(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The hashed content of a node, besides its parent's hash."""

    type: str
    role: str
    content: list[Block]
    model: str
    provider: str
    agent_name: str = ""


# Search


class LineageTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn between the conversation's first one and the hit."""

    hash: str
    role: Annotated[str, Meta(description="user, assistant, system or tool")]
    text: str


class TranscriptHit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A turn that was found, with the conversation before it."""

    hash: Annotated[str, Meta(description="Unique identifier of the turn")]
    score: Score
    role: Annotated[str, Meta(description="user, assistant, system or tool")]
    preview: Annotated[str, Meta(description="The text of the turn")]
    depth: Annotated[int, Meta(description="Position in the conversation: turns from its first to this one")]
    lineage: Annotated[list[LineageTurn], Meta(description="The conversation up to this turn, first turn first")]
    machine: Annotated[str, detail("The machine that stored it, if it was another one")] = ""
    branch: Annotated[str, detail("The branch of its project's repository")] = ""
    files: Annotated[list[str], detail("Files that its tool calls name")] = []
    changes: Annotated[list[str], detail("Ids of the changes that it reports; `changes_show` shows them")] = []


class TranscriptSearchResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Turns, best first."""

    query: Annotated[str, Meta(description="The query as given")]
    count: Annotated[int, Meta(description="Number of results")]
    results: list[TranscriptHit]
    degraded: Annotated[list[str], Meta(description="What did not run, or is not indexed yet, and why")] = []
    unlikely: Annotated[int, Meta(description="Left out for a score below `min_score`")] = 0
    note: Annotated[str, Meta(description="Set if no result is likely to be an answer")] = ""


Query = Annotated[str, Meta(min_length=1, max_length=65536, description="Plain language")]


@tool.read(
    "chats_search",
    deadline_s=30,
    title="Search conversations",
    surfaces=("transcripts", "core"),
    codes={-32602: "an argument is missing, unknown, of the wrong type or out of range", -32603: "the search failed"},
)
class TranscriptsSearch(Params[TranscriptSearchResult], frozen=True, kw_only=True):
    """Conversations: search past chats with language models (things said, decided, tried) by meaning and by words;
    each turn with the talk that led to it. Not notes (notes_search) or stored files (documents_search)."""

    common: ClassVar = {"top_k": "limit"}
    query: Query
    top_k: Annotated[int, Meta(ge=-(2**31), le=2**31, description="Not above 0: 5")] = 5
    role: Annotated[Annotated[str, Meta(max_length=64)], detail("Only of this role")] = ""
    since: Annotated[Instant | None, Meta(description="RFC 3339, date, `yesterday`")] = None
    until: Annotated[Instant | None, Meta(description="A date includes all of it")] = None
    agent: Annotated[Annotated[str, Meta(max_length=256)], detail("Only of this agent")] = ""
    project: Annotated[Annotated[str, Meta(max_length=1024)], detail("Only of this project")] = ""
    tool: Annotated[str, Meta(max_length=256, description="Only its calls and results; * for all")] = ""
    distinct: Annotated[bool, Meta(description="Only the best hit per conversation")] = False
    min_score: MinScore = 0.0
    max_tokens: (
        Annotated[int, Meta(ge=1, le=2**31, description="Length, about; the oldest turns are cut first")] | None
    ) = None


class Corpus(enum.StrEnum):
    """A corpus of `everything_search`."""

    TRANSCRIPTS = "transcripts"
    NOTES = "notes"
    DOCUMENTS = "documents"
    MEMORY = "memory"


class Ranking(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a passage ranks where it does: the figures of each stage that found it."""

    words: Annotated[float | None, Meta(description="Score by words (BM25)")] = None
    similarity: Annotated[float | None, Meta(description="Cosine of its vector and the query's")] = None
    rerank: Annotated[float | None, Meta(description="The cross-encoder's score")] = None


class EverythingHit(msgspec.Struct, frozen=True, kw_only=True):
    """A passage and its source."""

    corpus: Corpus
    id: Annotated[str, Meta(description="Id for that corpus' own tools: a document's hash")]
    score: Score
    title: str
    context: Annotated[str, Meta(description="Headings, or the speaker's role")]
    text: Annotated[str, Meta(description="The passage that matched")]
    lines: Annotated[str, Meta(description="Its lines in the note or document, from 1: 12-30")] = ""
    source: Annotated[str, Meta(description="What found it: vector+rerank, hybrid+rerank, hybrid, vector or lexical")]
    ranking: Ranking = Ranking()
    metadata: Annotated[dict[str, Value], Meta(description="From its corpus: path, time, agent, project")]


class EverythingResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Passages of all corpora, best first."""

    query: str
    count: int
    results: list[EverythingHit]
    searched: Annotated[list[Corpus], Meta(description="The corpora searched")]
    degraded: Annotated[list[str], Meta(description="What did not run, or is not indexed yet, and why"), SaidIfAny]
    unlikely: Annotated[int, Meta(description="Left out for a score below `min_score`")] = 0
    note: Annotated[str, Meta(description="Set if no result is likely to be an answer")] = ""
    hint: Annotated[str, Meta(description="How to search only the time that the query names")] = ""


@tool.read(
    "everything_search", is_essential=True, title="Search everything", deadline_s=30, surfaces=("knowledge", "core")
)
class SearchEverything(Params[EverythingResult], frozen=True, kw_only=True):
    """Everything: look everywhere at once, whether it was in a note, a chat (past conversation) or a stored file. Each
    passage says where it is from; the first choice when the place is not known."""

    query: Query
    limit: Annotated[int, Meta(ge=1, le=200, description="Passages at most")] = 10
    corpora: Annotated[list[Corpus], Meta(description="Where to search; default everywhere")] = []
    since: Annotated[Instant | None, Meta(description="Date, `last week`, `March`")] = None
    until: Annotated[Instant | None, Meta(description="Includes all of it")] = None
    min_score: MinScore = UNLIKELY


# Lists, deletion, checkout


Order: TypeAlias = Literal["newest", "oldest", "turns", "tokens", "cost"]
"""Sort order; turns, tokens and cost sort descending."""


class SpentTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a conversation's replies, as counted by the provider."""

    input: Annotated[int, Meta(description="Tokens sent, cache reads included")]
    output: int
    estimated: Annotated[bool, Meta(description="Whether some replies had no figures: characters / 4"), SaidIfAny]


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """The turns of a session, or all turns after one first user turn."""

    id: Annotated[str, Meta(description="For chats_delete")]
    hash: Annotated[str, Meta(description="Newest turn, for chats_read")]
    title: Annotated[str, Meta(description="The first line said by a person")]
    project: Annotated[str, Meta(description="Its folder")]
    agent: str
    provider: str
    model: Annotated[str, Meta(description="Model of the newest reply")]
    began: str
    ended: Annotated[str, Meta(description="Time of the newest turn")]
    turns: int
    bytes: int
    tokens: SpentTokens
    cost_usd: Annotated[float | None, Meta(description="By list prices; null if none is known")]
    cost_incomplete: Annotated[
        bool, Meta(description="Whether `cost_usd` leaves out calls without a known price"), SaidIfAny
    ]


class Conversations(msgspec.Struct, frozen=True, kw_only=True):
    """A page of conversations, and the total."""

    conversations: list[Conversation]
    total: int
    cost_usd: Annotated[float | None, Meta(description="Total of all of these, as far as known")]
    cost_incomplete: Annotated[
        bool, Meta(description="Whether `cost_usd` leaves out calls without a known price"), SaidIfAny
    ]
    unpriced: Annotated[list[str], Meta(description="Models without a known price"), SaidIfAny]
    prices_of: Annotated[str, Meta(description="The date of the prices")]
    next_cursor: Annotated[str | None, Meta(description="Value of `cursor` for the next page")]
    degraded: Annotated[list[str], Meta(description="What is missing, and why"), SaidIfAny]


@tool.read("chats_list", deadline_s=30, title="List conversations")
class TranscriptList(Params[Conversations], frozen=True, kw_only=True):
    """Past conversations by project, agent and time, with title, size, tokens and cost. By content: chats_search."""

    query: Annotated[str, Meta(max_length=1024, description="Words of the title")] = ""
    project: Annotated[Annotated[str, Meta(max_length=1024)], detail("Only of this project")] = ""
    agent: Annotated[str, Meta(max_length=256, description="Or provider")] = ""
    since: Annotated[
        Annotated[str, Meta(max_length=64)] | None, detail("RFC 3339, a date, Unix seconds, `last week`")
    ] = None
    until: Annotated[
        Annotated[str, Meta(max_length=64)] | None, detail("As `since`; a date includes its whole day")
    ] = None
    sort: Order = "newest"
    limit: Annotated[Annotated[int, Meta(ge=1, le=200)], detail("Conversations at most")] = 20
    cursor: Annotated[Annotated[str, Meta(max_length=128)] | None, detail("`next_cursor` of the previous page")] = None


class DeletedTurns(msgspec.Struct, frozen=True, kw_only=True):
    """Deleted turns: no search finds them; if `search_pending` is 0, no file contains them either."""

    deleted: Annotated[int, Meta(description="Turns whose content was deleted")]
    placeholders: Annotated[int, Meta(description="Of those: turns with successors, kept as a bare hash")]
    shared: Annotated[int, Meta(description="Turns kept because other conversations share them")] = 0
    search_pending: Annotated[
        int,
        Meta(description="Entries still in files of the search index; they are never returned, and purged later"),
    ]


@tool.destroy("chats_delete", idempotent=True, deadline_s=60, title="Delete turns")
class TranscriptDelete(Params[DeletedTurns], frozen=True, kw_only=True):
    """Forget a turn of a past conversation for good: content, vectors and words. Turns that follow stay, unless
    `descendants`. One of `hash`, `conversation` or both is required."""

    hash: Hash | None = None
    conversation: Annotated[
        ConversationId | None,
        detail("`id` of a listed conversation: all its turns, or only `hash` in it; turns shared with others stay"),
    ] = None
    descendants: Annotated[bool, Meta(description="All later turns too, on every branch")] = False
    bar: Annotated[bool, Meta(description="Refuse it from now on, even if a client repeats it")] = False


class Form(enum.StrEnum):
    """Format of the returned messages."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    STORED = "stored"
    TEXT = "text"


class Checkout(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A conversation, ready to be sent to a model with one more message."""

    messages: Annotated[list[Json], Meta(description="First to last, in the provider's API format")]
    system: Annotated[str, Meta(description="The system prompt, if separate in the API")]
    head_hash: str
    depth: int
    model: str
    provider: str
    form: Form
    text: Annotated[str, Meta(description="With form `text`: a page of text instead of messages")] = ""
    next_cursor: Annotated[str | None, Meta(description="Value of `cursor` for the next page")] = None


@tool.read(
    "chats_read",
    deadline_s=30,
    title="Check out a conversation",
    surfaces=("transcripts",),
    is_exact=True,
)
class TranscriptCheckout(Params[Checkout], frozen=True, kw_only=True):
    """Resume a past conversation, continue where it ended: its messages up to a turn (`hash`, from search)."""

    hash: Hash
    form: Annotated[Form | None, Meta(description="Target API; default: its provider's")] = None
    cursor: Annotated[
        Annotated[str, Meta(max_length=64)] | None, detail("For `text`: `next_cursor` of the previous page")
    ] = None


# Results of the HTTP routes


class NodeView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node; `hash` covers `bucket` and `parent_hash`."""

    hash: str
    parent_hash: str | None
    bucket: Bucket
    stop_reason: str = ""
    usage: Json | None = None
    project: str = ""


@served.read("transcript_node", deadline_s=10, http=_dag("node/{hash}"))
class TranscriptNode(Params[NodeView | None], frozen=True, kw_only=True):
    """Return the node with this hash, or null."""

    hash: str


class HistoryMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message of a conversation; the first has no parent."""

    hash: str
    parent_hash: str = ""
    role: str
    content: list[Block]
    model: str = ""
    provider: str = ""
    agent_name: str = ""
    stop_reason: str = ""
    usage: Json | None = None


class History(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation up to a node, oldest message first."""

    messages: list[HistoryMessage]
    head_hash: str
    depth: int


@served.read("transcript_history", deadline_s=30, http=_dag("history/{hash}"))
class TranscriptHistory(Params[History | None], frozen=True, kw_only=True):
    """Return the conversation up to the node with this hash, or null."""

    hash: str


class Histories(msgspec.Struct, frozen=True, kw_only=True):
    """Conversations up to their last messages, the newest first."""

    histories: list[History]
    total: Annotated[int, Meta(description="Number in all")]


@served.read("transcript_histories", deadline_s=30)
class TranscriptHistories(Params[Histories], frozen=True, kw_only=True):
    """List the newest conversations, one per last message."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class TreeNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A turn in a tree of conversations with the same beginning."""

    hash: str
    parent_hash: str = ""
    role: str
    preview: Annotated[str, Meta(description="Beginning of its text")]
    model: str = ""
    agent: str = ""
    at: Annotated[str, Meta(description="RFC 3339; empty if unknown")] = ""
    tokens: Annotated[int | None, Meta(description="Of the call that made it, if it was recorded")] = None


class Tree(msgspec.Struct, frozen=True, kw_only=True):
    """All turns that follow one first turn, each after its parent."""

    nodes: list[TreeNode]
    complete: Annotated[bool, Meta(description="Whether these are all")]


@served.read("transcript_tree", deadline_s=30)
class TranscriptTree(Params[Tree | None], frozen=True, kw_only=True):
    """Return the tree of conversations that a turn belongs to: it branches where conversations went on differently."""

    hash: Hash
    limit: Annotated[int, Meta(ge=1, le=10000)] = 2000


class ForestStats(msgspec.Struct, frozen=True, kw_only=True):
    """Number of nodes, first nodes and last nodes."""

    total_nodes: int
    root_count: int
    leaf_count: int


@served.read("transcript_stats", deadline_s=30, http=_dag("stats"))
class TranscriptStats(Params[ForestStats], frozen=True, kw_only=True):
    """Report how much is stored."""
