"""Operations that the front serves itself.

`query` reads in steps, `execute` changes in order, `session` frames the work: they call the operations that their
steps name. On the surface `documents` a step is an operation on documents; on the others it is any operation that a
client may call. The scratchpad keeps long answers in memory for the session that requested them. Prompts are tasks
worded for these tools; users add their own as Markdown files.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from proto.mcp import Content, PromptResult
from proto.operation import OPERATOR, Family, Params, Role
from proto.wire.front import CALL_MOUNTED, SERVICE

SURFACES = ("documents", "compact", "core")
SCRATCHPAD_SURFACES = ("knowledge",)

MAX_STEPS = 100
MAX_OPERATIONS = 1000

# These return nothing about files: each step is checked on its own, and a scratchpad belongs to its session.
tool = Family(SERVICE, surfaces=SURFACES, within_roots=True)
step = Family(SERVICE, role=Role.STEP, surfaces=("documents",), within_roots=True)
scratchpad = Family(SERVICE, surfaces=SCRATCHPAD_SURFACES, within_roots=True)
prompt = Family(SERVICE, role=Role.PROMPT, surfaces=SURFACES, within_roots=True)

_STEP = {"op": {"type": "string"}, "params": {"type": "object"}}

Step: TypeAlias = Annotated[dict[str, Any], Meta(extra_json_schema={"properties": _STEP, "required": ["op"]})]
Change: TypeAlias = Annotated[
    dict[str, Any], Meta(extra_json_schema={"properties": _STEP, "required": ["op", "params"]})
]


MaxTokens = Annotated[
    int, Meta(ge=100, le=2**31, description="Per step, about; default 2000, on `documents` unlimited")
]


@tool.read("ops_query", is_essential=True, deadline_s=3600, title="Read in steps")
class Query(Params[Content], frozen=True, kw_only=True):
    """Read. One step returns its result; several return {steps: [{stepIndex, op, result, isError}], totalSteps,
    completedSteps} and stop at the first failure. A string param that starts with $prev is the last step's result
    or part of it: $prev.results[0].hash."""

    steps: Annotated[list[Step], Meta(min_length=1, max_length=MAX_STEPS, description="Ops to run, in order")]
    max_tokens: MaxTokens | None = None


@tool.destroy("ops_execute", idempotent=False, deadline_s=24 * 3600, title="Change in order", open_world=True)
class Execute(Params[Content], frozen=True, kw_only=True):
    """Change stored data: all operations are checked, then done in order up to the first failure, or with
    continueOnError to the last. Returns {results: [{op, success, …, error}], totalOps, succeeded, failed}, and
    partlyFailed if some items of an op failed."""

    operations: Annotated[
        list[Change], Meta(min_length=1, max_length=MAX_OPERATIONS, description="Ops to do, in order")
    ]
    continueOnError: Annotated[bool, Meta(description="Continue after a failure")] = False
    max_tokens: MaxTokens | None = None


@tool.write("documents_session", idempotent=False, deadline_s=120, title="Session")
class Session(Params[Content], frozen=True, kw_only=True):
    """Sessions: label documents stored from start to stop, pin documents, watch folders. Not needed to search or
    read."""

    action: Annotated[str | None, Meta(description="Start, stop, pin, unpin or watch")] = None
    params: Annotated[dict[str, Any] | None, Meta(description="Of the action")] = None


@step.read("ops_describe", deadline_s=10)
class Describe(Params[dict[str, Any]], frozen=True, kw_only=True):
    """Find ops by `words`, show the parameters of one (`target`), or without either list all."""

    target: Annotated[str | None, Meta(description="Name of an op")] = None
    words: Annotated[str, Meta(max_length=1024, description="What you want to do")] = ""


@Family(SERVICE, role=Role.INTERNAL, callers=(OPERATOR,)).destroy(CALL_MOUNTED, idempotent=False, deadline_s=86_400)
class CallMounted(Params[dict[str, Any]], frozen=True, kw_only=True):
    """Call a tool of a mounted server by its name beside Linckia's own (`github_create_issue`)."""

    name: Annotated[str, Meta(max_length=64, description="Name of the tool")]
    arguments: Annotated[dict[str, Any], Meta(description="Of the tool")] = {}


class ScratchpadContent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The whole answer, or a part of it."""

    text: str
    total_chars: Annotated[int, Meta(description="With a part: length of the whole")] = 0
    next_offset: Annotated[int | None, Meta(description="Where the next part begins")] = None


@scratchpad.read(
    "scratchpad_read",
    is_exact=True,
    surfaces=("knowledge", "core"),
    title="Read a kept answer",
    deadline_s=5,
    text="text",
)
class ScratchpadRead(Params[ScratchpadContent], frozen=True, kw_only=True):
    """Read a long answer kept in this session, whole or from `offset` a part. Not a note or file."""

    id: Annotated[str, Meta(min_length=1, max_length=1024, description="Id of an entry: 12 hexadecimal digits")]
    offset: Annotated[int, Meta(ge=0, description="First character of a part")] = 0
    length: Annotated[int, Meta(ge=1, le=2**31, description="Characters of a part")] | None = None


class ScratchpadEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A cached answer."""

    id: Annotated[str, Meta(description="For scratchpad_read")]
    tool: Annotated[str, Meta(description="The tool that returned it")]
    size_bytes: int
    timestamp: Annotated[str, Meta(description="RFC 3339, UTC")]


class ScratchpadStats(msgspec.Struct, frozen=True, kw_only=True):
    """How full the scratchpad is; the least recently used entry is evicted first."""

    total_entries: int
    total_size_bytes: int
    max_size_bytes: int


class ScratchpadListing(msgspec.Struct, frozen=True, kw_only=True):
    """Cached answers, newest first."""

    entries: list[ScratchpadEntry]
    stats: ScratchpadStats


@scratchpad.read("scratchpad_list", title="List kept answers", deadline_s=5)
class ScratchpadList(Params[ScratchpadListing], frozen=True, kw_only=True):
    """List the long answers kept in this session."""


@prompt.read("search_codebase", deadline_s=10, title="Search the codebase")
class SearchCodebase(Params[PromptResult], frozen=True, kw_only=True):
    """Search for code patterns in the codebase"""

    pattern: Annotated[str, Meta(min_length=1, max_length=4096, description="Words or a regular expression to find")]
    file_type: Annotated[str, Meta(max_length=64, description="Only files with this extension, as in py")] = ""
    path: Annotated[str, Meta(max_length=4096, description="Only below this folder")] = ""


@prompt.read("summarize_document", completion="documents_names", deadline_s=10, title="Summarize a document")
class SummarizeDocument(Params[PromptResult], frozen=True, kw_only=True):
    """Summarize a stored document"""

    document_name: Annotated[str, Meta(min_length=1, max_length=4096, description="Its name, path or hash")]
    max_words: Annotated[int, Meta(ge=10, le=10_000, description="Length of the summary")] = 200
    focus: Annotated[str, Meta(max_length=4096, description="What the reader wants to know")] = ""


class Depth(enum.StrEnum):
    """How far to look."""

    QUICK = "quick"
    NORMAL = "normal"
    THOROUGH = "thorough"


@prompt.read("research", deadline_s=10, title="Research a topic")
class Research(Params[PromptResult], frozen=True, kw_only=True):
    """Research a topic in everything stored, with sources"""

    topic: Annotated[str, Meta(min_length=1, max_length=4096, description="What to find out")]
    depth: Annotated[Depth, Meta(description="quick, normal or thorough")] = Depth.NORMAL


@prompt.read("review_changes", deadline_s=10, title="Review changes")
class ReviewChanges(Params[PromptResult], frozen=True, kw_only=True):
    """Review the latest changes, for defects and their reach"""

    path: Annotated[str, Meta(max_length=4096, description="Only below this folder")] = ""
    recent: Annotated[int, Meta(ge=1, le=1000, description="How many of the latest documents to review")] = 20
    focus: Annotated[str, Meta(max_length=4096, description="What to focus on")] = ""
