"""The tasks that keep the tracker at work: read events, wait a moment, look; sweep after an overflow and now and then.

The event loop only reads the queue and marks entries to look at; a worker thread looks at them, in turns.
A batch that takes long (a large tree moved here) goes on beside later ones, so that single events do not wait for it.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

import trio

from proto.errors import Unavailable
from services.runtime.handlers import Environment
from services.runtime.storage import DiskFull, patiently
from services.watch.batch import Batch, Dirty, merge
from services.watch.inotify import IN_IGNORED, IN_Q_OVERFLOW, IN_UNMOUNT, Inotify, parse, system_limit
from services.watch.store import Store, trim
from services.watch.tracker import Tracker
from services.watch.trees import Tree
from services.watch.watches import Watches

DEBOUNCE_S: Final = 0.025
"""Longer than a file's time stamp may lag behind; an editor's save is over by then."""
MAX_DEBOUNCE_S: Final = 0.2
TURN_S: Final = 0.1
LONG_TURN_S: Final = 0.05
"""For what has just happened; then what takes longer gets its turn."""

TICK_S: Final = 1.0
"""Between two looks at the watched folders themselves, which may come back at any time."""
FIRST_SWEEP_S: Final = 0.05
SWEEP_PAUSE_S: Final = 2.0
"""Between two sweeps for overflows: a storm that goes on must not mean to do nothing else."""

RECONCILE_INTERVAL_S: Final = 300.0
POLL_INTERVAL_S: Final = 3.0
LOAD_SHARE: Final = 0.02
"""Of one processor, for sweeps that nothing asked for."""
POLL_SHARE: Final = 0.1

TRIM_INTERVAL_S: Final = 10.0
LOG_LIMIT: Final = 200_000
"""Changes that are kept for a reader that does not read, a few hundred bytes each."""

REBUILT_PAUSE_S: Final = 0.1
RETRY_MS: Final = 500

T = TypeVar("T")

_log = logging.getLogger("linckia.watch")


def number(settings: Mapping[str, object], name: str, default: float) -> float:
    """A setting that is a number above 0, or 0 where that is the default. Raises ValueError."""
    value = settings.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or (value <= 0 and value != default):
        raise ValueError(f"setting `{name}` of watch: {value!r} is not a number above 0")
    return float(value)


class _Stale(Exception):
    """The tracker that work was meant for has been replaced."""


class Watcher:
    """The tasks and what they share.

    What is in memory follows from the database and the folders. After a transaction that failed, because the disk was
    full or the database damaged, all of it is dropped, and the watcher begins as after a death: it reads the database
    and looks at every folder. So no change is lost that could not be written down.
    """

    def __init__(self, env: Environment, path: Path) -> None:
        """Open the database at `path`; blocks. Raises ValueError for a setting that makes no sense."""
        settings = env.settings
        self._env = env
        self._reconcile_s = number(settings, "reconcile_interval_s", RECONCILE_INTERVAL_S)
        self._poll_s = number(settings, "poll_interval_s", POLL_INTERVAL_S)
        self._trim_s = number(settings, "trim_interval_s", TRIM_INTERVAL_S)
        self._log_limit = int(number(settings, "log_limit", LOG_LIMIT))
        self._max_watches = int(number(settings, "max_watches", 0))
        self.store = Store(path, self._rebuilt)
        self._tracker: Tracker | None = None
        """None while the watcher pauses."""
        self._turn = trio.CapacityLimiter(1)
        """Held by the thread that works with the tracker."""
        self._scope = trio.CancelScope()
        """Of the tasks."""
        self._failure: DiskFull | Unavailable | None = None
        """Why the watcher pauses."""
        self._decided = trio.Event()
        """Set while the watcher works, or pauses for a full disk."""
        self.news = trio.Event()
        """Set, and replaced by another, whenever the log has grown or a first scan is done."""
        self.overflows = 0
        self.events = 0
        self.reconciled_at: float | None = None
        self.reconcile_s = 0.0
        self.acknowledged: dict[tuple[str, str], int] = {}
        """What readers have dealt with, by caller and name; stored when the log is trimmed."""

    def _begin(self, inotify: Inotify) -> None:
        """Forget all that follows from the database and the folders."""
        self._inotify = inotify
        self.watches = Watches(inotify, self._max_watches)
        self._dirty = Dirty()
        self._due = float("inf")
        self._roots: set[int] = set()
        self._sweeps: set[int] = set()
        # Not before the calls that wait for this process are answered; nothing that changed meanwhile is missed.
        self._sweep_after = trio.current_time() + FIRST_SWEEP_S
        self._long: collections.deque[Batch] = collections.deque()
        self._now: Batch | None = None
        self._wake = trio.Event()
        self._pause_s = DEBOUNCE_S
        self._next_reconcile = trio.current_time() + self._reconcile_s
        self._next_poll = 0.0
        self._poll_pause_s = self._poll_s

    async def run(self) -> None:
        """Work until cancelled, through full disks and damage. Raises OSError where the system gives no event queue."""
        while True:
            await patiently(self._env, "watching", self._watch)
            await trio.sleep(REBUILT_PAUSE_S)

    async def _watch(self) -> None:
        """Work until a transaction fails. Raises DiskFull; returns where the database was begun again."""
        inotify = Inotify()
        self._begin(inotify)
        try:
            self._tracker = await trio.to_thread.run_sync(self._load, limiter=self._turn)
            self._failure = None
            self._decided.set()
            self._sweeps.update(self._tracker.trees)
            with trio.CancelScope() as self._scope:
                async with trio.open_nursery() as nursery:
                    for task in (self._read, self._tick, self._trim, self._send_home, self._work):
                        nursery.start_soon(self._until_failure, task)
        except (DiskFull, Unavailable) as error:
            self._fail(error)
        finally:
            with trio.CancelScope(shield=True):
                # A thread may still work with it.
                async with self._turn:
                    self._tracker = None
                    inotify.close()
        if isinstance(self._failure, DiskFull):
            raise self._failure

    def _load(self) -> Tracker:
        if isinstance(self._failure, DiskFull):
            # To look at all folders takes long; it is not begun before something can be written.
            self.store.probe()
        return Tracker(self.store, self.watches)

    async def _until_failure(self, task: Callable[[], Awaitable[None]]) -> None:
        # `change` has ended all tasks then.
        with contextlib.suppress(DiskFull, Unavailable):
            await task()

    async def change(self, work: Callable[[Tracker], T]) -> T:
        """Run `work` in a thread; nothing else works with the tracker meanwhile.

        Raises:
            DiskFull: nothing was done; the watcher pauses until there is room.
            Unavailable: the watcher begins again, for its database was damaged.
        """
        while True:
            await self._decided.wait()
            tracker = self._tracker
            try:
                # While the thread was waited for, the watcher may have begun again; then this does too.
                return await trio.to_thread.run_sync(self._with, tracker, work, limiter=self._turn)
            except _Stale:
                continue
            except (DiskFull, Unavailable) as error:
                if tracker is self._tracker:
                    self._fail(error)
                raise

    def _with(self, tracker: Tracker | None, work: Callable[[Tracker], T]) -> T:
        if tracker is not None and tracker is self._tracker:
            return work(tracker)
        if isinstance(self._failure, DiskFull):
            raise DiskFull(self.paused, retry_after_ms=RETRY_MS)
        if self._tracker is None:
            raise Unavailable("watch: the watcher begins again", retry_after_ms=RETRY_MS)
        raise _Stale

    def _fail(self, error: DiskFull | Unavailable) -> None:
        """End the tasks, to begin again."""
        self._failure = error
        if isinstance(error, DiskFull):
            self._decided.set()
        elif self._decided.is_set():
            # It takes a moment only, for which callers wait. Those that wait already must not be left behind on an
            # event that nobody sets: one failure may be told twice, by the call and by the database.
            self._decided = trio.Event()
        self._scope.cancel()
        self._tell()

    def _rebuilt(self) -> None:
        self._fail(Unavailable("watch: the database was damaged and is begun again", retry_after_ms=RETRY_MS))

    async def _send_home(self) -> None:
        """Answer those that wait for news before the service ends."""
        await self._env.ending.wait()
        self._tell()

    @property
    def ending(self) -> bool:
        return self._env.ending.is_set()

    @property
    def paused(self) -> str:
        """Why nothing is looked at for now; empty where it is."""
        return "" if self._failure is None else self._failure.failure.message

    @property
    def trees(self) -> Mapping[int, Tree]:
        return {} if self._tracker is None else self._tracker.trees

    @property
    def problems(self) -> Mapping[int, str]:
        """Why a folder could not be looked into, by its number."""
        return {} if self._tracker is None else self._tracker.problems

    def sweep(self, tree: int) -> None:
        """Have all of a tree looked at."""
        self._sweeps.add(tree)
        self._wake.set()

    def look(self, tree: int) -> None:
        """Have the watched folders of a tree looked at."""
        self._roots.add(tree)
        self._wake.set()

    def drain(self) -> None:
        """Take in the events that are there, so that `settled` counts them."""
        while self._tracker is not None and (data := self._inotify.read()):
            self._take_in(data)

    @property
    def dirty(self) -> int:
        """Folders that are still to be looked at, as far as is known."""
        batches = [*self._long, *([self._now] if self._now else [])]
        return len(self._dirty.work) + sum(len(batch.work) + len(batch.doubtful) for batch in batches)

    @property
    def sweeping(self) -> bool:
        """Whether all folders of some tree are to be looked at, or are being looked at."""
        return bool(self._sweeps) or any(batch.sweep for batch in (*self._long, self._now) if batch)

    @property
    def settled(self) -> bool:
        waiting = self._dirty.work or self._long or self._now or self._sweeps or self._roots
        return self._tracker is not None and self._failure is None and not waiting

    @property
    def reconcile_interval_s(self) -> float:
        return max(self._reconcile_s, self.reconcile_s / LOAD_SHARE)

    # Events

    async def _read(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._inotify.fd)
            self._take_in(self._inotify.read())

    def _take_in(self, data: bytes) -> None:
        for event in parse(data):
            self.events += 1
            if event.mask & IN_Q_OVERFLOW:
                self._overflow()
            elif event.mask & IN_IGNORED:
                self.watches.ended(event.watch)
            elif event.name:
                for folder in self.watches.folders(event.watch):
                    self._dirty.mark(folder, event.name)
            elif event.mask & IN_UNMOUNT:
                for folder in self.watches.folders(event.watch):
                    self._dirty.mark_all(folder)
        # What happens to a folder itself shows in the one above; a watched folder's own fate is looked at by the clock.
        self._stir()

    def _overflow(self) -> None:
        self.overflows += 1
        _log.warning("the queue of events overflowed: all folders are looked at again")
        self._sweeps.update(self.trees)

    def _stir(self) -> None:
        if self._dirty.work and self._due == float("inf"):
            self._due = trio.current_time() + self._pause_s
        self._wake.set()

    # Work

    async def _work(self) -> None:
        while True:
            self._wake = trio.Event()
            now = trio.current_time()
            if self._dirty.work and now >= self._due:
                await self._look_at_dirty()
            elif self._roots:
                await self._spend(Batch(roots=self._take_roots()))
            if self._sweeps and now >= self._sweep_after and not any(batch.sweep for batch in self._long):
                trees, self._sweeps = tuple(sorted(self._sweeps)), set()
                self._long.append(Batch(sweep=trees))
            if self._long:
                batch = self._long[0]
                if await self._one_turn(batch, LONG_TURN_S):
                    # Others may have been appended meanwhile, none removed.
                    self._long.popleft()
                    self._finished(batch)
                continue
            with trio.move_on_at(min(self._due, self._sweep_after if self._sweeps else float("inf"))):
                await self._wake.wait()

    def _take_roots(self) -> set[int]:
        roots, self._roots = self._roots, set()
        return roots

    async def _look_at_dirty(self) -> None:
        batch = Batch(work=self._dirty.work, roots=self._take_roots())
        self._dirty, self._due = Dirty(), float("inf")
        await self._spend(batch)
        # Under load, more is gathered at a time.
        self._pause_s = min(MAX_DEBOUNCE_S, max(DEBOUNCE_S, batch.seconds))

    async def _spend(self, batch: Batch) -> None:
        """One turn for a new batch; the rest of it goes on beside others."""
        self._now = batch
        try:
            done = await self._one_turn(batch, TURN_S)
        finally:
            self._now = None
        if done:
            self._finished(batch)
        else:
            self._long.append(batch)

    async def _one_turn(self, batch: Batch, seconds: float) -> bool:
        before = self.store.sequence
        done, incomplete = await self.change(lambda tracker: (tracker.turn(batch, seconds), tracker.taken_incomplete()))
        if self.store.sequence != before:
            self._tell()
        for folder, names in batch.again.items():
            merge(self._dirty.work, folder, names)
        batch.again.clear()
        self._sweeps |= incomplete
        self._stir()
        return done

    def _tell(self) -> None:
        self.news.set()
        self.news = trio.Event()

    def _finished(self, batch: Batch) -> None:
        now = trio.current_time()
        if batch.poll:
            self._poll_pause_s = max(self._poll_s, batch.seconds / POLL_SHARE)
            self._next_poll = now + self._poll_pause_s
        if not batch.sweep:
            return
        self.reconciled_at = time.time()
        self.reconcile_s = batch.seconds
        self._sweep_after = now + min(SWEEP_PAUSE_S, 2 * batch.seconds)
        self._next_reconcile = now + self.reconcile_interval_s
        self._next_poll = now + self._poll_pause_s
        self._tell()
        self._show()

    # The clock

    async def _tick(self) -> None:
        while True:
            await trio.sleep(TICK_S)
            assert self._tracker is not None
            self._roots |= await trio.to_thread.run_sync(self._tracker.displaced)
            now = trio.current_time()
            if now >= self._next_reconcile and self.trees:
                self._next_reconcile = now + self.reconcile_interval_s
                self._sweeps.update(self.trees)
            if now >= self._next_poll and self.watches.without and not self._long:
                self._next_poll = float("inf")
                self._long.append(Batch(work=dict.fromkeys(self.watches.without), poll=True))
            self._show()
            if self._roots or self._sweeps or self._long:
                self._wake.set()

    def _show(self) -> None:
        self._env.info(
            watches=str(len(self.watches)),
            watch_limit=str(system_limit("max_user_watches")),
            polled=str(len(self.watches.without)),
            overflows=str(self.overflows),
        )

    async def _trim(self) -> None:
        while True:
            await trio.sleep(self._trim_s)
            await self.change(self._trim_now)

    def _trim_now(self, tracker: Tracker) -> None:
        acknowledged = dict(self.acknowledged)
        with tracker.transaction() as db:
            db.executemany(
                "UPDATE subscription SET acknowledged=max(acknowledged, ?) WHERE caller=? AND name=?"
                " AND acknowledged<?",
                ((upto, *key, upto) for key, upto in acknowledged.items()),
            )
            for tree in tracker.trees:
                trim(db, tree, self._log_limit)


def rfc3339(at: float | None) -> str | None:
    """Seconds since 1970 as text."""
    return None if at is None else datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat(timespec="milliseconds")
