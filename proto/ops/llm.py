"""Operations of `llm`: a language model's opinion on found notes, if the settings name one.

The model is never asked for facts, only for an opinion on numbered texts. Whatever it replies, the caller gets back the
numbers of its own texts, each at most once, and short plain sentences.
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec
from msgspec import Meta

from proto.operation import OPERATOR, Family, Params, Role

internal = Family("llm", role=Role.INTERNAL, callers=("knowledge", OPERATOR))

MAX_TEXTS = 32


class LlmModelResult(msgspec.Struct, frozen=True, kw_only=True):
    """The endpoint that the settings name."""

    configured: Annotated[bool, Meta(description="Whether there is one; nothing is ever sent otherwise")]
    protocol: str = ""
    model: str = ""
    host: Annotated[str, Meta(description="Host and port that requests go to")] = ""
    timeout_ms: Annotated[int, Meta(description="Time limit for a whole answer")] = 0
    problem: Annotated[str, Meta(description="Problem in the settings; empty if none")] = ""


@internal.read("llm_model", deadline_s=10)
class LlmModel(Params[LlmModelResult], frozen=True, kw_only=True):
    """Return the configured language model, if any; sends nothing."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A text that was found."""

    id: Annotated[str, Meta(max_length=1024, description="Its id, as shown to users")]
    title: str = ""
    text: Annotated[str, Meta(description="The passage that matched")] = ""


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate's place."""

    index: Annotated[int, Meta(ge=0, description="Index of the given candidate")]
    score: Annotated[float | None, Meta(description="How well it answers, in [0, 1], if the model said")] = None
    context: Annotated[str, Meta(description="Its relation to the query, if the model said")] = ""


class Refinement(msgspec.Struct, frozen=True, kw_only=True):
    """The model's opinion on a search."""

    intent: str | None
    analysis: str | None
    order: Annotated[list[Placed], Meta(description="Best first, each at most once; may leave some out")]
    model: str


@internal.read("llm_refine_search", deadline_s=60)
class LlmRefineSearch(Params[Refinement], frozen=True, kw_only=True):
    """State the intent of a query, rank the candidates, and relate the best ones to the query.

    Raises Unavailable if no model is configured or it does not respond, and Timeout if it is too slow.
    """

    query: Annotated[str, Meta(min_length=1, max_length=8192, description="The query")]
    candidates: Annotated[list[Candidate], Meta(min_length=1, max_length=MAX_TEXTS, description="Candidates to rank")]


class LinkKind(enum.StrEnum):
    """How one note relates to another."""

    REFERENCES = "references"
    FOLLOWS = "follows"
    IMPLEMENTS = "implements"


class Unlinked(msgspec.Struct, frozen=True, kw_only=True):
    """Two notes without a link."""

    first: Candidate
    second: Candidate


class SuggestedLink(msgspec.Struct, frozen=True, kw_only=True):
    """A link that the model suggests."""

    index: Annotated[int, Meta(ge=0, description="Index of the given pair")]
    kind: LinkKind
    reversed: Annotated[bool, Meta(description="Whether it goes from the second note to the first")] = False
    reason: str = ""


class SuggestedLinks(msgspec.Struct, frozen=True, kw_only=True):
    """Suggested links, at most one per pair."""

    links: list[SuggestedLink]
    model: str


@internal.read("llm_suggest_links", deadline_s=60)
class LlmSuggestLinks(Params[SuggestedLinks], frozen=True, kw_only=True):
    """Suggest a link for each of these pairs of notes, with a reason.

    Raises Unavailable if no model is configured or it does not respond, and Timeout if it is too slow.
    """

    pairs: Annotated[list[Unlinked], Meta(min_length=1, max_length=MAX_TEXTS, description="Notes without a link")]
