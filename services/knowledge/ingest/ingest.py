"""The ingest task, which keeps the index in sync with the folders.

It walks the roots at the start, then examines what the folder watcher reports. All roots are walked again now and then,
or every second (less often if a walk is slow) without a watcher. The task compares the files' stamps with the stored
ones and processes the differences in steps of `Index`. While the search is unavailable it retries with back-off; on a
full disk it retries at short intervals. Other operations keep working meanwhile.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated

import msgspec
import trio

from proto.errors import LinckiaError, OperationError
from proto.ops.retrieve import MAX_WAIT_S, RetrieveEpoch
from proto.ops.watch import Change, ChangeKind, EntryKind
from services.knowledge.ingest.index import COLLECTION, Index
from services.knowledge.ingest.note_walk import MARKER, Changes, Walk, compare, look, place_of, within
from services.knowledge.notes.files import Place
from services.runtime.database import Database
from services.runtime.handlers import Environment
from services.runtime.roots import is_below
from services.runtime.storage import FULL_PAUSE_S
from services.shared.backoff import Backoff
from services.shared.ignore_files import IGNORE_FILES
from services.shared.text import cutting

QUIET_S, DEBOUNCE_S = 0.25, 1.0
"""Debounce: a changed file is read after this much quiet, or at the latest this long after the first change."""

SCAN_SHARE = 0.05
"""Maximum share of time spent on full walks without a watcher."""

PROMPT_S = 3.0
"""The promised maximum delay until a change is visible."""

RECONCILE_INTERVAL_S, RECONCILE_SHARE = 300.0, 0.01
"""Minimum interval between full walks, and their maximum share of time, with a watcher."""

FIRST_PAUSE_S, LAST_PAUSE_S = 0.25, 15.0
ASK_AGAIN_S = 1.0

STARTUP_PATIENCE_S = 5.0
"""How long the first calls wait for indexing.  A thousand notes are indexed in that time; with more, partial results
that are marked as such are better than none."""

WRITER_PATIENCE_S = 5.0
"""How long a write waits until the change is indexed, so that the caller can find it.  If the search is unavailable,
the note is still changed on disk."""


class KnowledgeSettings(msgspec.Struct):
    """The table `[services.knowledge]` of the settings."""

    scan_interval_s: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """Minimum seconds between two walks."""


class Ingest:
    """The ingest task and its state.  It is the `Listener` of the follower."""

    def __init__(self, env: Environment, database: Database, on_step: Callable[[], None]) -> None:
        """`on_step` is called after each step, which may have changed notes and links."""
        self._env = env
        self._database = database
        self._on_step = on_step
        self._least_interval_s = msgspec.convert(env.settings, KnowledgeSettings).scan_interval_s
        # Invalidated files, and folders to walk.
        self._files: dict[str, None] = {}
        self._folders: dict[str, None] = {}
        self._changing_since = 0.0
        self._look_at = math.inf
        self._next_scan = 0.0
        self._full_until = 0.0
        self._retry_at = 0.0
        self._backoff = Backoff(FIRST_PAUSE_S, LAST_PAUSE_S)
        self._wake = trio.Event()
        self._started = trio.current_time()
        self.roots = env.roots
        self.index = Index(env, database, self.invalidate)
        self.passed = trio.Condition()
        """Notified after each step."""
        self.scanned = False
        """Whether all roots have been walked since the start."""
        self.scanned_at: float | None = None
        self.scan_began_at = 0.0
        self.scan_ms = 0.0
        self.interval_s = 0.0
        self.unwatched_because: str | None = "the folder watcher has not replied yet"
        self.waiting: str | None = None
        self._walk_problems: dict[str, str] = {}

    @property
    def is_listed(self) -> bool:
        """Whether every file in the folders has an id."""
        return self.scanned and self.index.is_loaded

    async def until(self, condition: Callable[[], bool], patience_s: float = math.inf) -> bool:
        """Wait at most `patience_s` until `condition` is true, checking after each step.  Returns whether it is."""
        with trio.move_on_after(max(0.0, patience_s)):
            async with self.passed:
                while not condition():
                    await self.passed.wait()
                return True
        return condition()

    async def caught_up(self) -> None:
        """Wait until everything is indexed, but no longer than `STARTUP_PATIENCE_S` after the start.

        This way the first search after the first start finds notes.
        """
        patience_s = self._started + STARTUP_PATIENCE_S - trio.current_time()
        await self.until(lambda: not self.index.pending and bool(self.index.known or self.scanned), patience_s)

    def wake(self) -> None:
        """Wake the task to check for work."""
        self._wake.set()

    def hurry(self) -> None:
        """Scan now instead of at the next interval."""
        self._next_scan = 0.0
        self._wake.set()

    # Called by the follower

    async def changed(self, changes: Sequence[Change], sequence: int) -> None:
        self.invalidate(*_invalidated(changes))

    async def rescan(self, sequence: int) -> None:
        self.hurry()

    async def watched(self) -> None:
        """Rely on reported changes, after a scan for those missed."""
        if self.unwatched_because is not None:
            self.unwatched_because = None
            self.hurry()

    def unwatched(self, reason: str) -> None:
        """Scan at short intervals, as changes are no longer reported."""
        if self.unwatched_because is None:
            self._next_scan = min(self._next_scan, trio.current_time() + self._least_interval_s)
            self._wake.set()
        self.unwatched_because = reason

    def invalidate(self, files: Iterable[str], folders: Iterable[str] = (), *, wait: bool = True) -> None:
        """Queue these files and everything below these folders to be examined, after debouncing if `wait`."""
        now = trio.current_time()
        if not self._files and not self._folders:
            self._changing_since = now
        self._files.update(dict.fromkeys(files))
        self._folders.update(dict.fromkeys(folders))
        if self._files or self._folders:
            self._look_at = min(self._changing_since + DEBOUNCE_S, now + QUIET_S) if wait else now
            self._wake.set()

    async def index_now(self, path: str, hash_: str) -> str:
        """Index a file now, and wait at most `WRITER_PATIENCE_S` until its text with this hash is indexed.

        Returns its id, or an empty string if it is not indexed by then."""
        place = place_of(path, self.roots)
        if place is None or place not in (await trio.to_thread.run_sync(look, self.roots, (path,), ())).notes:
            return ""

        def is_indexed() -> bool:
            known = self.index.known.get(place)
            return known is not None and known.hash == hash_

        self.invalidate([path], wait=False)
        return self.index.known[place].id if await self.until(is_indexed, WRITER_PATIENCE_S) else ""

    async def follow_renaming(self, old: Place, new: Place) -> None:
        """Examine a renamed file, and wait until the note is known only under its new name."""
        self.invalidate([old.absolute, new.absolute], wait=False)
        await self.until(lambda: old not in self.index.known and new in self.index.known)

    def degraded(self) -> list[str]:
        """Return notes on how the index may differ from the files at the moment."""
        index, known = self.index, len(self.index.known)
        said = ["the database of notes was damaged and is being rebuilt"] if self._database.rebuilt else []
        if not self.scanned:
            said.append("the first scan of the folders is in progress")
        if index.pending:
            said.append(f"{len(index.pending)} of {known} notes are not indexed yet")
        if index.failed:
            said.append(f"{len(index.failed)} of {known} notes could not be indexed, see notes_status")
        if self.unwatched_because is not None and self.scanned and self.interval_s > PROMPT_S:
            said.append(f"changes may take up to {self.interval_s:.0f} s to appear: {self.unwatched_because}")
        if self.waiting and index.has_work:
            said.append(f"waiting: {self.waiting}")
        problems = self._walk_problems
        said += (f"{root}: {problems[root]}" for root in self.roots if root in problems)
        return [f"index: {reason}" for reason in said]

    def problems(self) -> dict[str, str]:
        """Return files and folders that are not or only partly indexed, with the reasons."""
        found = dict(self._walk_problems)
        found.update({place.absolute: each.problem for place, each in self.index.known.items() if each.problem})
        found.update({place.absolute: each.reason for place, each in self.index.failed.items()})
        return found

    async def run(self) -> None:
        """Run until cancelled."""
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

    async def watch_search(self) -> None:
        """Reconcile whenever the search recreates its database, and report to it when all notes are indexed."""
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
            await self.until(lambda: self.scanned and not self.index.has_work)
            filled = found

    async def _work(self) -> bool:
        """Do the work that is due.  Returns whether there may be more."""
        now = trio.current_time()
        if now < self._full_until:
            return False
        self.index.take_up_failed(now)
        try:
            if not self.index.is_loaded:
                await self.index.load()
                self.scanned, self._next_scan = False, 0.0
            if now >= self._next_scan:
                await self._look(everywhere=True)
            elif now >= self._look_at:
                await self._look(everywhere=False)
            if now < self._retry_at:
                return False
            worked = await self.index.step()
        except LinckiaError as error:
            self._pause(error)
            return False
        self._backoff.succeeded()
        self.waiting = None
        if self.scanned and not self.index.has_work:
            self._database.rebuilt = ""
        return worked

    async def _rest(self) -> None:
        until = min(self._next_scan, self._look_at, *(each.retry_at for each in self.index.failed.values()))
        if self.index.has_work:
            until = min(until, max(self._retry_at, trio.current_time()))
        elif self.index.cut_after is not None:
            until = min(until, max(self._retry_at, trio.current_time() + cutting.AGAIN_S))
        with trio.move_on_at(max(until, self._full_until)):
            await self._wake.wait()

    def _pause(self, error: LinckiaError) -> None:
        """Pause the work: briefly on a full disk, otherwise with back-off, at least as long as the error asks for."""
        now, hint_s = trio.current_time(), (error.failure.retry_after_ms or 0) / 1000
        if isinstance(error, OperationError) and hint_s:
            # The disk is full, under this database or under the search.
            self._full_until = now + FULL_PAUSE_S
            self.waiting = str(error)
            return
        # A service that was unavailable may have lost data.
        self.index.reconciled = False
        self._retry_at = now + self._backoff.pause_s(min(LAST_PAUSE_S, hint_s))
        self.waiting = f"the search is not available: {error}"

    async def _look(self, *, everywhere: bool) -> None:
        """Examine the invalidated files and folders, or walk all roots, and queue the differences."""
        began_at = time.time()
        files, folders = self._files, self._folders
        # Examine both names of a renamed file together.
        for new, old in self.index.renamed.items():
            if new.absolute in files or old.absolute in files:
                files |= {new.absolute: None, old.absolute: None}
        self._files, self._folders, self._look_at = {}, {}, math.inf
        if everywhere:
            # A walk requested from here on is a new one.
            self._next_scan = math.inf

        def work() -> tuple[Walk, Changes, float]:
            began = time.perf_counter()
            walk = look(self.roots, (), self.roots) if everywhere else look(self.roots, files, folders)
            known = self.index.known
            changes = compare(known if everywhere else within(known, self.roots, files, folders), walk)
            return walk, changes, time.perf_counter() - began

        try:
            walk, changes, took_s = await trio.to_thread.run_sync(work)
            await self.index.follow(changes, walk, first=not self.scanned)
        except BaseException:
            self.invalidate(files, folders)
            if everywhere:
                self._next_scan = 0.0
            raise
        if not everywhere:
            looked = (*files, *folders)
            kept = {path: reason for path, reason in self._walk_problems.items() if not is_below(path, looked)}
            self._walk_problems = {**kept, **walk.problems}
            return
        self.scanned = True
        self.scan_began_at, self.scanned_at, self.scan_ms = began_at, time.time(), took_s * 1000
        self._walk_problems = walk.problems
        if self.unwatched_because is None:
            self.interval_s = max(RECONCILE_INTERVAL_S, took_s / RECONCILE_SHARE)
        else:
            self.interval_s = max(self._least_interval_s, took_s / SCAN_SHARE)
        self._next_scan = min(self._next_scan, trio.current_time() + self.interval_s)


def _invalidated(changes: Sequence[Change]) -> tuple[list[str], list[str]]:
    """Return the files to examine and the folders to walk after `changes`."""
    files: list[str] = []
    folders: list[str] = []
    for change in changes:
        for text, raw in ((change.path, change.raw_path), (change.old_path, change.raw_old_path)):
            if text is None:
                continue
            path = text if raw is None else os.fsdecode(raw)
            folder, name = os.path.split(path)
            if change.kind is EntryKind.FOLDER:
                # The content of a new folder is also reported, entry by entry.
                if change.change is not ChangeKind.CREATED:
                    folders.append(path)
            elif name == MARKER or name in IGNORE_FILES:
                folders.append(folder)
            else:
                files.append(path)
    return files, folders
