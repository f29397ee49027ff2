"""Follows folders through the service `watch`, across crashes of either side.

A follower subscribes under its own name and reads changes in batches. The watcher keeps its log on disk, so nothing is
lost between two reads, but a batch may be delivered twice. If the log does not reach back to the last read (at the
first start, after a long absence), the listener rescans.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import trio

from proto.errors import InvalidParams, Kind, LinckiaError
from proto.ops.watch import Change, WatchChanges, WatchSubscribe, WatchUnsubscribe
from services.runtime.handlers import Environment
from services.shared.backoff import Backoff

WAIT_S = 600.0
FIRST_PAUSE_S, LAST_PAUSE_S = 0.1, 5.0

PATIENCE_S = 1.0
"""A watcher that returns within this time is not reported as absent: its log continues where it ended."""

SCANNING = "the watcher is still scanning all folders for the first time"

_AWAY = (Kind.UNAVAILABLE, Kind.OVERLOADED, Kind.MAYBE_EXECUTED)


class Listener(Protocol):
    """Receives changes. If a method raises LinckiaError or OSError (for example because the disk is full), it is called
    again, and `unwatched` says why."""

    async def changed(self, changes: Sequence[Change], sequence: int) -> None:
        """Handle changed entries; afterwards everything up to `sequence` has been handled."""

    async def rescan(self, sequence: int) -> None:
        """Handle the loss of history before `sequence`: any entry may have changed."""

    async def watched(self) -> None:
        """Called after each read if every change so far has been delivered."""

    def unwatched(self, reason: str) -> None:
        """Called with the reason when changes are not being delivered."""


class Follower:
    """The task of one subscription; it begins with a scan, unless `after` is the last sequence that was handled."""

    def __init__(self, env: Environment, name: str, listener: Listener, *, after: int = 0) -> None:
        self._env = env
        self._name = name
        self._listener = listener
        self.after = after
        self.wait_s = WAIT_S
        """How long a read waits for a change once every change so far has been delivered."""
        self._in_step = False
        """Whether the last read delivered every change."""
        self._wanted: WatchSubscribe | None = None
        self._subscribed: WatchSubscribe | None = None
        self._reason = ""
        """Why changes are not being delivered, as last reported."""
        self._away_since = math.inf
        self._backoff = Backoff(FIRST_PAUSE_S, LAST_PAUSE_S)
        self._turn = trio.CancelScope()
        """Cancels the current read. `follow` interrupts it unless the listener is being called."""
        self._listening = False
        self._wake = trio.Event()

    def follow(
        self, paths: Sequence[str], *, recursive: bool = True, ignore: Sequence[str] = (), include: Sequence[str] = ()
    ) -> None:
        """Follow these folders from now on; no paths ends the subscription. See `WatchSubscribe` for the rules."""
        wanted = WatchSubscribe(
            name=self._name, paths=list(paths), recursive=recursive, ignore=list(ignore), include=list(include)
        )
        self._wanted = wanted if paths else None
        self._wake.set()
        if wanted != self._subscribed and not self._listening:
            self._turn.cancel()

    async def run(self) -> None:
        """Follow until cancelled."""
        await self._env.after_the_rush()
        while True:
            self._wake = trio.Event()
            with trio.CancelScope() as self._turn:
                await self._round()

    async def _round(self) -> None:
        try:
            if self._wanted is None:
                if self._subscribed is not None:
                    await self._env.call(WatchUnsubscribe(name=self._name))
                    self._subscribed = None
                await self._wake.wait()
            else:
                await self._read(self._wanted)
        except (LinckiaError, OSError) as error:
            with trio.move_on_after(self._miss(error)):
                await self._wake.wait()

    async def _read(self, wanted: WatchSubscribe) -> None:
        """Subscribe if necessary, and process one answer."""
        if self._subscribed != wanted:
            if self._subscribed is not None:
                self.after = 0
            await self._env.call(wanted)
            self._subscribed = wanted
        wait_s = self.wait_s if self._in_step else 0.0
        answer = await self._env.call(
            WatchChanges(subscription=self._name, after=self.after, wait_s=wait_s, limit=5000)
        )
        self._away_since = math.inf
        if not answer.complete:
            self._tell_unwatched(SCANNING)
            await trio.sleep(FIRST_PAUSE_S)
            return
        self._listening = True
        if answer.resync:
            await self._listener.rescan(answer.sequence)
        elif answer.changes:
            await self._listener.changed(answer.changes, answer.sequence)
        self.after = answer.sequence
        self._in_step = not answer.more
        if self._in_step:
            await self._listener.watched()
            self._reason = ""
        self._backoff.succeeded()
        self._listening = False

    def _miss(self, error: LinckiaError | OSError) -> float:
        """Report a failure, of the watcher only if it lasts. Returns how long to pause."""
        self._in_step = False
        if self._listening or isinstance(error, OSError):
            self._listening = False
            self._tell_unwatched(str(error))
            return self._backoff.pause_s()
        now = trio.current_time()
        self._away_since = min(self._away_since, now)
        if error.failure.kind not in _AWAY:
            # If the watcher lost its database, it no longer knows the subscription.
            self._subscribed = None
        if isinstance(error, InvalidParams):
            self._tell_unwatched(str(error))
            return LAST_PAUSE_S
        if now - self._away_since >= PATIENCE_S or self._reason:
            self._tell_unwatched(f"the folder watcher is not available: {error}")
        return min(LAST_PAUSE_S, self._backoff.pause_s((error.failure.retry_after_ms or 0) / 1000))

    def _tell_unwatched(self, reason: str) -> None:
        if reason != self._reason:
            self._reason = reason
            self._listener.unwatched(reason)
