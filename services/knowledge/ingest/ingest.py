"""Keeping the index in step with the folders, for as long as the service lives.

One task walks the roots at the start, and from then on looks at what the watcher of folders reports; all roots are
walked again now and then, and every second (less often where a walk is dear) while there is no watcher. It compares the
files' stamps with the stored ones, and works off the difference in steps of `Index`. At the start, and whenever the
search was away, both sides are compared id by id, so that no note is lost and none is there twice. While the search is
away the work waits, with growing pauses; on a full disk it waits with short ones. The service goes on answering.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
import trio

from proto.errors import LinckiaError, OperationError
from proto.ops.retrieve import MAX_WAIT_S, RetrieveEpoch
from proto.ops.watch import Change
from services.knowledge.ingest.changes import Changes, compare, within
from services.knowledge.ingest.index import COLLECTION, Index
from services.knowledge.ingest.invalidations import Invalidations, invalidated
from services.knowledge.ingest.walking import Walk, Walker
from services.runtime.database import Database
from services.runtime.handlers import Environment

SCAN_SHARE = 0.05
"""Of the time, for walks of everything while no watcher reports changes."""

PROMPT_S = 3.0
"""The time within which a change is promised to show."""

RECONCILE_INTERVAL_S = 300.0
RECONCILE_SHARE = 0.01
"""Of the time, for walks of everything while a watcher reports changes."""

FIRST_PAUSE_S = 0.25
LAST_PAUSE_S = 15.0
ASK_AGAIN_S = 1.0
FULL_PAUSE_S = 0.5
"""Between two attempts on a full disk: work goes on within a second of room being made."""

STARTUP_PATIENCE_S = 5.0
"""A thousand notes are indexed in that time; with more, an answer from a part, said to be one, is better than none."""

WRITER_PATIENCE_S = 1.0
"""A caller that changes a note through this service and then asks for it finds it changed; while the search is away,
the note is changed on disk all the same."""


class Settings(msgspec.Struct):
    """What the table `[services.knowledge]` of the settings may hold."""

    scan_interval_s: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """The least seconds between two walks."""


@dataclass(slots=True)
class Progress:
    """How far the index is in step."""

    scanned: bool = False
    scanned_at: float | None = None
    scan_began_at: float = 0.0
    scan_ms: float = 0.0
    interval_s: float = 0.0
    unwatched: str | None = "the watcher of folders has not answered yet"
    waiting: str | None = None
    walk_problems: dict[str, str] = field(default_factory=dict)


class Ingest:
    """The task, and its state. It is the `Listener` of the follower."""

    def __init__(self, env: Environment, database: Database, on_step: Callable[[], None]) -> None:
        """
        Args:
            on_step: called after each step, which may have changed notes and links.
        """
        self._env = env
        self._database = database
        self._walker = Walker(env.roots)
        self.roots = self._walker.roots
        self.progress = Progress()
        self._on_step = on_step
        self._least_interval_s = msgspec.convert(env.settings, Settings).scan_interval_s
        self.passed = trio.Condition()
        """Notified after each step."""
        self._invalid = Invalidations()
        self._wake = trio.Event()
        self._next_scan = 0.0
        self._full_until = 0.0
        self._retry_at = 0.0
        self._pause_s = FIRST_PAUSE_S
        self._turn = trio.CapacityLimiter(1)
        self.index = Index(env, database, self.roots, self._turn, self.invalidate)
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._started = trio.current_time()

    async def caught_up(self) -> None:
        """Until everything there is has been indexed, but no longer than `STARTUP_PATIENCE_S` after the start.

        A caller right after the first start wants the folder's notes, not the news that there are none yet.
        """
        with trio.move_on_at(self._started + STARTUP_PATIENCE_S):
            async with self.passed:
                while self.index.pending or not (self.index.known or self.progress.scanned):
                    await self.passed.wait()

    def wake(self) -> None:
        """Look whether there is work."""
        self._wake.set()

    def hurry(self) -> None:
        """Scan now instead of at the next turn."""
        self._next_scan = 0.0
        self._wake.set()

    # Called by the follower

    async def changed(self, changes: Sequence[Change], sequence: int) -> None:
        self.invalidate(*invalidated(changes))

    async def rescan(self, sequence: int) -> None:
        self.hurry()

    def watched(self) -> None:
        """From now on changes are reported; earlier ones may not have been."""
        if self.progress.unwatched is not None:
            self.progress.unwatched = None
            self.hurry()

    def unwatched(self, reason: str) -> None:
        """From now on no changes are reported."""
        if self.progress.unwatched is None:
            self._next_scan = min(self._next_scan, trio.current_time() + self._least_interval_s)
            self._wake.set()
        self.progress.unwatched = reason

    def invalidate(self, files: Iterable[str], folders: Iterable[str] = (), *, wait: bool = True) -> None:
        """Look at these files, and at all below these folders; at once, or when their writers are done."""
        self._invalid.add(files, folders, wait=wait)
        if self._invalid.too_many:
            self._next_scan = 0.0
        self._wake.set()

    async def take_in(self, path: str, hash_: str) -> None:
        """Look at this file now, until its text of this hash is indexed, but no longer than `WRITER_PATIENCE_S`."""
        self.invalidate([path], wait=False)
        place = self._walker.place_of(path)
        with trio.move_on_after(WRITER_PATIENCE_S):
            async with self.passed:
                while place is not None and ((known := self.index.known.get(place)) is None or known.hash != hash_):
                    await self.passed.wait()

    def degraded(self) -> list[str]:
        """How an answer from the index may fall short of the files at this moment."""
        progress, index = self.progress, self.index
        said = ["index: the database of notes was damaged, and is being rebuilt"] if self._database.rebuilt else []
        if not progress.scanned:
            said.append("index: the first scan of the folders is under way")
        if index.pending:
            said.append(f"index: {len(index.pending)} of {len(index.known)} notes are still to be indexed")
        if index.failed:
            said.append(
                f"index: {len(index.failed)} of {len(index.known)} notes could not be indexed, see knowledge_status"
            )
        if progress.unwatched is not None and progress.scanned and progress.interval_s > PROMPT_S:
            said.append(f"index: a change shows after up to {progress.interval_s:.0f} s, for {progress.unwatched}")
        if progress.waiting and index.has_work:
            said.append(f"index: waits, {progress.waiting}")
        problems = progress.walk_problems
        return said + [f"index: {root}: {problems[root]}" for root in self.roots if root in problems]

    def problems(self) -> dict[str, str]:
        """Files and folders that are not, or not wholly, indexed, and why."""
        found = dict(self.progress.walk_problems)
        found.update({place.absolute: each.problem for place, each in self.index.known.items() if each.problem})
        found.update({place.absolute: each.reason for place, each in self.index.failed.items()})
        return found

    async def run(self) -> None:
        """Work until `stop`, or until cancelled."""
        try:
            with self._scope:
                await self._env.after_the_rush()
                while True:
                    self._wake = trio.Event()
                    worked = await self._work()
                    self._env.info(notes=str(len(self.index.known)), pending=str(self.index.outstanding))
                    self._on_step()
                    async with self.passed:
                        self.passed.notify_all()
                    if not worked:
                        await self._rest()
        finally:
            self._ended.set()

    async def watch_search(self) -> None:
        """Compare again whenever the search begins its database again, and tell it once all notes are in it."""
        filled = ""
        while True:
            try:
                asked = RetrieveEpoch(collection=COLLECTION, filled=filled, wait_s=MAX_WAIT_S)
                found = (await self._env.call(asked)).epoch
            except LinckiaError as error:
                await trio.sleep(max(ASK_AGAIN_S, (error.failure.retry_after_ms or 0) / 1000))
                continue
            if found == filled:
                continue
            if filled:
                self.index.reconciled = False
                self._wake.set()
            async with self.passed:
                while self.index.has_work or not self.progress.scanned:
                    await self.passed.wait()
            filled = found

    async def stop(self) -> None:
        """End the task; once this returns it uses neither the database nor a file, cancelled or not."""
        self._scope.cancel()
        with trio.CancelScope(shield=True):
            await self._ended.wait()

    async def _work(self) -> bool:
        """Do what is due; answers whether there may be more."""
        now = trio.current_time()
        if now < self._full_until:
            return False
        self.index.take_up_failed(now)
        try:
            if not self.index.is_loaded:
                # After the database was found damaged, this is little.
                await self.index.load()
                self.progress.scanned, self._next_scan = False, 0.0
            if now >= self._next_scan:
                await self._scan()
            elif now >= self._invalid.at:
                await self._look()
            if now < self._retry_at:
                return False
            worked = await self.index.step()
        except LinckiaError as error:
            self._pause(error)
            return False
        self._pause_s = FIRST_PAUSE_S
        self.progress.waiting = None
        if self.progress.scanned and not self.index.has_work:
            self._database.rebuilt = ""
        return worked

    async def _rest(self) -> None:
        until = min(self._next_scan, self._invalid.at)
        if self.index.has_work:
            until = min(until, max(self._retry_at, trio.current_time()))
        until = min((until, *(failed.retry_at for failed in self.index.failed.values())))
        with trio.move_on_at(max(until, self._full_until)):
            await self._wake.wait()

    def _pause(self, error: LinckiaError) -> None:
        """Pause the work: shortly on a full disk, else each time longer, at least as long as the failure says."""
        now, hint_s = trio.current_time(), (error.failure.retry_after_ms or 0) / 1000
        if isinstance(error, OperationError) and hint_s:
            # The disk is full, under this database or under the search.
            self._full_until = now + FULL_PAUSE_S
            self.progress.waiting = str(error)
            return
        # A service that was away may have come back with less than it had.
        self.index.reconciled = False
        self._retry_at = now + max(self._pause_s, min(LAST_PAUSE_S, hint_s))
        self._pause_s = min(LAST_PAUSE_S, self._pause_s * 2)
        self.progress.waiting = f"the search is not available: {error}"

    async def _scan(self) -> None:
        """Walk all roots."""

        def timed() -> tuple[Walk, Changes, float]:
            began = time.perf_counter()
            walk = self._walker.walk()
            changes = compare(self.index.known, walk)
            return walk, changes, time.perf_counter() - began

        began_at = time.time()
        invalid = self._invalid.take()
        try:
            walk, changes, took_s = await trio.to_thread.run_sync(timed, limiter=self._turn)
            await self.index.follow(changes, walk, first=not self.progress.scanned)
        except BaseException:
            self.invalidate(*invalid)
            raise
        progress = self.progress
        progress.scanned = True
        progress.scan_began_at = began_at
        progress.scanned_at = time.time()
        progress.scan_ms = took_s * 1000
        progress.walk_problems = walk.problems
        least_s = RECONCILE_INTERVAL_S if progress.unwatched is None else self._least_interval_s
        share = RECONCILE_SHARE if progress.unwatched is None else SCAN_SHARE
        progress.interval_s = max(least_s, took_s / share)
        self._next_scan = trio.current_time() + progress.interval_s

    async def _look(self) -> None:
        """Look at what was invalidated."""
        files, folders = self._invalid.take()

        def look() -> tuple[Walk, Changes]:
            walk = self._walker.look(files, folders)
            return walk, compare(within(self.index.known, self._walker, files, folders), walk)

        try:
            walk, changes = await trio.to_thread.run_sync(look, limiter=self._turn)
            await self.index.follow(changes, walk, first=not self.progress.scanned)
        except BaseException:
            self.invalidate(files, folders)
            raise
        looked = (*files, *folders)
        below = tuple(folder.rstrip("/") + "/" for folder in folders)
        kept = {
            path: reason
            for path, reason in self.progress.walk_problems.items()
            if path not in looked and not path.startswith(below)
        }
        self.progress.walk_problems = {**kept, **walk.problems}
