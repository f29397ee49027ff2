"""Follows folders through `watch`: the index is updated with each batch of changes, whichever process dies.

The runtime's `Follower` subscribes and delivers. The position is stored in the transaction that updates the index:
after the death of either process, reading resumes there.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

import apsw
import trio

from proto.errors import LinckiaError
from proto.ops import watch as ops
from services.files import paths
from services.files.core import Core
from services.files.index.listing import without_files
from services.files.index.live import Hint, Live, doubt, doubted, trust
from services.files.index.tree import find
from services.files.store.database import steadily
from services.files.store.sql import fetch_all, fetch_one
from services.shared.follower import LAST_PAUSE_S, SCANNING, WAIT_S, Follower

SETTLE_S = 0.2
"""Delay between checks whether the watcher has seen everything that the index has."""

_log = logging.getLogger("linckia.files")

OnChange = Callable[[Sequence[str] | None], Awaitable[None]]
"""Called with the paths that were created or changed, once they are indexed; None means all paths of the source."""


@dataclass(frozen=True, slots=True)
class Followed:
    """A subscription to a folder; `path` is a real path below the roots."""

    subscription: str
    path: str
    recursive: bool
    debounce_s: float


class FollowedFolder:
    """A folder that this process follows; a listener for the runtime's follower."""

    def __init__(self, core: Core, followed: Followed, on_change: OnChange | None) -> None:
        self._core = core
        self._followed = followed
        self._on_change = on_change
        self.scope = trio.CancelScope()
        self.ended = trio.Event()
        self.in_step = False
        """True once the folder was scanned and all changes reported so far are processed."""
        self.problem = ""
        """Why the folder is not being followed; empty if it is."""
        self._follower = Follower(core.env, followed.subscription, self)
        self._generation = 0
        """Generation of the database that has the position."""
        self._next_read = 0.0
        """Earliest time of the next read, so that changes in quick succession are processed together."""
        self._settled = False
        """Whether the watcher had seen every change when its log was last read to the end."""
        self._doubted: list[tuple[int, int]] = []
        """Rows that were examined last."""
        self._missing: set[str] = set()
        """Paths among them that were not found on disk but are still stored."""

    async def run(self) -> None:
        """Run until `scope` is cancelled."""
        followed = self._followed
        try:
            with self.scope:
                await steadily(self._core.env, "following", self._load)
                self._follower.follow(
                    [paths.to_os(followed.path)], recursive=followed.recursive, ignore=self._core.settings.ignore
                )
                await self._follower.run()
        finally:
            self.ended.set()

    async def _load(self) -> None:
        self._generation = self._core.database.generation
        query = "SELECT sequence FROM follow WHERE subscription = ?"
        stored = await self._core.database.read(lambda db: fetch_one(db, query, (self._followed.subscription,)))
        # The row may have been lost with a damaged database.
        self._follower.after = (stored[0] or 0) if stored is not None else 0

    # Methods of `services.shared.follower.Listener`

    async def changed(self, changes: Sequence[ops.Change], sequence: int) -> None:
        """Update the index, and then call `on_change`."""
        if self._generation != self._core.database.generation:
            # The index was damaged and recreated.
            return await self.rescan(sequence)
        self._next_read = trio.current_time() + self._followed.debounce_s
        note = partial(self._note, sequence=sequence, changes=len(changes))
        hints = [hint_of(change) for change in changes]
        if self._on_change is None:
            return await trio.to_thread.run_sync(self._live().apply, hints, note)
        await trio.to_thread.run_sync(self._live().apply, hints)
        changed_paths = [
            hint.path for hint, each in zip(hints, changes, strict=True) if each.change is not ops.ChangeKind.DELETED
        ]
        await self._on_change(list(dict.fromkeys(changed_paths)))
        await self._core.database.write(note)

    async def rescan(self, sequence: int) -> None:
        """Scan the folder, and then call `on_change`."""
        self.in_step = self._settled = False
        self._missing = set()
        self._generation = self._core.database.generation
        if self._followed.recursive:
            await self._core.jobs.rescan(self._followed.path)
        else:
            await trio.to_thread.run_sync(self._live().list_root)
        await self._core.database.write(self._doubt)
        if self._on_change is not None:
            await self._on_change(None)
        await self._core.database.write(partial(self._note, sequence=sequence, changes=0))

    async def watched(self) -> None:
        """Examine doubted entries, and say how long to wait for more changes."""
        if self._settled:
            await self._recheck_doubted()
        self.in_step, self.problem = True, ""
        await trio.sleep_until(self._next_read)
        doubts, _ = await self._core.database.read(partial(doubted, root=self._followed.path))
        self._settled = bool(doubts) and (await self._core.env.call(ops.WatchStatus())).settled
        self._follower.wait_s = 0.0 if self._settled else SETTLE_S if doubts else WAIT_S

    def unwatched(self, reason: str) -> None:
        """Log and show the reason, unless it is the normal start."""
        self.in_step, self.problem = False, "" if reason == SCANNING else reason
        if self.problem:
            _log.warning("following %s: %s", self._followed.path, reason)

    async def _recheck_doubted(self) -> None:
        """Examine again entries that were listed without the watcher, which may never report their removal.

        The log has been read up to where it was when the watcher had settled. An entry that is missing now may have
        been renamed since: it counts as removed only if another such read of the log does not say otherwise.
        """
        if self._missing:
            folders = {paths.split(path)[0] for path in self._missing}
        else:
            self._doubted, found = await self._core.database.read(partial(doubted, root=self._followed.path))
            folders = set(found)
        self._missing = await trio.to_thread.run_sync(self._live().look_again, folders, self._missing)
        if not self._missing:
            await self._core.database.write(partial(trust, rows=self._doubted))

    def _doubt(self, db: apsw.Connection) -> None:
        root = find(db, self._followed.path)
        if root is not None:
            doubt(db, root.id, whole=self._followed.recursive)

    def _live(self) -> Live:
        return live(self._core, self._followed.path, recursive=self._followed.recursive)

    def _note(self, db: apsw.Connection, sequence: int, changes: int) -> None:
        """Store that everything up to `sequence` is processed. The row may have been lost with a damaged database."""
        db.execute(
            "INSERT INTO follow(subscription, sequence, changes, latest) VALUES(?1, ?2, ?3, ?4)"
            " ON CONFLICT(subscription) DO UPDATE SET sequence = ?2, changes = changes + ?3, latest = ?4",
            (self._followed.subscription, sequence, changes, time.time_ns()),
        )


class Followers:
    """All followers of this process. Methods run on trio's thread only."""

    def __init__(self, core: Core, nursery: trio.Nursery) -> None:
        """`nursery` must end before the database is closed."""
        self._core = core
        self._nursery = nursery
        self._running: dict[str, FollowedFolder] = {}
        self._ending = trio.Event()

    def start(self, followed: Followed, on_change: OnChange | None = None) -> None:
        """Follow a folder whose row, created by `begin`, is already stored."""
        if followed.subscription not in self._running:
            follower = self._running[followed.subscription] = FollowedFolder(self._core, followed, on_change)
            self._nursery.start_soon(follower.run)

    def find(self, subscription: str) -> FollowedFolder | None:
        """Return the running follower of a subscription."""
        return self._running.get(subscription)

    async def stop(self, subscription: str) -> None:
        """Stop a follower and wait until it has ended. Its row remains; `end` removes it."""
        follower = self._running.pop(subscription, None)
        if follower is not None:
            follower.scope.cancel()
            await follower.ended.wait()
        self._ending.set()

    async def close(self) -> None:
        """Stop all followers where they are, in an orderly shutdown."""
        for subscription in list(self._running):
            await self.stop(subscription)

    async def run(self) -> None:
        """End unneeded subscriptions, retrying while the watcher does not respond; runs until cancelled."""
        await steadily(self._core.env, "following", self._end_subscriptions)

    async def _end_subscriptions(self) -> None:
        database = self._core.database
        while True:
            self._ending = trio.Event()
            left = 0
            for (name,) in await database.read(lambda db: fetch_all(db, "SELECT subscription FROM follow WHERE ended")):
                try:
                    await self._core.env.call(ops.WatchUnsubscribe(name=name))
                except LinckiaError as error:
                    left += 1
                    _log.info("cannot end subscription %s yet: %s", name, error)
                    continue
                await database.write(partial(_forget, subscription=name))
            with trio.move_on_after(LAST_PAUSE_S if left else float("inf")):
                await self._ending.wait()


def live(core: Core, path: str, *, recursive: bool) -> Live:
    """Return a `Live` that updates the index with changes below a path."""
    return Live(core.tree, path, recursive=recursive, skipped_devices=without_files(path))


def begin(db: apsw.Connection, subscription: str) -> None:
    """Store that a folder is being followed, its first scan still to come."""
    db.execute("INSERT INTO follow(subscription) VALUES(?)", (subscription,))


def end(db: apsw.Connection, subscription: str) -> None:
    """Store that a folder is no longer followed."""
    db.execute("UPDATE follow SET ended = 1 WHERE subscription = ?", (subscription,))


def _forget(db: apsw.Connection, subscription: str) -> None:
    """Delete the row; the watcher has been notified."""
    db.execute("DELETE FROM follow WHERE subscription = ?", (subscription,))


def hint_of(change: ops.Change) -> Hint:
    """Convert a change reported by the watcher to a hint for the index."""
    old = _text(change.old_path, change.raw_old_path) if change.old_path is not None else None
    left = change.change is ops.ChangeKind.DELETED and change.kind is ops.EntryKind.FOLDER
    return Hint(_text(change.path, change.raw_path), old, change.inode, left)


def _text(path: str, raw: bytes | None) -> str:
    return paths.to_text(path if raw is None else os.fsdecode(raw))
