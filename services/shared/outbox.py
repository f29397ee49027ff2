"""At-least-once delivery from a service's database to another service, across crashes of either side.

This is the transactional outbox pattern: each change adds its key to a table in the same transaction. An `Outbox` takes
keys from there, delivers the current state of each item, and removes the keys once the other side has it on disk.
Deliveries are idempotent, so they can be repeated. While the other side is away, the outbox backs off. Afterwards, and
at the start, both sides are compared, because the other side may have returned with less data than it had.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

import trio

from proto.errors import Failure, LinckiaError, OperationError
from services.runtime.handlers import Environment
from services.runtime.storage import FULL_PAUSE_S, DiskFull
from services.shared.backoff import Backoff

D = TypeVar("D")

FIRST_PAUSE_S, LAST_PAUSE_S = 0.25, 15.0

MAX_GATHERED = 10
"""A new key waits at most this many times `gather_s` while others keep coming."""


class Feed(Protocol[D]):
    """The parts that differ between outboxes. Each method may be called again after it failed or was killed."""

    async def compare(self) -> None:
        """Compare both sides: queue the items that the other side lacks or should delete."""

    async def take(self) -> D | None:
        """Return the next batch in its current state; None if nothing is queued."""

    async def deliver(self, due: D) -> bool:
        """Deliver a batch. Returns False if the other side is not the one that was compared; nothing is then
        removed."""

    async def strike(self, due: D) -> None:
        """Remove delivered keys from the table, unless they have changed since."""


class Outbox(Generic[D]):
    """The task that delivers.

    Args:
        to: a description of the other side, for `waiting`.
        gather_s: a new key waits until no other came for this long, unless a task waits for the delivery.
        is_full: whether more than this batch may have been queued, so that the next one need not wait.
    """

    def __init__(
        self,
        env: Environment,
        to: str,
        feed: Feed[D],
        *,
        gather_s: float = 0.0,
        is_full: Callable[[D], bool] = lambda due: True,
    ) -> None:
        self._env = env
        self._to = to
        self._feed = feed
        self._gather_s = gather_s
        self._is_full = is_full
        self._hurried = 0
        """How often there were new keys."""
        self._compared = self._in_step = False
        """Whether both sides were compared, and whether the queue is also empty."""
        self.has_compared = False
        """Whether both sides were compared since the start, so that the table lists everything the other side lacks."""
        self._wake = trio.Event()
        self._wanted = trio.Event()
        self._passed = trio.Condition()
        self.waiting: str | None = None
        """Why nothing is being delivered at the moment; None during normal delivery."""
        self.failure: Failure | None = None
        """The failure behind `waiting`."""

    def hurry(self) -> None:
        """Check the table for new keys now."""
        self._hurried += 1
        self._wake.set()

    async def run(self) -> None:
        """Deliver until cancelled; afterwards, the database is no longer used."""
        backoff = Backoff(FIRST_PAUSE_S, LAST_PAUSE_S)
        await self._env.after_the_rush()
        while True:
            # Armed before the table is read, so that a key arriving meanwhile is not missed.
            self._wake = trio.Event()
            self._wanted = trio.Event()
            self._in_step = False
            try:
                while (due := await self._step()) is not None:
                    backoff.succeeded()
                    await self._tell(None)
                    if not self._is_full(due):
                        await self._gather()
                self._in_step = self._compared
                await self._tell(None)
            except LinckiaError as error:
                # If its disk is full, the other side returns a retryable failure of its own.
                retried = isinstance(error, OperationError) and error.failure.retry_after_ms is not None
                is_full = retried or isinstance(error, DiskFull)
                self._compared = self._compared and is_full
                await self._tell(f"{self._to} is not available: {error}", error.failure)
                await trio.sleep(FULL_PAUSE_S if is_full else backoff.pause_s())
                continue
            await self._wake.wait()
            await self._gather()

    async def _gather(self) -> None:
        """Wait for more keys: many together cost both sides little more than one."""
        with trio.move_on_after(MAX_GATHERED * self._gather_s):
            while not self._wanted.is_set():
                before = self._hurried
                with trio.move_on_after(self._gather_s):
                    await self._wanted.wait()
                if self._hurried == before:
                    break

    async def watch_epoch(self, ask: Callable[[str], Awaitable[str]]) -> None:
        """Whenever the other side recreates its database, compare again and deliver the missing items.

        Args:
            ask: waits until the other side's epoch differs from the given one, to which everything has been
                delivered
                (empty if none), and returns the new epoch.
        """
        delivered, backoff = "", Backoff(FIRST_PAUSE_S, LAST_PAUSE_S)
        while True:
            try:
                found = await ask(delivered)
            except LinckiaError:
                await backoff.pause()
                continue
            backoff.succeeded()
            if delivered and found != delivered:
                self._compared = self._in_step = False
                self._wake.set()
            async with self._passed:
                while not self._in_step:
                    await self._passed.wait()
            delivered = found

    async def until(self, condition: Callable[[], Awaitable[bool]], patience_s: float) -> bool:
        """Wait at most `patience_s` until `condition` holds, checking after each batch.

        Returns early if the other side becomes unavailable. Returns whether the condition held.
        """
        self._wanted.set()
        with trio.move_on_after(patience_s):
            async with self._passed:
                # Checked with the lock held, so that no batch slips in between the check and the wait.
                while not (met := await condition()) and not self.waiting:
                    await self._passed.wait()
            return met
        return await condition()

    async def _step(self) -> D | None:
        """Compare, and deliver one batch, which is returned. Returns None if nothing was left to do."""
        if not self._compared:
            # Set first: the other side may be recreated during the comparison.
            self._compared = True
            try:
                await self._feed.compare()
            except BaseException:
                self._compared = False
                raise
            self.has_compared = True
        if (due := await self._feed.take()) is None:
            return None
        if await self._feed.deliver(due):
            await self._feed.strike(due)
        else:
            self._compared = False
        return due

    async def _tell(self, waiting: str | None, failure: Failure | None = None) -> None:
        self.waiting, self.failure = waiting, failure
        async with self._passed:
            self._passed.notify_all()


class Page(Protocol):
    """A part of a sorted list of ids, and whether there is more."""

    @property
    def ids(self) -> Sequence[str]: ...

    @property
    def more(self) -> bool: ...


async def pages(page: Callable[[str], Awaitable[Page]]) -> list[str]:
    """Collect all ids of the other side; `page` gets the last id of the previous page, empty at first."""
    one = await page("")
    found = [*one.ids]
    while one.more and one.ids:
        one = await page(found[-1])
        found += one.ids
    return found
