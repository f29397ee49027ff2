"""Operations of `transcripts` for `linckia export` and `import`: turns as they are, deleted ones as places alone."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from linckia.proto.operation import Params
from linckia.proto.ops.transcripts import Block, Hash, Json, operator

Digest = Annotated[str, Meta(pattern="^[0-9a-f]{32}$", description="A digest: 32 of the digits 0-9 and a-f")]


class CarriedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a model, whose tokens are counted once."""

    key: Digest
    model: str
    usage: Json


class CarriedMembership(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A conversation that a turn is part of, and what it has there of its own."""

    name: Annotated[Digest, Meta(description="Digest of the session, or of the first user turn")]
    is_first: Annotated[bool, Meta(description="The conversation is named by this turn")] = False
    provisional: Annotated[bool, Meta(description="The name is not final")] = False
    project: str = ""
    at: Annotated[float, Meta(description="Unix seconds")]
    side: Annotated[bool, Meta(description="A subagent said or heard it")] = False
    counted: Annotated[bool, Meta(description="Its tokens are known")] = False
    calls: list[CarriedCall] = []


class CarriedTurn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A turn. `hash` is that of its content and its parent; one that is `gone` has a `projection` instead of these."""

    hash: Hash
    parent_hash: Annotated[str, Meta(description="Empty where it begins a conversation")] = ""
    role: str
    at: Annotated[float, Meta(description="Unix seconds")]
    content: list[Block] = []
    model: str = ""
    provider: str = ""
    agent_name: str = ""
    project: str = ""
    prompt: Annotated[str, Meta(description="Digest of the system prompt: 16 bytes of its SHA-256")] = ""
    reply: Annotated[bool, Meta(description="A model said it, as against a client that repeats it")] = False
    stop_reason: str = ""
    usage: Json | None = None
    thinking: list[Json] = []
    gone: bool = False
    projection: str = ""
    conversations: Annotated[list[CarriedMembership], Meta(description="Empty in exports of earlier versions")] = []


class ExportedTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn with the first of its conversation."""

    root: str
    began: Annotated[float, Meta(description="Unix seconds")]
    turn: CarriedTurn


class ExportedTurns(msgspec.Struct, frozen=True, kw_only=True):
    """Turns in the order in which they were kept, parents first; at the end, none."""

    turns: list[ExportedTurn]
    next: Annotated[int, Meta(description="The value of `after` for the next page")]


@operator.read("transcript_export", deadline_s=60)
class TranscriptExport(Params[ExportedTurns], frozen=True, kw_only=True):
    """The next turns of all conversations."""

    after: Annotated[int, Meta(ge=0)] = 0


class ExportedPrompts(msgspec.Struct, frozen=True, kw_only=True):
    """System prompts by their digests, and what is barred from coming back."""

    prompts: list[str]
    next: Annotated[str, Meta(description="The value of `after` for the next page; empty at the end")]
    barred: Annotated[list[Digest], Meta(description="Projections, with the first page")]


@operator.read("transcript_export_prompts", deadline_s=60)
class TranscriptExportPrompts(Params[ExportedPrompts], frozen=True, kw_only=True):
    """The next system prompts."""

    after: Annotated[str, Meta(pattern="^([0-9a-f]{32})?$", description="The digest before, or empty")] = ""


class RestoredTurns(msgspec.Struct, frozen=True, kw_only=True):
    """What was not there before."""

    changed: int


@operator.write("transcript_restore", idempotent=True, deadline_s=120)
class TranscriptRestore(Params[RestoredTurns], frozen=True, kw_only=True):
    """Keep turns as they were, parents first; once more, it changes nothing. What was deleted here stays deleted."""

    prompts: list[str] = []
    barred: list[Digest] = []
    turns: list[CarriedTurn] = []
