"""Operations of `rerank`: score how well texts answer a query, with a cross-encoder."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from proto.operation import CLIENT, Family, Params, Role

internal = Family("rerank", role=Role.INTERNAL, callers=("retrieve", CLIENT), within_roots=True)


class Ranked(msgspec.Struct, frozen=True, kw_only=True):
    """Rank of one text."""

    index: Annotated[int, Meta(description="Index of the given text")]
    score: Annotated[float, Meta(description="In [0, 1]: logistic function of the model's output")]


class RerankResult(msgspec.Struct, frozen=True, kw_only=True):
    """The texts, best first."""

    ranked: Annotated[list[Ranked], Meta(description="Best first; equal scores in the order given")]
    model: str
    truncated: Annotated[list[int], Meta(description="Indices of texts longer than the model reads")] = []
    query_truncated: Annotated[bool, Meta(description="Whether the query was cut to half the model's length")] = False
    tokens: Annotated[int, Meta(description="Tokens that went through the model")] = 0


@internal.read("rerank_pairs", deadline_s=120)
class RerankPairs(Params[RerankResult], frozen=True, kw_only=True):
    """Rank texts by how well they answer a query; raises Unavailable if there is no cross-encoder."""

    query: Annotated[str, Meta(min_length=1, max_length=65536, description="The query")]
    texts: Annotated[list[str], Meta(min_length=1, max_length=4096, description="Texts to rank")]
    limit: Annotated[int, Meta(ge=1, description="Return only the best this many")] | None = None
    bulk: Annotated[bool, Meta(description="Whether this may wait for searches to finish")] = False


class RerankModel(msgspec.Struct, frozen=True, kw_only=True):
    """The model in use, or the reason for its absence."""

    available: bool
    reason: Annotated[str, Meta(description="Why there is none, and what would change that")] = ""
    model: str = ""
    max_tokens: Annotated[int, Meta(description="Tokens of query and text together")] = 0
    tokens_per_s: Annotated[float, Meta(description="Its recent speed on this machine")] = 0.0
    device: str = ""
    precision: str = ""


@internal.read("rerank_model", deadline_s=120)
class RerankModelParams(Params[RerankModel], frozen=True, kw_only=True):
    """Return the cross-encoder in use and its device, if any."""
