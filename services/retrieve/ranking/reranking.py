"""The last stage of a search: reranking the best candidates within a time limit.

The number of candidates follows from the model's speed on this machine; if not all could be read, the result says so.
Searches skip the stage for a while after a timeout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import msgspec
import trio

from proto.errors import Kind, LinckiaError
from proto.operation import Params
from proto.ops.embed import EmbedMaxSim
from proto.ops.rerank import Ranked, RerankModel, RerankModelParams, RerankPairs
from services.retrieve.ranking.fusion import normalised

R = TypeVar("R")

RERANK, MAXSIM = "rerank", "maxsim"
"""Stage names."""

_MODEL_WAIT_S = 0.25
"""How long to wait for the model's description.  A service that is ready replies within milliseconds."""

_PAUSED = "skipped because it timed out recently"

_MODEL_FRESH_S = 10.0
_CHARACTERS_A_TOKEN = 3
"""Few texts have shorter tokens on average, so the time is not underestimated."""


class Call(Protocol):
    """A call of another service's operation, like `Context.call`."""

    async def __call__(self, params: Params[R], *, timeout_s: float | None = None) -> R: ...


class Order(msgspec.Struct, frozen=True):
    """The reranked candidates, best first (empty if the stage did not run), and what went wrong, if anything."""

    ranked: list[Ranked] = []
    degraded: str = ""


class Pace:
    """The reranker's state, shared by all searches: its model, its speed, and whether it timed out recently.

    Args:
        within_s: how long a search waits for it.
    """

    PAUSE_S, NOT_READY_S = 5.0, 1.0
    MOST, LEAST = 0.6, 0.05
    LEAST_TEXTS = 5

    def __init__(self, within_s: float) -> None:
        self.within_s = within_s
        self.model: RerankModel | None = None
        self._fresh_until = -float("inf")
        self._paused_until = -float("inf")
        # Share of the time limit to plan for, since concurrent searches need the reranker too.
        self._share = self.MOST

    @property
    def is_paused(self) -> bool:
        return trio.current_time() < self._paused_until

    @property
    def tokens(self) -> int:
        """The number of tokens that the model reads within the time limit."""
        return 0 if self.model is None else int(self.model.tokens_per_s * self.within_s * self._share)

    def portion(self, count: int) -> int:
        """Return how many of `count` texts to try if the speed is unknown: fewer after each timeout."""
        return min(count, max(self.LEAST_TEXTS, round(count * self._share / self.MOST)))

    def is_fresh(self) -> bool:
        return trio.current_time() < self._fresh_until

    def learn(self, model: RerankModel) -> None:
        self.model = model
        self._fresh_until = trio.current_time() + _MODEL_FRESH_S

    async def asked(self, call: Call, params: Params[R]) -> R | str:
        """Call the reranker and adapt the pace.  Returns the result, or what went wrong as a string."""
        try:
            with trio.fail_after(self.within_s):
                answer = await call(params, timeout_s=self.within_s)
        except trio.TooSlowError:
            self._too_late()
            return f"no reply within {self.within_s:g} s"
        except LinckiaError as error:
            if error.failure.kind is Kind.TIMEOUT:
                self._too_late()
            return error.failure.message
        self._share = min(self.MOST, self._share * 1.1)
        return answer

    def _too_late(self) -> None:
        self._share = max(self.LEAST, self._share / 2)
        self.pause(self.PAUSE_S)

    def pause(self, for_s: float) -> None:
        self._paused_until = trio.current_time() + for_s

    def forget_model(self) -> None:
        """Ask for the model again before the next call, since the service may have restarted with another one."""
        self._fresh_until = -float("inf")


def _only(count: int, of: int) -> str:
    return f"only the best {count} of {of} candidates could be read in time" if count < of else ""


class _Stage:
    """The stage for one search; all searches share `pace`."""

    def __init__(self, call: Call, pace: Pace) -> None:
        self._call = call
        self._pace = pace


class Reranker(_Stage):
    """Reranks with the cross-encoder."""

    stage = RERANK

    @property
    def may_run(self) -> bool:
        """False if this machine is known to have no such model."""
        model = self._pace.model
        return model is None or model.available or not self._pace.is_fresh()

    async def rank(self, query: str, texts: Sequence[str], scores: Sequence[float] = ()) -> Order:
        """Rank `texts`, given best candidate first.  Never raises a LinckiaError.

        Args:
            scores: the fused scores; unused here, because this stage replaces them.
        """
        if self._pace.is_paused:
            return Order(degraded=_PAUSED)
        try:
            model = await self._model()
        except (trio.TooSlowError, LinckiaError) as error:
            if self._pace.model is not None and not self._pace.model.available:
                # There was no model before, and the service may just be idle.
                return Order()
            self._pace.pause(Pace.NOT_READY_S)
            return Order(degraded=error.failure.message if isinstance(error, LinckiaError) else "it is not ready")
        if not model.available:
            return Order()
        count = self._fitting(query, texts, model)
        if count < min(2, len(texts)):
            return Order(degraded="the model is too slow on this machine to read candidates in time")
        order = await self._pace.asked(self._call, RerankPairs(query=query, texts=list(texts[:count])))
        if isinstance(order, str):
            self._pace.forget_model()
            return Order(degraded=order)
        return Order(order.ranked, _only(count, len(texts)))

    async def _model(self) -> RerankModel:
        if (model := self._pace.model) is None or not self._pace.is_fresh():
            with trio.fail_after(_MODEL_WAIT_S):
                model = await self._call(RerankModelParams(), timeout_s=_MODEL_WAIT_S)
            self._pace.learn(model)
        return model

    def _fitting(self, query: str, texts: Sequence[str], model: RerankModel) -> int:
        """Return how many of the first texts fit into the time limit."""
        left = self._pace.tokens
        for index, text in enumerate(texts):
            left -= min(model.max_tokens, (len(query) + len(text)) // _CHARACTERS_A_TOKEN + 4)
            if left < 0:
                return index
        return len(texts)


class LateReranker(_Stage):
    """Reranks by late interaction on the embedder's token vectors, averaged with the fused score."""

    stage = MAXSIM
    may_run = True
    SHARE = 0.25
    """Share of the time limit that the embedder plans for.  Concurrent searches need the rest."""

    async def rank(self, query: str, texts: Sequence[str], scores: Sequence[float]) -> Order:
        """Like `Reranker.rank`, with scores averaged with `scores`."""
        if self._pace.is_paused:
            return Order(degraded=_PAUSED)
        count = self._pace.portion(len(texts))
        within_ms = max(1, round(1000 * self._pace.within_s * self.SHARE))
        asked = EmbedMaxSim(query=query, texts=list(texts[:count]), within_ms=within_ms)
        answer = await self._pace.asked(self._call, asked)
        if isinstance(answer, str):
            return Order(degraded=answer)
        matched = normalised(answer.scores)
        blended = [(each + fused) / 2 for each, fused in zip(matched, scores, strict=False)]
        ranked = [Ranked(index=index, score=score) for index, score in enumerate(blended)]
        return Order(sorted(ranked, key=lambda each: -each.score), _only(len(matched), len(texts)))
