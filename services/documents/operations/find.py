"""Operations of `documents` that find documents: by words and meaning, by regular expression, by relation."""

from __future__ import annotations

import enum
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from proto.operation import Params, SaidIfAny, SaidToPrograms
from proto.ops.documents.reading import (
    Collection,
    Extension,
    Glob,
    GraphEdge,
    GraphNode,
    Hash,
    Name,
    Session,
    Tags,
    Under,
    step,
)
from proto.ops.retrieve import UNLIKELY, Matched, MinScore, Score, Similarity


class SearchType(enum.StrEnum):
    """How to look."""

    KEYWORD = "keyword"
    SEMANTIC = "semantic"
    HYBRID = "hybrid"


class MatchedLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line with a word of the query, and those around it."""

    line_number: int
    line_text: str
    context_before: Annotated[list[str], SaidIfAny]
    context_after: Annotated[list[str], SaidIfAny]


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A document that was found."""

    id: Annotated[int, SaidToPrograms]
    hash: str
    title: str
    path: str
    name: Annotated[str, SaidToPrograms]
    score: Score
    snippet: Annotated[str, Meta(description="The passage that matched")]
    mime_type: str
    size: int
    tags: Annotated[list[str], SaidIfAny]
    first_line: Annotated[int | None, Meta(description="Line of the text, from 1, where the snippet begins")] = None
    last_line: Annotated[int | None, Meta(description="Where it ends")] = None
    line_number: Annotated[int | None, Meta(description="The same as first_line, with `line_numbers`")] = None
    cosine: Similarity | None = None
    matched: Matched = []
    matches: Annotated[
        list[MatchedLine], Meta(description="With `line_numbers` or `context`: lines with its words")
    ] = []


class SearchResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Documents, best first, and how they were found."""

    total: Annotated[int, Meta(description="Documents that matched; `results` has at most `limit`")]
    type: Annotated[str, Meta(description="What actually ran: keyword, semantic, hybrid, or hash")]
    execution_time_ms: Annotated[float, SaidToPrograms]
    results: list[Found]
    paths: Annotated[list[str] | None, Meta(description="With `paths_only`, instead of results")]
    corrected: Annotated[dict[str, str], Meta(description="Unknown words, and what was also searched for"), SaidIfAny]
    stages: Annotated[list[str], Meta(description="What actually ran: lexical, vector, rerank, recent")]
    degraded: Annotated[list[str], Meta(description="What did not run, or is not indexed yet, and why"), SaidIfAny]
    unlikely: Annotated[int, Meta(description="Left out for a score below `min_score`")] = 0
    note: Annotated[str, Meta(description="Set if no result is likely to be an answer")] = ""


@step.read("documents_search", title="Search stored documents", deadline_s=30)
class DocumentsSearch(Params[SearchResult], frozen=True, kw_only=True):
    """Documents: search the store of added files by meaning and by words, misspelt ones too, or by `hash`. Not notes
    (notes_search), conversations (chats_search) or exact patterns (documents_grep)."""

    taken: ClassVar = {
        "q": "query",
        "cwd": "path",
        "path_pattern": "path",
        "before_context": "context",
        "after_context": "context",
        "use_session": "",
        "verbose": "",
        "color": "",
        "include_diff": "",
    }
    query: Annotated[str, Meta(max_length=65536, description="Plain language")] | None = None
    limit: Annotated[int, Meta(ge=1, le=1000, description="Results at most")] = 10
    type: Annotated[SearchType, Meta(description="keyword, semantic, or both")] = SearchType.HYBRID
    fuzzy: Annotated[bool, Meta(description="Search for the nearest known words too if one is misspelt")] = True
    similarity: Annotated[float, Meta(ge=0, le=1, description="How near a word must be to count as misspelt")] = 0.7
    hash: Hash | None = None
    paths_only: Annotated[bool, Meta(description="Return only paths")] = False
    min_score: MinScore = UNLIKELY
    line_numbers: Annotated[bool, Meta(description="Return matching lines with their numbers")] = False
    context: Annotated[int, Meta(ge=0, le=100, description="Lines around each matching line")] = 0
    tags: Tags = []
    path: Under | None = None
    extension: Extension | None = None
    collection: Collection | None = None
    session: Session | None = None


class GrepMatch(msgspec.Struct, frozen=True, kw_only=True):
    """A line that matches."""

    file: Annotated[str, Meta(description="Path of the document")]
    hash: Annotated[str, SaidToPrograms]
    line_number: Annotated[int, Meta(description="From 1")]
    column: Annotated[int, Meta(description="Of the first match in the line, in characters from 1"), SaidToPrograms]
    line_text: Annotated[str, Meta(description="The line, cut after 2000 characters")]
    context_before: Annotated[list[str], SaidIfAny]
    context_after: Annotated[list[str], SaidIfAny]


class FileCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many lines of a document match."""

    file: str
    hash: Annotated[str, SaidToPrograms]
    count: int


class GrepResult(msgspec.Struct, frozen=True, kw_only=True):
    """Matching lines, ordered by path id; complete unless `truncated`."""

    match_count: Annotated[int, Meta(description="Matching lines counted")]
    file_count: Annotated[int, Meta(description="Documents with a matching line")]
    matches: list[GrepMatch]
    files: Annotated[list[str] | None, Meta(description="With `files_with_matches`, the paths")]
    counts: Annotated[list[FileCount] | None, Meta(description="With `count`, matching lines by document")]
    counts_left_out: Annotated[int, Meta(description="Documents counted but not listed in `counts`"), SaidIfAny]
    truncated: Annotated[bool, Meta(description="Whether there may be more: pass `cursor`"), SaidIfAny]
    next_cursor: Annotated[str, Meta(description="Value of `cursor` for the next page")] | None
    searched: Annotated[int, Meta(description="Documents whose text was scanned, after the index narrowed them")]
    execution_time_ms: Annotated[float, SaidToPrograms]
    degraded: Annotated[list[str], Meta(description="What could not be searched, and why"), SaidIfAny]


@step.read("documents_grep", title="Grep stored documents", deadline_s=60)
class DocumentsGrep(Params[GrepResult], frozen=True, kw_only=True):
    """Grep stored documents: the lines that match a regular expression (RE2; look-around too), every match counted, or
    `truncated` and `next_cursor` to continue. Only added files are searched. Not by meaning: documents_search."""

    taken: ClassVar = {
        "before_context": "context",
        "after_context": "context",
        "use_session": "",
        "color": "",
        "with_filename": "",
        "fast_first": "",
    }
    pattern: Annotated[str, Meta(min_length=1, max_length=16384, description="The regular expression")]
    paths: Annotated[list[Glob], Meta(max_length=1024, description="Only these (paths, their ends, or globs)")] = []
    include_patterns: Annotated[list[Glob], Meta(max_length=256, description="Only documents that match a glob")] = []
    exclude_patterns: Annotated[list[Glob], Meta(max_length=256, description="No documents that match a glob")] = []
    ignore_case: bool = False
    line_numbers: Annotated[bool, Meta(description="Accepted for compatibility; lines always have numbers")] = False
    context: Annotated[int, Meta(ge=0, le=100, description="Lines around each match")] = 0
    original: Annotated[bool, Meta(description="The source of HTML, mail and notebooks, not their text")] = False
    word: Annotated[bool, Meta(description="Match whole words only")] = False
    literal: Annotated[bool, Meta(description="Treat the pattern as plain text")] = False
    count: Annotated[bool, Meta(description="Return only counts")] = False
    files_with_matches: Annotated[bool, Meta(description="Return only paths")] = False
    max_count: Annotated[int, Meta(ge=0, description="Matches of each document at most; 0 for all")] = 0
    limit: Annotated[int, Meta(ge=1, le=10000, description="Matches (or documents) at most")] = 1000
    cursor: Annotated[str, Meta(max_length=64, description="`next_cursor` of the previous page")] | None = None
    hash: Hash | None = None
    tags: Tags = []
    extension: Extension | None = None
    collection: Collection | None = None
    session: Session | None = None


NodeKey = Annotated[str, Meta(min_length=1, max_length=8192, description="Key of a node, from an earlier answer")]
NodeType = Annotated[str, Meta(min_length=1, max_length=64, description="Return the nodes of this type")]
Relation = Annotated[
    str, Meta(min_length=1, max_length=64, description="Only edges of this type: DEFINES, CALLS, IMPORTS, …")
]


class GraphAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes around a node, nearest first."""

    origin: Annotated[GraphNode, Meta(description="Where the walk started")] | None
    connected_nodes: list[GraphNode]
    nodes: Annotated[list[GraphNode], Meta(description="The same as connected_nodes")]
    edges: list[GraphEdge]
    node_type_counts: Annotated[dict[str, int], Meta(description="Number of nodes by type"), SaidIfAny]
    total: Annotated[int, Meta(description="Nodes in `connected_nodes`; with `list_type`, in the store")]
    truncated: Annotated[bool, Meta(description="Whether `limit` or the cap on one node cut the answer"), SaidIfAny]
    degraded: Annotated[list[str], Meta(description="What is not in the graph yet"), SaidIfAny]


@step.read("documents_graph", title="Code graph", deadline_s=30)
class DocumentsGraph(Params[GraphAnswer], frozen=True, kw_only=True):
    """Code graph of stored documents: which file or symbol DEFINES, CALLS, IMPORTS or links to which, from `hash`,
    `name` or `node_key`; or the types with `list_types`, `list_type`. Links of notes: graph_neighbors."""

    taken: ClassVar = {
        "hydrate_fully": "",
        "include_properties": "",
        "include_node_properties": "",
        "include_edge_properties": "",
    }
    hash: Hash | None = None
    name: Name | None = None
    node_key: NodeKey | None = None
    list_types: Annotated[bool, Meta(description="Return the number of nodes by type")] = False
    list_type: NodeType | None = None
    relation: Relation | None = None
    depth: Annotated[int, Meta(ge=1, le=5, description="Steps to follow")] = 1
    limit: Annotated[int, Meta(ge=1, le=10_000, description="Nodes at most")] = 100
    reverse: Annotated[bool, Meta(description="Follow incoming edges instead of outgoing ones")] = False
