"""A cache of query vectors, and how long searches wait for them.

Agents repeat a query on several collections or with other filters. A cached vector whose fingerprint is not the
collection's is made again, so a change of model is noticed as it is without the cache.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable

import trio

from proto.ops.embed import EmbedResult, EmbedTexts

QueryCall = Callable[[EmbedTexts, float], Awaitable[EmbedResult]]
"""A function that embeds a query, given a timeout in seconds."""

CACHED_QUERIES = 256
"""Capacity of the cache; a vector takes 1.5 KB plus its query."""

CACHED_QUERY_CHARS = 4096
"""Longer queries are not cached, as they are rarely repeated."""


class _InFlight:
    """A query that is being embedded; `result` stays None if that fails."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.result: EmbedResult | None = None


class QueryVectors:
    """Recent query vectors, and those being made."""

    def __init__(self) -> None:
        self._cache: OrderedDict[str, EmbedResult] = OrderedDict()
        self._in_flight: dict[str, _InFlight] = {}

    def cached(self, text: str, fingerprint: str | None) -> QueryCall | None:
        """Return a function that yields the cached vector of `text`; None if it is not cached for this model."""
        result = self._cache.get(text)
        if result is None or result.fingerprint != fingerprint:
            return None
        self._cache.move_to_end(text)

        async def answer(query: EmbedTexts, timeout_s: float) -> EmbedResult:
            await trio.lowlevel.checkpoint()
            return result

        return answer

    def shared(self, embed: QueryCall, fingerprint: Callable[[], str | None]) -> QueryCall:
        """Wrap `embed` to share the result of a call in flight for the same query, if its model has this fingerprint.

        Cancellation: if the call in flight fails or is cancelled, those waiting for it make their own.
        """

        async def ask(query: EmbedTexts, timeout_s: float) -> EmbedResult:
            (text,) = query.texts
            if (other := self._in_flight.get(text)) is not None:
                await other.done.wait()
                if other.result is not None and other.result.fingerprint == fingerprint():
                    return other.result
            return await self._ask(text, embed(query, timeout_s))

        return ask

    async def _ask(self, text: str, answer: Awaitable[EmbedResult]) -> EmbedResult:
        call = self._in_flight[text] = _InFlight()
        try:
            call.result = await answer
            if len(text) <= CACHED_QUERY_CHARS:
                self._cache[text] = call.result
                self._cache.move_to_end(text)
                while len(self._cache) > CACHED_QUERIES:
                    self._cache.popitem(last=False)
            return call.result
        finally:
            if self._in_flight.get(text) is call:
                del self._in_flight[text]
            call.done.set()


class Patience:
    """How long a search waits for the query's vector.  Searches wait only briefly for a while after a timeout.

    Word search takes milliseconds, and a hanging embedder must not slow down every search. Before its first reply the
    embedder may be loading its model, so the first searches wait up to `FIRST_S`.
    """

    FIRST_S, BRIEF_S, BRIEF_FOR_S = 3.0, 0.1, 5.0

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
