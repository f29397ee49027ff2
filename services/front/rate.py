"""Limits on how often one client calls: a token bucket for each, so that the flood of one is no other's concern.

A call that is too early is `Overloaded`, with the time after which it is not, and is not passed on.  Beside calls, all
requests over HTTP are counted, and a client whose requests are many more than its calls may be is answered before what
it sends is read.  Each front counts for itself.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from contextvars import ContextVar

import trio

from linckia.proto.errors import Kind, Overloaded
from linckia.proto.grants import Rate
from linckia.services.front import refusals

MAX_CLIENTS = 4096
"""Whose calls are counted; the one that has called least recently is forgotten."""

REQUESTS = 2
"""Requests for each call that there may be; refused calls are requests too."""

SPARE_REQUESTS = 30
"""Beside these: a session's opening takes some."""


class Bucket:
    """Filled at a rate, up to a size; each call takes one out."""

    def __init__(self, per_second: float, size: float) -> None:
        self._per_second = per_second
        self._size = self._level = size
        self._at = trio.current_time()

    def take(self) -> float:
        """0.0, or the seconds until there is one."""
        now = trio.current_time()
        self._level = min(self._size, self._level + (now - self._at) * self._per_second)
        self._at = now
        if self._level < 1:
            return (1 - self._level) / self._per_second
        self._level -= 1
        return 0.0


class Limit:
    """What one client may do."""

    def __init__(self, name: str, rate: Rate) -> None:
        self._name = name
        self.rate = rate
        per_second = rate.per_minute / 60
        self._calls = Bucket(per_second, rate.burst)
        self.request = Bucket(REQUESTS * per_second, REQUESTS * rate.burst + SPARE_REQUESTS).take
        """Count a request: 0.0, or the seconds after which it may be made again."""

    def call(self, operation: str) -> None:
        """Count a call.  Raises Overloaded."""
        if (wait_s := self._calls.take()) > 0:
            often = f"{self.rate.per_minute:g} calls a minute, {self.rate.burst} at once"
            text = f"{self._name} may make {often}; try again in {wait_s:.1f} s"
            refusals.note(operation, Kind.OVERLOADED.value, text)
            raise Overloaded(text, retry_after_ms=math.ceil(wait_s * 1000))


class Limits:
    """Of all clients, by the keys of their tokens."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[str, Limit] = OrderedDict()

    def of(self, key: str, name: str, rate: Rate | None) -> Limit | None:
        """That of a client; None where it has none."""
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
"""Of the client that this task serves."""


def count(operation: str) -> None:
    """Count a call of the client that this task serves.  Raises Overloaded."""
    if (limit := current.get()) is not None:
        limit.call(operation)
