"""Operations of `transcripts` that carry conversations elsewhere.

For `linckia export` and `import`: unchanged turns; deleted ones as bare placeholders. For `linckia resume` and
`export-chat`: one conversation, found and read.
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec
from msgspec import Meta

from proto.operation import Params
from services.transcripts.operations.conversations import (
    Block,
    Conversation,
    Hash,
    Json,
    operator,
)

Digest = Annotated[str, Meta(pattern="^[0-9a-f]{32}$", description="A digest: 32 of the digits 0-9 and a-f")]


class CarriedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A model call, whose tokens are counted once."""

    key: Digest
    model: str
    usage: Json


class CarriedTitle(msgspec.Struct, frozen=True, kw_only=True):
    """A title that a log states; the greatest kind is shown."""

    kind: Annotated[int, Meta(ge=1, le=5, description="1 task, 2 summary, 3 generated, 4 agent's name, 5 the user's")]
    text: str


class CarriedMembership(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Membership of a turn in a conversation, with the turn's data specific to it."""

    name: Annotated[Digest, Meta(description="Digest of the session, or of the first user turn")]
    is_first: Annotated[bool, Meta(description="The conversation is named by this turn")] = False
    provisional: Annotated[bool, Meta(description="The name is not final")] = False
    project: str = ""
    at: Annotated[float, Meta(description="Unix seconds")]
    side: Annotated[bool, Meta(description="A subagent sent or received it")] = False
    counted: Annotated[bool, Meta(description="Its tokens are known")] = False
    calls: list[CarriedCall] = []
    titles: Annotated[list[CarriedTitle], Meta(description="The conversation's, with its first turn")] = []


class CarriedTurn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A turn. `hash` covers its content and parent; a deleted one (`gone`) has a `projection` instead of content."""

    hash: Hash
    parent_hash: Annotated[str, Meta(description="Empty if it starts a conversation")] = ""
    role: str
    at: Annotated[float, Meta(description="Unix seconds")]
    content: list[Block] = []
    model: str = ""
    provider: str = ""
    agent_name: str = ""
    project: str = ""
    machine: Annotated[str, Meta(description="The one that stored it first")] = ""
    branch: str = ""
    prompt: Annotated[str, Meta(description="Digest of the system prompt: 16 bytes of its SHA-256")] = ""
    reply: Annotated[bool, Meta(description="Recorded as a model's reply, not repeated by a client")] = False
    stop_reason: str = ""
    usage: Json | None = None
    thinking: list[Json] = []
    gone: bool = False
    projection: str = ""
    conversations: Annotated[list[CarriedMembership], Meta(description="Empty in exports of earlier versions")] = []


class ExportedTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn, with the first turn of its conversation."""

    root: str
    began: Annotated[float, Meta(description="Unix seconds")]
    turn: CarriedTurn


class ExportedTurns(msgspec.Struct, frozen=True, kw_only=True):
    """A page of turns in stored order, parents first; empty at the end."""

    turns: list[ExportedTurn]
    next: Annotated[int, Meta(description="The value of `after` for the next page")]


@operator.read("transcript_export", deadline_s=60)
class TranscriptExport(Params[ExportedTurns], frozen=True, kw_only=True):
    """Read the next turns of all conversations."""

    after: Annotated[int, Meta(ge=0)] = 0


class ExportedPrompts(msgspec.Struct, frozen=True, kw_only=True):
    """System prompts by digest, and projections of barred turns."""

    prompts: list[str]
    next: Annotated[str, Meta(description="The value of `after` for the next page; empty at the end")]
    barred: Annotated[list[Digest], Meta(description="Projections, with the first page")]


@operator.read("transcript_export_prompts", deadline_s=60)
class TranscriptExportPrompts(Params[ExportedPrompts], frozen=True, kw_only=True):
    """Read the next system prompts."""

    after: Annotated[str, Meta(pattern="^([0-9a-f]{32})?$", description="The previous digest, or empty")] = ""


class RestoredTurns(msgspec.Struct, frozen=True, kw_only=True):
    """How much was new."""

    changed: int


@operator.write("transcript_restore", idempotent=True, deadline_s=120)
class TranscriptRestore(Params[RestoredTurns], frozen=True, kw_only=True):
    """Import turns unchanged, parents first; repeating it changes nothing. Turns deleted here stay deleted."""

    prompts: list[str] = []
    barred: list[Digest] = []
    turns: list[CarriedTurn] = []


# One conversation


class FoundConversations(msgspec.Struct, frozen=True, kw_only=True):
    """Conversations as listed, in the order of the turns or names."""

    conversations: list[Conversation]
    turn: Annotated[str, Meta(description="The hash of the turn that `name` begins; empty if it names none")] = ""


@operator.read("transcript_conversations", deadline_s=30)
class TranscriptConversations(Params[FoundConversations], frozen=True, kw_only=True):
    """Find conversations by the beginning of their id or of the hash of a turn, or by turns."""

    name: Annotated[str, Meta(pattern="^([0-9a-f]{6,64})?$", description="6 to 64 hex digits")] = ""
    hashes: Annotated[list[Hash], Meta(max_length=1000, description="Turns, if `name` is empty")] = []


class Target(enum.StrEnum):
    """What a conversation is converted to: the session file of an agent, or a document."""

    CLAUDE = "claude"
    CODEX = "codex"
    GEMINI = "gemini"
    MARKDOWN = "markdown"
    HTML = "html"


class NewSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session that does not exist yet."""

    id: Annotated[str, Meta(pattern="^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", description="A UUID")]
    project: Annotated[str, Meta(max_length=4096, description="The folder in which the agent will work")]
    at: Annotated[float, Meta(ge=0, le=253402300799, description="Now, in Unix seconds")]


class Converted(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the file, with counts of turns. `side` and `elsewhere` are those of the whole conversation."""

    text: str
    next: Annotated[int | None, Meta(description="The value of `after` for the next part")]
    turns: Annotated[int, Meta(description="In the text")]
    system: Annotated[int, Meta(description="System prompts, which session files leave out")]
    deleted: Annotated[int, Meta(description="Left out, since their content was deleted")]
    side: Annotated[int, Meta(description="Turns of sub-agents, which are left out")]
    elsewhere: Annotated[int, Meta(description="Turns on other branches, or before a compaction, which are left out")]


@operator.read("transcript_convert", deadline_s=120)
class TranscriptConvert(Params[Converted], frozen=True, kw_only=True):
    """Return a conversation up to a turn as a file, part by part. Secrets in documents are masked, also if they were
    stored unmasked."""

    about: Annotated[Conversation, Meta(description="As found")]
    hash: Annotated[Hash, Meta(description="The last turn")]
    to: Target
    session: Annotated[NewSession | None, Meta(description="Required for the file of an agent")] = None
    after: Annotated[int, Meta(ge=0, description="How many turns are converted already")] = 0
