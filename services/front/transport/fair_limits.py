"""Limits that are shared fairly among clients, so that one client's flood does not delay the others.

An event loop runs tasks in any order, so a client that sends a hundred requests at once would get a hundred shares.
Here waiting clients take turns, and each client's requests begin in their order.  A request that takes long is waiting
for a service and costs nothing meanwhile, so it stops counting after a while and does not hold up others.
"""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Hashable

import trio

EACH, TOTAL, QUICK_S = 8, 16, 0.05
"""Most requests of one client and of all clients that begin at once, and how long each counts."""

LARGE_BYTES = 512 * 1024
"""A request with a longer body costs milliseconds to parse and a multiple of its size in memory, so it counts until it
is answered."""

LARGE_EACH, LARGE_TOTAL = 2, 4
"""Most such requests of one client and of all clients at once."""

READ_EACH, READ_S = 4, 2.0
"""Most large bodies of one client that are read at once, and how long each counts.  The others wait in their sockets
and take no memory, whose first use is the largest cost."""

BODIES_BYTES = 256 * 1024 * 1024
"""Most bytes of all bodies in flight; beyond it, clients that use more than their share are refused."""


class FairLimiter:
    """Admits at most `each` requests of one client and `total` of all; each counts for at most `quick_s`."""

    def __init__(self, each: int = EACH, total: float = TOTAL, quick_s: float = QUICK_S) -> None:
        self._each = each
        self._total = total
        self._quick_s = quick_s
        self._tokens = itertools.count()
        # By token, oldest first: the client, and until when the request counts.
        self._held: dict[int, tuple[Hashable, float]] = {}
        self._by_client: collections.Counter[Hashable] = collections.Counter()
        self._waiting: dict[Hashable, collections.deque[_Waiter]] = {}
        # The one waiter that watches the time, so that an expiry does not wake all of them.
        self._watching: _Waiter | None = None

    async def acquire(self, client: Hashable) -> int:
        """Wait for the client's turn; return a token for `release`."""
        if client in self._waiting or not self._admits(client):
            return await self._wait(client)
        return self._take(client)

    def release(self, token: int) -> None:
        """Stop counting a request, because it is answered."""
        if token in self._held:
            self._expire(token)
        if self._waiting:
            self._wake()

    def _admits(self, client: Hashable) -> bool:
        return len(self._held) < self._total and self._by_client[client] < self._each

    def _take(self, client: Hashable) -> int:
        token = next(self._tokens)
        self._by_client[client] += 1
        self._held[token] = client, trio.current_time() + self._quick_s
        return token

    async def _wait(self, client: Hashable) -> int:
        waiter = _Waiter()
        self._waiting.setdefault(client, collections.deque()).append(waiter)
        try:
            while waiter.token is None:
                self._watching = self._watching or waiter
                if self._watching is waiter:
                    with trio.move_on_at(next(iter(self._held.values()))[1]):
                        await waiter.woken.wait()
                    self._wake()
                else:
                    await waiter.woken.wait()
                    waiter.woken = trio.Event()
        except trio.Cancelled:
            if waiter.token is not None:
                self.release(waiter.token)
            else:
                self._waiting[client].remove(waiter)
                if not self._waiting[client]:
                    del self._waiting[client]
            raise
        finally:
            if self._watching is waiter:
                self._watching = None
                if self._waiting:
                    # Another one watches from now on.
                    next(iter(self._waiting.values()))[0].woken.set()
        return waiter.token

    def _expire(self, token: int) -> None:
        client, _ = self._held.pop(token)
        self._by_client[client] -= 1
        if not self._by_client[client]:
            del self._by_client[client]

    def _wake(self) -> None:
        """Admit as many waiting requests as the limits allow, one of each client in turn."""
        now = trio.current_time()
        while (first := next(iter(self._held), None)) is not None and self._held[first][1] <= now:
            self._expire(first)
        while admitted := [client for client in self._waiting if self._admit_one(client)]:
            for client in admitted:
                # Queue the client behind the others.
                if waiting := self._waiting.pop(client):
                    self._waiting[client] = waiting

    def _admit_one(self, client: Hashable) -> bool:
        """Admit the first waiting request of a client if the limits allow it."""
        waiting = self._waiting[client]
        if not waiting or not self._admits(client):
            return False
        waiter = waiting.popleft()
        waiter.token = self._take(client)
        waiter.woken.set()
        return True


class _Waiter:
    """A waiting request; `token` is set when it is admitted.

    `woken` is set when it is admitted, and when it should watch the time.
    """

    def __init__(self) -> None:
        self.woken = trio.Event()
        self.token: int | None = None


class BodyBudget:
    """Counts the bytes of the bodies in flight, by client."""

    def __init__(self, limit: int = BODIES_BYTES) -> None:
        self._limit = limit
        self._by_client: collections.Counter[Hashable] = collections.Counter()
        self._total = 0

    def reserve(self, client: Hashable, size: int) -> bool:
        """Reserve `size` bytes, or release them if it is negative; return False if that is too much."""
        if size > 0 and self._total + size > self._limit:
            clients = len(self._by_client.keys() | {client})
            if self._by_client[client] + size > self._limit / clients:
                return False
        self._by_client[client] += size
        self._total += size
        if not self._by_client[client]:
            del self._by_client[client]
        return True


class FairLimits:
    """The limits that all HTTP requests of a front share: small requests, large ones, and the reading of bodies."""

    def __init__(self) -> None:
        self.small = FairLimiter()
        self.large = FairLimiter(LARGE_EACH, LARGE_TOTAL, math.inf)
        self.reading = FairLimiter(READ_EACH, math.inf, READ_S)
        self.bodies = BodyBudget()
