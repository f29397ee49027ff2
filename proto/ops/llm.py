"""Operations of `llm`: what a language model says of notes that were found, where the settings name one.

It is never asked for facts, only for an opinion on numbered texts: whatever it answers, a caller gets numbers of its
own texts back, each once, and short plain sentences.
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec
from msgspec import Meta

from linckia.proto.operation import OPERATOR, Family, Params, Role

internal = Family("llm", role=Role.INTERNAL, callers=("knowledge", OPERATOR))

MAX_TEXTS = 32


class LlmModelResult(msgspec.Struct, frozen=True, kw_only=True):
    """The endpoint that the settings name."""

    configured: Annotated[bool, Meta(description="Whether there is one; nothing is ever sent where there is none")]
    protocol: str = ""
    model: str = ""
    host: Annotated[str, Meta(description="Host and port that requests go to")] = ""
    timeout_ms: Annotated[int, Meta(description="Time that an answer may take, all of it")] = 0
    problem: Annotated[str, Meta(description="What is wrong with the settings; empty where nothing is")] = ""


@internal.read("llm_model", deadline_s=10)
class LlmModel(Params[LlmModelResult], frozen=True, kw_only=True):
    """Which language model is configured, if any; sends nothing."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A text that was found."""

    id: Annotated[str, Meta(max_length=1024, description="Its id, as users see it")]
    title: str = ""
    text: Annotated[str, Meta(description="The passage that matched")] = ""


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate's place."""

    index: Annotated[int, Meta(ge=0, description="Which of the candidates that were given")]
    score: Annotated[float | None, Meta(description="How well it answers, in [0, 1], where the model said")] = None
    context: Annotated[str, Meta(description="What it has to do with the query, where the model said")] = ""


class Refinement(msgspec.Struct, frozen=True, kw_only=True):
    """What the model made of a search."""

    intent: str | None
    analysis: str | None
    order: Annotated[list[Placed], Meta(description="Best first, each at most once; those it left out are not here")]
    model: str


@internal.read("llm_refine_search", deadline_s=60)
class LlmRefineSearch(Params[Refinement], frozen=True, kw_only=True):
    """Say what a query is after, put what was found in order, and say what the best have to do with it.

    Unavailable where no model is configured or it does not answer; Timeout where it is too slow.
    """

    query: Annotated[str, Meta(min_length=1, max_length=8192, description="What was asked")]
    candidates: Annotated[list[Candidate], Meta(min_length=1, max_length=MAX_TEXTS, description="What was found")]


class LinkKind(enum.StrEnum):
    """How one note can stand to another."""

    REFERENCES = "references"
    FOLLOWS = "follows"
    IMPLEMENTS = "implements"


class Unlinked(msgspec.Struct, frozen=True, kw_only=True):
    """Two notes that no link joins."""

    first: Candidate
    second: Candidate


class SuggestedLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link that the model would make."""

    index: Annotated[int, Meta(ge=0, description="Which of the pairs that were given")]
    kind: LinkKind
    reversed: Annotated[bool, Meta(description="Whether it goes from the second note to the first")] = False
    reason: str = ""


class SuggestedLinks(msgspec.Struct, frozen=True, kw_only=True):
    """For each pair at most one; those that the model skipped are not here."""

    links: list[SuggestedLink]
    model: str


@internal.read("llm_suggest_links", deadline_s=60)
class LlmSuggestLinks(Params[SuggestedLinks], frozen=True, kw_only=True):
    """Say which link would join each of these pairs of notes, and why.

    Unavailable where no model is configured or it does not answer; Timeout where it is too slow.
    """

    pairs: Annotated[list[Unlinked], Meta(min_length=1, max_length=MAX_TEXTS, description="Notes without a link")]
