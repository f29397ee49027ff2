"""Operations of `rerank`: how well each of some texts answers a query, by a cross-encoder."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from linckia.proto.operation import CLIENT, Family, Params, Role

internal = Family("rerank", role=Role.INTERNAL, callers=("retrieve", CLIENT), within_roots=True)


class Ranked(msgspec.Struct, frozen=True, kw_only=True):
    """One text's place."""

    index: Annotated[int, Meta(description="Which of the texts that were given")]
    score: Annotated[float, Meta(description="In [0, 1]: the logistic function of what the model answers")]


class RerankResult(msgspec.Struct, frozen=True, kw_only=True):
    """The texts, best first."""

    ranked: Annotated[list[Ranked], Meta(description="Best first; equal scores in the order given")]
    model: str
    truncated: Annotated[list[int], Meta(description="Indices of the texts that were longer than the model reads")] = []
    query_truncated: Annotated[bool, Meta(description="Whether it was cut to half of what the model reads")] = False
    tokens: Annotated[int, Meta(description="Tokens that went through the model")] = 0


@internal.read("rerank_pairs", deadline_s=120)
class RerankPairs(Params[RerankResult], frozen=True, kw_only=True):
    """Put texts in the order of how well they answer a query; Unavailable where there is no such model."""

    query: Annotated[str, Meta(min_length=1, max_length=65536, description="What is asked")]
    texts: Annotated[list[str], Meta(min_length=1, max_length=4096, description="What may answer it")]
    limit: Annotated[int, Meta(ge=1, description="Answer the best so many")] | None = None
    bulk: Annotated[bool, Meta(description="Whether this may wait until no search waits")] = False


class RerankModel(msgspec.Struct, frozen=True, kw_only=True):
    """The model in use, or why there is none."""

    available: bool
    reason: Annotated[str, Meta(description="Why there is none, and what would change that")] = ""
    model: str = ""
    max_tokens: Annotated[int, Meta(description="Tokens of query and text together")] = 0
    tokens_per_s: Annotated[float, Meta(description="Its speed here, by what it did lately")] = 0.0
    device: str = ""
    precision: str = ""


@internal.read("rerank_model", deadline_s=120)
class RerankModelParams(Params[RerankModel], frozen=True, kw_only=True):
    """Which cross-encoder is in use, on what device, if any."""
