"""Operations of `transcripts` for `linckia export` and `import`: unchanged turns; deleted ones as bare placeholders."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from proto.operation import Params
from services.transcripts.operations.conversations import Block, Hash, Json, operator

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
