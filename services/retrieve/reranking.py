"""The last stage of a search: the cross-encoder puts the best candidates in order, within a time of its own.

It reads as many candidates as it can in that time, by its speed on this machine, and the answer says so where these
are not all. While it does not answer, searches do not pay for it again and again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import msgspec
import trio

from linckia.proto.errors import Kind, LinckiaError
from linckia.proto.operation import Params
from linckia.proto.ops.embed import EmbedMaxSim
from linckia.proto.ops.rerank import Ranked, RerankModel, RerankModelParams, RerankPairs
from linckia.services.retrieve.fusion import normalised

R = TypeVar("R")

RERANK, MAXSIM = "rerank", "maxsim"
"""Their names among the stages."""

_MODEL_WAIT_S = 0.25
"""A service that is ready says what model it has in milliseconds; one that is not is not waited for."""

_MODEL_FRESH_S = 10.0
_CHARACTERS_A_TOKEN = 3
"""Of few texts are tokens shorter than this on average, so the time is not underestimated."""


class Call(Protocol):
    """A call of another service's operation, as a handler's context makes it."""

    async def __call__(self, params: Params[R], *, timeout_s: float | None = None) -> R: ...


class Order(msgspec.Struct, frozen=True):
    """The candidates that were ranked, best first (none: the stage did not run), and what went wrong, if anything."""

    ranked: list[Ranked] = []
    degraded: str = ""


class Pace:
    """What searches know of the reranker: its model, its speed, and whether it answered lately.

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
        # Part of the time that is planned for: searches beside this one want theirs.
        self._share = self.MOST

    @property
    def is_paused(self) -> bool:
        return trio.current_time() < self._paused_until

    @property
    def tokens(self) -> int:
        """As many as the model reads in the time there is."""
        return 0 if self.model is None else int(self.model.tokens_per_s * self.within_s * self._share)

    def portion(self, count: int) -> int:
        """Of so many texts those that are tried, where the speed is not known: fewer after each that came too late."""
        return min(count, max(self.LEAST_TEXTS, round(count * self._share / self.MOST)))

    def is_fresh(self) -> bool:
        return trio.current_time() < self._fresh_until

    def learn(self, model: RerankModel) -> None:
        self.model = model
        self._fresh_until = trio.current_time() + _MODEL_FRESH_S

    async def asked(self, call: Call, params: Params[R]) -> R | str:
        """The answer, where it comes in time, or what went wrong; what it took is learnt."""
        try:
            with trio.fail_after(self.within_s):
                answer = await call(params, timeout_s=self.within_s)
        except trio.TooSlowError:
            self._too_late()
            return f"no answer within {self.within_s:g} s"
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
        """The next answer may come from another generation, with another model."""
        self._fresh_until = -float("inf")


def _only(count: int, of: int) -> str:
    return f"only the best {count} of {of} candidates could be read in time" if count < of else ""


class _Stage:
    """The stage for one search; `pace` is common to all."""

    def __init__(self, call: Call, pace: Pace) -> None:
        self._call = call
        self._pace = pace


class Reranker(_Stage):
    """By the cross-encoder."""

    stage = RERANK

    @property
    def may_run(self) -> bool:
        """False where it is known that this machine has no such model."""
        model = self._pace.model
        return model is None or model.available or not self._pace.is_fresh()

    async def rank(self, query: str, texts: Sequence[str], scores: Sequence[float] = ()) -> Order:
        """`texts`, best candidate first, in the order of the cross-encoder.  Never raises a LinckiaError.

        Args:
            scores: what they were fused to, which this stage replaces.
        """
        if self._pace.is_paused:
            return Order(degraded="it did not answer in time a moment ago")
        try:
            model = await self._model()
        except (trio.TooSlowError, LinckiaError) as error:
            if self._pace.model is not None and not self._pace.model.available:
                # There was no model, and nothing says that there is one now: its service may just be resting.
                return Order()
            self._pace.pause(Pace.NOT_READY_S)
            return Order(degraded=error.failure.message if isinstance(error, LinckiaError) else "it is not ready")
        if not model.available:
            return Order()
        count = self._fitting(query, texts, model)
        if count < min(2, len(texts)):
            return Order(degraded="the model is too slow here to read the candidates in time")
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
        """How many of the texts, from the first, fit into the time there is."""
        left = self._pace.tokens
        for index, text in enumerate(texts):
            left -= min(model.max_tokens, (len(query) + len(text)) // _CHARACTERS_A_TOKEN + 4)
            if left < 0:
                return index
        return len(texts)


class LateReranker(_Stage):
    """By late interaction, on the embedder's own token vectors; half of the score is the fusion's."""

    stage = MAXSIM
    may_run = True
    SHARE = 0.25
    """Of the time there is, that the embedder plans for: the first searches do not know it, and others want theirs."""

    async def rank(self, query: str, texts: Sequence[str], scores: Sequence[float]) -> Order:
        """As `Reranker.rank`."""
        if self._pace.is_paused:
            return Order(degraded="it did not answer in time a moment ago")
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
