"""Whose request is begun next, where more come at once than can be: so that one client's flood is not everyone's wait.

An event loop takes what is ready in any order, so that who sends a hundred requests at once has a hundred shares.  Here
each client has the same, its requests in their order.  A request that takes longer than the loop needs for it waits for
a service and costs nothing meanwhile: its turn is over, so that long calls hold up no others.
"""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Hashable

import trio

EACH, TOTAL, QUICK_S = 8, 16, 0.05
"""Requests of one client and of all that are begun at once, and how long one counts."""

LARGE_BYTES = 512 * 1024
"""A longer body costs milliseconds to read and many times its size in memory: it counts until it is answered."""

LARGE_EACH, LARGE_TOTAL = 2, 4

READ_EACH, READ_S = 4, 2.0
"""Longer bodies of one client that are read at once, and how long one counts: the others wait in their sockets, and
take no memory, whose first use is what costs most."""

BODIES_BYTES = 256 * 1024 * 1024
"""Of all bodies that are in hand; beyond it a client that has more than its share of them is refused another."""


class Turns:
    """Turns of at most `each` requests of one client, `total` of all; one counts for `quick_s` at most."""

    def __init__(self, each: int = EACH, total: float = TOTAL, quick_s: float = QUICK_S) -> None:
        self._each = each
        self._total = total
        self._quick_s = quick_s
        self._numbers = itertools.count()
        # By number, so that the oldest is first: whose it is, and until when it counts.
        self._taken: dict[int, tuple[Hashable, float]] = {}
        self._of: collections.Counter[Hashable] = collections.Counter()
        self._waiting: dict[Hashable, collections.deque[_Waiting]] = {}

    async def take(self, client: Hashable) -> int:
        """Wait for the client's turn, and take it; answers its number, which is to be given back."""
        if client in self._waiting or not self._admits(client):
            return await self._wait(client)
        return self._take(client)

    def give_back(self, number: int) -> None:
        """That request is answered."""
        if number in self._taken:
            self._end(number)
        if self._waiting:
            self._pass_on()

    def _admits(self, client: Hashable) -> bool:
        return len(self._taken) < self._total and self._of[client] < self._each

    def _take(self, client: Hashable) -> int:
        number = next(self._numbers)
        self._of[client] += 1
        self._taken[number] = client, trio.current_time() + self._quick_s
        return number

    async def _wait(self, client: Hashable) -> int:
        mine = _Waiting()
        self._waiting.setdefault(client, collections.deque()).append(mine)
        try:
            while mine.number is None:
                with trio.move_on_at(next(iter(self._taken.values()))[1]):
                    await mine.called.wait()
                self._pass_on()
        except trio.Cancelled:
            if mine.number is not None:
                self.give_back(mine.number)
            else:
                self._waiting[client].remove(mine)
                if not self._waiting[client]:
                    del self._waiting[client]
            raise
        return mine.number

    def _end(self, number: int) -> None:
        client, _ = self._taken.pop(number)
        self._of[client] -= 1
        if not self._of[client]:
            del self._of[client]

    def _pass_on(self) -> None:
        """Let those begin for whom there is room, one of each client and then the next."""
        now = trio.current_time()
        while (first := next(iter(self._taken), None)) is not None and self._taken[first][1] <= now:
            self._end(first)
        for client in list(self._waiting):
            if self._admits(client):
                waiting = self._waiting.pop(client)
                called = waiting.popleft()
                called.number = self._take(client)
                called.called.set()
                if waiting:
                    # Behind the others.
                    self._waiting[client] = waiting


class _Waiting:
    """A request whose turn is yet to come; `number` is that of its turn."""

    def __init__(self) -> None:
        self.called = trio.Event()
        self.number: int | None = None


class Bodies:
    """The bodies that are in hand, in bytes by client; of `size` below zero is given back."""

    def __init__(self, limit: int = BODIES_BYTES) -> None:
        self._limit = limit
        self._of: collections.Counter[Hashable] = collections.Counter()
        self._total = 0

    def take(self, client: Hashable, size: int) -> bool:
        """So much more of a body has come; False where it is too much, and is not taken."""
        if size > 0 and self._total + size > self._limit:
            clients = len(self._of.keys() | {client})
            if self._of[client] + size > self._limit / clients:
                return False
        self._of[client] += size
        self._total += size
        if not self._of[client]:
            del self._of[client]
        return True


class Shared:
    """What one client's flood leaves to the others, whatever it is for."""

    def __init__(self) -> None:
        self.short = Turns()
        self.long = Turns(LARGE_EACH, LARGE_TOTAL, math.inf)
        self.reading = Turns(READ_EACH, math.inf, READ_S)
        self.bodies = Bodies()
