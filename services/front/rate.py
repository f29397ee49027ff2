"""Rate limits: a token bucket for each client, so that one client's flood does not affect the others.

A call over the limit fails with `Overloaded` and the time to wait, and is not forwarded.  HTTP requests are limited as
well: a client that sends far more requests than calls is refused before its request body is read.  Each front counts on
its own.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from contextvars import ContextVar

import trio

from proto.errors import Kind, Overloaded
from proto.grants import Rate
from proto.origin import Origin
from services.front import refusals

MAX_CLIENTS = 4096
"""Most clients whose calls are counted; beyond it the one that called least recently is forgotten."""

REQUESTS = 2
"""Requests allowed for each allowed call; refused calls count as requests."""

SPARE_REQUESTS = 30
"""Further requests allowed in a burst, because opening a session takes some."""


class Bucket:
    """A token bucket: refilled at a constant rate up to `size`; each call takes one token."""

    def __init__(self, per_second: float, size: float) -> None:
        self._per_second = per_second
        self._size = self._level = size
        self._at = trio.current_time()

    def take(self) -> float:
        """Take a token and return 0.0, or return the seconds until one is available."""
        now = trio.current_time()
        self._level = min(self._size, self._level + (now - self._at) * self._per_second)
        self._at = now
        if self._level < 1:
            return (1 - self._level) / self._per_second
        self._level -= 1
        return 0.0


class Limit:
    """The rate limit of one client."""

    def __init__(self, name: str, rate: Rate) -> None:
        self._name = name
        self.rate = rate
        per_second = rate.per_minute / 60
        self._calls = Bucket(per_second, rate.burst)
        self.request = Bucket(REQUESTS * per_second, REQUESTS * rate.burst + SPARE_REQUESTS).take
        """Counts a request; returns 0.0, or the seconds to wait before it may be repeated."""

    def call(self, operation: str, origin: Origin) -> None:
        """Count a call.  Raises Overloaded if it exceeds the limit."""
        if (wait_s := self._calls.take()) > 0:
            allowed = f"{self.rate.per_minute:g} calls a minute, {self.rate.burst} at once"
            text = f"{self._name} may make {allowed}; try again in {wait_s:.1f} s"
            refusals.note(origin, operation, Kind.OVERLOADED.value, text)
            raise Overloaded(text, retry_after_ms=math.ceil(wait_s * 1000))


class Limits:
    """The rate limits of all clients, by the keys of their tokens."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[str, Limit] = OrderedDict()

    def of(self, key: str, name: str, rate: Rate | None) -> Limit | None:
        """Return the limit of a client; None if `rate` is None."""
        if rate is None:
            return None
        limit = self._by_key.get(key)
        if limit is None or limit.rate != rate:
            limit = self._by_key[key] = Limit(name, rate)
        self._by_key.move_to_end(key)
        if len(self._by_key) > MAX_CLIENTS:
            self._by_key.popitem(last=False)
        return limit


current: ContextVar[Limit | None] = ContextVar("limit", default=None)
"""The limit of the client that this task serves."""
