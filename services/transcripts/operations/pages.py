"""Operations of `transcripts` that show conversations to a person: page by page, a search in one, and their costs."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from proto.operation import Params
from services.transcripts.operations.conversations import Hash, Instant, SpentTokens, served


class ShownBlock(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of a message; what is long is cut."""

    type: str
    text: Annotated[str, Meta(description="What was said, the arguments of a call as JSON, or its result")] = ""
    size: Annotated[int, Meta(description="Characters of the whole text")] = 0
    tool: Annotated[str, Meta(description="Name of the called tool")] = ""
    call: Annotated[str, Meta(description="Id that a call and its result share")] = ""
    is_error: bool = False
    media_type: str = ""


class ShownTurn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A turn of a conversation."""

    hash: str
    number: Annotated[int, Meta(description="Its place in the conversation, from 0")]
    role: str
    at: Annotated[str, Meta(description="RFC 3339; empty if unknown")] = ""
    model: str = ""
    agent: str = ""
    tokens: Annotated[int | None, Meta(description="Of the call that made it, if it was recorded")] = None
    blocks: list[ShownBlock]
    gone: Annotated[bool, Meta(description="Whether its content was deleted")] = False


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens and cost of a conversation, as far as they were recorded."""

    models: list[str]
    agent: str
    tokens: SpentTokens
    cost_usd: Annotated[float | None, Meta(description="By list prices; null if none is known")]
    cost_incomplete: Annotated[bool, Meta(description="Whether it leaves out calls without a known price")]


class ConversationPage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Some turns of a conversation."""

    turns: list[ShownTurn]
    first: Annotated[int, Meta(description="Number of the first of these turns")]
    total: Annotated[int, Meta(description="Turns of the conversation")]
    continues: Annotated[bool, Meta(description="Whether turns follow that the conversation does not have")] = False
    spent: Annotated[Spent | None, Meta(description="With `summed`")] = None


@served.read("transcript_page", deadline_s=30)
class TranscriptPage(Params[ConversationPage | None], frozen=True, kw_only=True):
    """Return some turns of the conversation up to the turn with this hash, or null; whole turns: transcript_node."""

    hash: Hash
    first: Annotated[int, Meta(ge=0, description="Number of the first turn to return")] = 0
    turn: Hash | None = None
    """Return the turns around this one instead."""
    limit: Annotated[int, Meta(ge=1, le=500)] = 100
    summed: Annotated[bool, Meta(description="Return tokens and cost too")] = False


class FoundTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn with the words."""

    hash: str
    number: int
    role: str
    preview: Annotated[str, Meta(description="The text around the first word")]


class FoundTurns(msgspec.Struct, frozen=True, kw_only=True):
    """Turns with the words, first to last."""

    turns: list[FoundTurn]
    total: int


@served.read("transcript_find", deadline_s=30)
class TranscriptFind(Params[FoundTurns | None], frozen=True, kw_only=True):
    """Find the turns of one conversation that contain all words, in either case; tool calls and results too."""

    hash: Hash
    query: Annotated[str, Meta(min_length=1, max_length=1024)]
    limit: Annotated[int, Meta(ge=1, le=1000)] = 200


class CostShare(msgspec.Struct, frozen=True, kw_only=True):
    """What the calls of one day, project and model cost."""

    day: Annotated[str, Meta(description="YYYY-MM-DD")]
    project: str
    model: str
    calls: int
    input: Annotated[int, Meta(description="Tokens sent, cache reads included")]
    output: int
    cost_usd: Annotated[float | None, Meta(description="By list prices; null if the price is unknown")]


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Costs, by day."""

    shares: list[CostShare]
    since: Annotated[str, Meta(description="The first day")]
    prices_of: Annotated[str, Meta(description="The date of the prices")]


@served.read("transcript_costs", deadline_s=30)
class TranscriptCosts(Params[Costs], frozen=True, kw_only=True):
    """Return what the recorded calls of models cost by day, project and model."""

    since: Annotated[Instant | None, Meta(description="Date; default: 30 days ago")] = None
    until: Annotated[Instant | None, Meta(description="Includes all of it")] = None
    offset_s: Annotated[int, Meta(ge=-86400, le=86400, description="Of the time zone that days are in, from UTC")] = 0
