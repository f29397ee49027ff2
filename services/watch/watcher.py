"""The tasks that drive the tracker: they read events, wait a moment, and examine; they sweep after an overflow and
periodically.

The event loop only reads the queue and marks entries to examine; a worker thread examines them, in turns. A long batch
(a large tree moved here) is interleaved with later ones, so that single events do not wait for it.
"""

from __future__ import annotations

import collections
import logging
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec
import trio
from msgspec import Meta

from proto.errors import Unavailable
from services.runtime.handlers import Environment
from services.runtime.storage import DiskFull, retry_when_full
from services.watch.database import WatchDatabase, trim
from services.watch.differences import Batch, Work, merge
from services.watch.inotify import IN_IGNORED, IN_Q_OVERFLOW, IN_UNMOUNT, Inotify, Watches, parse, system_limit
from services.watch.tracker import Tracker
from services.watch.trees import Tree

DEBOUNCE_S: Final = 0.025
"""Longer than a file's time stamp may lag behind; an editor's save is complete by then."""
MAX_DEBOUNCE_S: Final = 0.2
TURN_S: Final = 0.1
LONG_TURN_S: Final = 0.05
"""Duration of each turn of a batch after its first, so that fresh events do not wait for it."""

TICK_S: Final = 1.0
"""Interval between checks of the watched folders themselves, which may come back at any time."""
REST_TICK_S: Final = 5.0
"""The same if nothing has changed for `REST_AFTER_S`. The system reports at once what is moved or deleted."""
REST_AFTER_S: Final = 10.0
FIRST_SWEEP_S: Final = 0.05
SWEEP_PAUSE_S: Final = 2.0
"""Pause between two sweeps for overflows: a continuing storm must not block all other work."""

LOAD_SHARE: Final = 0.02
"""Share of one processor for unrequested sweeps."""
POLL_SHARE: Final = 0.1

RETRY_MS: Final = 500

T = TypeVar("T")
Seconds = Annotated[float, Meta(gt=0)]

_log = logging.getLogger("linckia.watch")


class WatchSettings(msgspec.Struct):
    """Settings of `[services.watch]`."""

    reconcile_interval_s: Seconds = 300.0
    """Interval at which every folder is examined, in case events were lost."""
    poll_interval_s: Seconds = 3.0
    """Interval at which folders without events (network file systems) are examined."""
    trim_interval_s: Seconds = 10.0
    """Interval at which changes that every reader has read are deleted."""
    log_limit: Annotated[int, Meta(gt=0)] = 200_000
    """Number of changes kept for a reader that does not read, a few hundred bytes each."""
    max_watches: Annotated[int, Meta(ge=0)] = 0
    """0 means as many as the operating system allows."""


class Watcher:
    """The tasks, and their state.

    Everything in memory is derived from the database and the folders. After a failed transaction (a full disk, a
    damaged database) all of it is dropped, and the watcher restarts as after a crash: it reads the database and
    examines every folder. So no change is lost that could not be written.
    """

    def __init__(self, env: Environment, path: Path) -> None:
        """Open the database at `path`; blocks. Raises ValueError if a setting is invalid."""
        self._env = env
        self._settings = msgspec.convert(env.settings, WatchSettings)
        self.store = WatchDatabase(path, self._rebuilt)
        self._tracker: Tracker | None = None
        """None while the watcher is paused."""
        self._turn = trio.CapacityLimiter(1)
        """Held by the thread that uses the tracker."""
        self._scope = trio.CancelScope()
        """Cancel scope of the tasks."""
        self._failure: DiskFull | Unavailable | None = None
        """Why the watcher is paused."""
        self._decided = trio.Event()
        """Set while the watcher runs, or is paused because the disk is full."""
        self.changed = trio.Event()
        """Set, and replaced by a new event, whenever the log has grown or a first scan is done."""
        self.ending = env.ending
        self.overflows = self.events = 0
        self.reconciled_at: float | None = None
        self.reconcile_s = 0.0
        self.acknowledged: dict[tuple[str, str], int] = {}
        """Sequence numbers that readers have processed, by caller and name; stored when the log is trimmed."""

    def close(self) -> None:
        """Close the database; blocks."""
        self.store.database.close()

    def _begin(self, inotify: Inotify) -> None:
        """Reset everything that is derived from the database and the folders."""
        self._inotify = inotify
        self.watches = Watches(inotify, self._settings.max_watches)
        self._dirty: Work = {}
        self._due = math.inf
        self._roots: set[int] = set()
        self._sweeps: set[int] = set()
        # Not before pending calls are answered; changes in the meantime are not missed.
        self._sweep_after = trio.current_time() + FIRST_SWEEP_S
        self._batches: collections.deque[Batch] = collections.deque()
        """The first batch is the one whose turn it is."""
        self._wake = trio.Event()
        self._pause_s = DEBOUNCE_S
        self._next_reconcile = trio.current_time() + self._settings.reconcile_interval_s
        self._changed_at = trio.current_time()
        """Time of the latest event or change."""
        self._poll = Batch()
        self._polled_at = -math.inf

    async def run(self) -> None:
        """Run until cancelled, surviving full disks and damage. Raises OSError if the system provides no event
        queue."""
        while True:
            await retry_when_full(self._env, "watching", self._watch)
            await trio.sleep(0.1)

    async def _watch(self) -> None:
        """Run until a transaction fails. Raises DiskFull; returns if the database was recreated."""
        inotify = Inotify()
        self._begin(inotify)
        try:
            self._tracker = await trio.to_thread.run_sync(
                Tracker, self.store, self.watches, self._env.roots, limiter=self._turn
            )
            self._failure = None
            self._decided.set()
            self._sweeps.update(self._tracker.trees)
            with trio.CancelScope() as self._scope:
                await self._run_tasks()
        except (DiskFull, Unavailable) as error:
            self._fail(error)
        finally:
            with trio.CancelScope(shield=True):
                # A thread may still be using it.
                async with self._turn:
                    self._tracker = None
                    inotify.close()
        if isinstance(self._failure, DiskFull):
            raise self._failure

    async def _run_tasks(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                for task in (self._read, self._tick, self._trim, self._release_waiters, self._work):
                    nursery.start_soon(task)
        except* (DiskFull, Unavailable):
            # `change` has already called `_fail`.
            pass

    async def change(self, work: Callable[[Tracker], T]) -> T:
        """Run `work` in a thread, with exclusive use of the tracker.

        Raises DiskFull (nothing was done; the watcher is paused until there is room) or Unavailable (it is restarting).
        """
        await self._decided.wait()
        async with self._turn:
            if self._tracker is None:
                if isinstance(self._failure, DiskFull):
                    raise DiskFull(self.paused, retry_after_ms=RETRY_MS)
                raise Unavailable("watch: the watcher is restarting", retry_after_ms=RETRY_MS)
            try:
                return await trio.to_thread.run_sync(work, self._tracker)
            except (DiskFull, Unavailable) as error:
                self._fail(error)
                raise

    def _fail(self, error: DiskFull | Unavailable) -> None:
        """Stop the tasks, to restart them."""
        self._failure = error
        if isinstance(error, DiskFull):
            self._decided.set()
        elif self._decided.is_set():
            # This takes only a moment, and callers wait for it. Keep an event that some already wait for: the same
            # failure may be reported twice, by the call and by the database.
            self._decided = trio.Event()
        self._scope.cancel()
        self._notify()

    def _rebuilt(self) -> None:
        self._fail(Unavailable("watch: the database was damaged and has been recreated", retry_after_ms=RETRY_MS))

    async def _release_waiters(self) -> None:
        """Answer the calls that wait for changes before the service ends."""
        await self._env.ending.wait()
        self._notify()

    @property
    def paused(self) -> str:
        """Why the watcher is paused; empty if it is running."""
        return "" if self._failure is None else self._failure.failure.message

    @property
    def trees(self) -> Mapping[int, Tree]:
        return {} if self._tracker is None else self._tracker.trees

    @property
    def problems(self) -> Mapping[int, str]:
        """Why folders could not be examined, by folder number."""
        return {} if self._tracker is None else self._tracker.problems

    def sweep(self, tree: int) -> None:
        """Have a whole tree examined."""
        self._sweeps.add(tree)
        self._wake.set()

    def drain(self) -> None:
        """Process all pending events, so that `settled` takes them into account."""
        while self._tracker is not None and (data := self._inotify.read()):
            self._take_events(data)

    @property
    def dirty(self) -> int:
        """Number of folders known to need examination."""
        return len(self._dirty) + sum(len(batch.work) + len(batch.doubtful) for batch in self._batches)

    @property
    def sweeping(self) -> bool:
        """True if a sweep of some tree is pending or running."""
        return bool(self._sweeps) or any(batch.sweep for batch in self._batches)

    @property
    def settled(self) -> bool:
        waiting = self._dirty or self._batches or self._sweeps or self._roots
        return self._tracker is not None and self._failure is None and not waiting

    @property
    def reconcile_interval_s(self) -> float:
        return max(self._settings.reconcile_interval_s, self.reconcile_s / LOAD_SHARE)

    # Events

    async def _read(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._inotify.fd)
            self._take_events(self._inotify.read())

    def _take_events(self, data: bytes) -> None:
        self._changed_at = trio.current_time()
        for event in parse(data):
            self.events += 1
            if event.mask & IN_Q_OVERFLOW:
                self.overflows += 1
                _log.warning("the event queue overflowed; examining all folders again")
                self._sweeps.update(self.trees)
            elif event.mask & IN_IGNORED:
                self.watches.ended(event.watch)
            elif event.name:
                for folder in self.watches.folders(event.watch):
                    merge(self._dirty, folder, {event.name: True})
            elif event.mask & IN_UNMOUNT:
                for folder in self.watches.folders(event.watch):
                    merge(self._dirty, folder, None)
        # Changes of a folder itself appear in its parent; watched folders themselves are checked periodically.
        self._schedule()

    def _schedule(self) -> None:
        if self._dirty and self._due == math.inf:
            self._due = trio.current_time() + self._pause_s
        self._wake.set()

    # Work

    async def _work(self) -> None:
        while True:
            self._wake = trio.Event()
            now = trio.current_time()
            if self._roots or now >= self._due:
                self._batches.appendleft(Batch(work=self._dirty, roots=self._roots))
                self._dirty, self._roots, self._due = {}, set(), math.inf
            if self._sweeps and now >= self._sweep_after and not any(batch.sweep for batch in self._batches):
                self._batches.append(Batch(sweep=tuple(sorted(self._sweeps))))
                self._sweeps = set()
            if self._batches:
                await self._one_turn(self._batches[0])
                continue
            with trio.move_on_at(min(self._due, self._sweep_after if self._sweeps else math.inf)):
                await self._wake.wait()

    async def _one_turn(self, batch: Batch) -> None:
        """Run one turn of the first batch; the rest of it is queued behind the others."""
        before, is_first = self.store.sequence, not batch.seconds
        seconds = TURN_S if is_first else LONG_TURN_S
        done, incomplete = await self.change(lambda tracker: tracker.turn(batch, seconds))
        if is_first and not batch.sweep:
            # Under load, gather more events per batch.
            self._pause_s = min(MAX_DEBOUNCE_S, max(DEBOUNCE_S, batch.seconds))
        self._batches.popleft()
        if done:
            self._finished(batch)
        else:
            self._batches.append(batch)
        if self.store.sequence != before:
            self._notify()
        for folder, names in batch.again.items():
            merge(self._dirty, folder, names)
        batch.again.clear()
        self._sweeps |= incomplete
        self._schedule()

    def _notify(self) -> None:
        self._changed_at = trio.current_time()
        self.changed.set()
        self.changed = trio.Event()

    def _finished(self, batch: Batch) -> None:
        if not batch.sweep:
            return
        now = trio.current_time()
        self.reconciled_at, self.reconcile_s = time.time(), batch.seconds
        self._sweep_after = now + min(SWEEP_PAUSE_S, 2 * batch.seconds)
        self._next_reconcile = now + self.reconcile_interval_s
        self._notify()

    # Periodic tasks

    async def _tick(self) -> None:
        while True:
            pause_s = TICK_S if trio.current_time() - self._changed_at < REST_AFTER_S else REST_TICK_S
            await trio.sleep(min(pause_s, self._settings.poll_interval_s) if self.watches.without else pause_s)
            assert self._tracker is not None
            self._roots |= await trio.to_thread.run_sync(self._tracker.displaced)
            now = trio.current_time()
            if now >= self._next_reconcile and self.trees:
                self._next_reconcile = now + self.reconcile_interval_s
                self._sweeps.update(self.trees)
            pause_s = max(self._settings.poll_interval_s, self._poll.seconds / POLL_SHARE)
            if self.watches.without and not self._batches and now >= self._polled_at + pause_s:
                self._poll, self._polled_at = Batch(work=dict.fromkeys(self.watches.without)), now
                self._batches.append(self._poll)
            watches, polled = str(len(self.watches)), str(len(self.watches.without))
            limit = str(system_limit("max_user_watches"))
            self._env.info(watches=watches, watch_limit=limit, polled=polled, overflows=str(self.overflows))
            if self._roots or self._sweeps or self._batches:
                self._wake.set()

    async def _trim(self) -> None:
        def trim_now(tracker: Tracker) -> None:
            acknowledged = dict(self.acknowledged)
            with tracker.transaction() as db:
                db.executemany(
                    "UPDATE subscription SET acknowledged=max(acknowledged, ?) WHERE caller=? AND name=?"
                    " AND acknowledged<?",
                    ((upto, *key, upto) for key, upto in acknowledged.items()),
                )
                for tree in tracker.trees:
                    trim(db, tree, self._settings.log_limit)

        trimmed: tuple[object, float] | None = None
        while True:
            await trio.sleep(self._settings.trim_interval_s)
            now = dict(self.acknowledged), self._changed_at
            if now != trimmed:
                await self.change(trim_now)
                trimmed = now
