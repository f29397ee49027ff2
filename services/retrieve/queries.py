"""Vectors of queries, each made once, and how long searches wait for them: an agent asks the same of several
collections, with another filter, or again.

A vector names its model by its fingerprint, and one that is not the collection's is made again; so another model shows
as it does without this.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable

import trio

from linckia.proto.ops.embed import EmbedResult, EmbedTexts

QueryCall = Callable[[EmbedTexts, float], Awaitable[EmbedResult]]
"""Embeds a query within so many seconds."""

KEPT = 256
"""Vectors of 1.5 KB each, with their queries."""

KEPT_CHARS = 4096
"""Of longer queries none is kept: they are hardly asked twice."""


class _Asked:
    """A query that is being embedded; `result` is None where that failed."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.result: EmbedResult | None = None


class QueryVectors:
    """Those made lately, and those that are being made."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, EmbedResult] = OrderedDict()
        self._asked: dict[str, _Asked] = {}

    def known(self, text: str, fingerprint: str | None) -> QueryCall | None:
        """What answers this query, where its vector by the model of that fingerprint was made lately."""
        kept = self._kept.get(text)
        if kept is None or kept.fingerprint != fingerprint:
            return None
        self._kept.move_to_end(text)

        async def answer(query: EmbedTexts, timeout_s: float) -> EmbedResult:
            await trio.lowlevel.checkpoint()
            return kept

        return answer

    def by(self, embed: QueryCall, fingerprint: Callable[[], str | None]) -> QueryCall:
        """As `embed`, but for a query that is being embedded already, by the model with this fingerprint.

        Cancellation: who waits for another's asks itself where that one gives up.
        """

        async def ask(query: EmbedTexts, timeout_s: float) -> EmbedResult:
            (text,) = query.texts
            if (others := self._asked.get(text)) is not None:
                await others.done.wait()
                if others.result is not None and others.result.fingerprint == fingerprint():
                    return others.result
            return await self._ask(text, embed(query, timeout_s))

        return ask

    async def _ask(self, text: str, answer: Awaitable[EmbedResult]) -> EmbedResult:
        mine = self._asked[text] = _Asked()
        try:
            mine.result = await answer
            if len(text) <= KEPT_CHARS:
                self._kept[text] = mine.result
                self._kept.move_to_end(text)
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
            return mine.result
        finally:
            if self._asked.get(text) is mine:
                del self._asked[text]
            mine.done.set()


class Patience:
    """How long a search waits for the query's vector: in full, or briefly once that was waited for in vain.

    Words answer in milliseconds; while the embedder hangs, not every search shall pay for it. Until it has answered
    once it may be loading its model: the first searches wait for that, though not for the slowest.
    """

    FIRST_S, BRIEF_S, BRIEF_FOR_S = 2.0, 0.1, 5.0

    def __init__(self, full_s: float) -> None:
        self._full_s = full_s
        self._most_s = min(self.FIRST_S, full_s)
        self._brief_until = -math.inf

    def timeout_s(self) -> float:
        return min(self.BRIEF_S, self._full_s) if trio.current_time() < self._brief_until else self._most_s

    def learn(self, answered: bool) -> None:
        if answered:
            self._most_s = self._full_s
        self._brief_until = -math.inf if answered else trio.current_time() + self.BRIEF_FOR_S
