"""Operations of `transcripts` for `linckia sync`: what two kernels compare, fetch and join."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from proto.operation import OPERATOR, SYNC, Family, Params, Role
from services.transcripts.operations.carry import CarriedTurn, Digest
from services.transcripts.operations.conversations import SERVICE, Hash

syncing = Family(SERVICE, role=Role.INTERNAL, callers=(OPERATOR, SYNC))

FORMAT = 1
"""Changes when kernels of different versions can no longer be joined."""

Buckets = Annotated[list[Annotated[int, Meta(ge=0, lt=256)]], Meta(max_length=256, description="Buckets to list")]


class DroppedTurn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A turn that was deleted, from one conversation or, without a `name`, from all; times are nanoseconds since 1970.
    It was stored again if it `returned` later than that."""

    name: Annotated[str, Meta(pattern="^([0-9a-f]{32})?$", description="Digest of the conversation, or empty")] = ""
    hash: Hash
    at_ns: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    returned_ns: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0


Kind = Literal["turn", "member", "call", "title", "barred", "dropped"]


class TurnFact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one database knows: a `turn` with the depth at which it is, its `member`ship in a conversation, a model
    `call`, a `title` (both with a turn), a `barred` projection, or that something was `dropped`."""

    digest: Digest
    kind: Kind
    target: Annotated[str, Meta(description="The turn's hash, or the projection")]
    depth: int = 0
    dropped: DroppedTurn | None = None


class TurnFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A digest for each bucket of facts, or the facts of the first of the given buckets."""

    format: int
    buckets: list[Digest] = []
    covered: Annotated[list[int], Meta(description="The buckets whose facts are listed")] = []
    facts: list[TurnFact] = []


@syncing.read("transcript_facts", deadline_s=120)
class TranscriptFacts(Params[TurnFacts], frozen=True, kw_only=True):
    """Compare conversations with those of another kernel: by digests, or the facts of some buckets."""

    buckets: Buckets = []


class ChosenTurns(msgspec.Struct, frozen=True, kw_only=True):
    """The first of the turns that were asked for, as many as fit, with their system prompts. `done` counts them, with
    those that do not exist any more."""

    turns: list[CarriedTurn]
    prompts: list[str]
    done: int


@syncing.read("transcript_turns", deadline_s=60)
class TranscriptTurns(Params[ChosenTurns], frozen=True, kw_only=True):
    """Read turns by their hashes."""

    hashes: Annotated[list[Hash], Meta(min_length=1, max_length=2000)]


class JoinedTurns(msgspec.Struct, frozen=True, kw_only=True):
    """How many rows were added and how many turns deleted. `left` counts turns that were deleted here since, or follow
    one that does not exist."""

    added: int
    deleted: int
    left: int


@syncing.write("transcript_join", idempotent=True, deadline_s=120)
class TranscriptJoin(Params[JoinedTurns], frozen=True, kw_only=True):
    """Join turns of another kernel, parents first, and delete what was deleted there. Repeating it changes nothing."""

    prompts: list[str] = []
    barred: list[Digest] = []
    dropped: list[DroppedTurn] = []
    turns: list[CarriedTurn] = []
