"""Delivery from a service's database to another service, at least once, through any crash of either side.

The transactional outbox: a change leaves its key in a table, in the transaction that makes it. An `Outbox` takes keys
from there, delivers each thing in its present state, and strikes the keys out once the far end has it on disk; to be
repeated, deliveries are idempotent. While the far end is away it backs off; afterwards, and at the start, both sides
are compared, for the far end may have come back with less than it had.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

import trio

from linckia.proto.errors import LinckiaError, OperationError
from linckia.services.runtime.handlers import Environment
from linckia.services.runtime.storage import FULL_PAUSE_S, DiskFull

D = TypeVar("D")

FIRST_PAUSE_S, LAST_PAUSE_S = 0.25, 15.0


class Feed(Protocol[D]):
    """What differs from one outbox to the next. Each method may be called again after it failed or was killed."""

    async def compare(self) -> None:
        """Bring both sides' lists together: queue what the far end lacks, and what it should not have."""

    async def take(self) -> D | None:
        """The next batch, as things are now; None where nothing waits."""

    async def deliver(self, due: D) -> bool:
        """Tell the far end; False where it turns out to be another than was compared with, and nothing is struck."""

    async def strike(self, due: D) -> None:
        """Remove from the table what was delivered, unless it has changed since."""


class Outbox(Generic[D]):
    """The task that delivers.

    Args:
        to: the far end in words, for `waiting`.
        gather_s: how long a first new key waits for more of them, unless a task waits for the delivery.
    """

    def __init__(self, env: Environment, to: str, feed: Feed[D], *, gather_s: float = 0.0) -> None:
        self._env = env
        self._to = to
        self._feed = feed
        self._gather_s = gather_s
        self._compared = self._in_step = False
        """Whether both sides were compared; whether nothing waits, either."""
        self._wake = trio.Event()
        self._wanted = trio.Event()
        self._passed = trio.Condition()
        self.waiting: str | None = None
        """Why nothing is delivered at the moment; None where it is."""

    def hurry(self) -> None:
        """There may be new keys."""
        self._wake.set()

    async def run(self) -> None:
        """Deliver until cancelled; after that the database is used no more."""
        pause_s = FIRST_PAUSE_S
        await self._env.after_the_rush()
        while True:
            # Armed before the look into the table: a key that comes during the look is not missed.
            self._wake = trio.Event()
            self._wanted = trio.Event()
            self._in_step = False
            try:
                while await self._step():
                    pause_s = FIRST_PAUSE_S
                    await self._tell(None)
                self._in_step = self._compared
                await self._tell(None)
            except LinckiaError as error:
                # A far end whose disk is full answers a failure of its own to be retried.
                retried = isinstance(error, OperationError) and error.failure.retry_after_ms is not None
                if retried or isinstance(error, DiskFull):
                    pause_s = FULL_PAUSE_S
                else:
                    self._compared = False
                await self._tell(f"{self._to} is not available: {error}")
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, LAST_PAUSE_S)
                continue
            await self._wake.wait()
            with trio.move_on_after(self._gather_s):
                await self._wanted.wait()

    async def watch_epoch(self, ask: Callable[[str], Awaitable[str]]) -> None:
        """Compare again, and deliver what is lacking, whenever the far end begins its database again.

        Args:
            ask: answers the far end's epoch once it is another than the one given, to which all has been delivered
                (none: '').
        """
        delivered, pause_s = "", FIRST_PAUSE_S
        while True:
            try:
                found = await ask(delivered)
            except LinckiaError:
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, LAST_PAUSE_S)
                continue
            pause_s = FIRST_PAUSE_S
            if delivered and found != delivered:
                self._compared = self._in_step = False
                self._wake.set()
            async with self._passed:
                while not self._in_step:
                    await self._passed.wait()
            delivered = found

    async def until(self, condition: Callable[[], Awaitable[bool]], patience_s: float) -> bool:
        """Wait until `condition` holds, looked at after each batch, for `patience_s` or until the far end is away."""
        self._wanted.set()
        with trio.move_on_after(patience_s):
            async with self._passed:
                # Looked at with the lock held, so that no batch passes between here and the wait.
                while not (met := await condition()) and not self.waiting:
                    await self._passed.wait()
            return met
        return await condition()

    async def _step(self) -> bool:
        """Compare, or deliver one batch; False where nothing was left to do."""
        if not self._compared:
            # Set before: the far end may be begun again meanwhile.
            self._compared = True
            try:
                await self._feed.compare()
            except BaseException:
                self._compared = False
                raise
        if (due := await self._feed.take()) is None:
            return False
        if await self._feed.deliver(due):
            await self._feed.strike(due)
        else:
            self._compared = False
        return True

    async def _tell(self, waiting: str | None) -> None:
        self.waiting = waiting
        async with self._passed:
            self._passed.notify_all()


class Page(Protocol):
    """A part of a sorted list of ids, and whether there is more."""

    @property
    def ids(self) -> Sequence[str]: ...

    @property
    def more(self) -> bool: ...


async def pages(page: Callable[[str], Awaitable[Page]]) -> list[str]:
    """All ids of a far end, page by page; `page` gets the last id of the page before, '' at first."""
    one = await page("")
    found = [*one.ids]
    while one.more and one.ids:
        one = await page(found[-1])
        found += one.ids
    return found
