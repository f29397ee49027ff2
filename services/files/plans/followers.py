"""Follows folders by way of `watch`: the index is brought in step with each batch of changes, through every death.

A follower subscribes under a name of its own, takes the state of the folder by a scan where the watcher's log does not
reach back to what it has seen, and then reads batch after batch. How far it is stands in the database, written in the
transaction that brought the index in step: after the death of either process it resumes there. No failure ends it: it
reports the problem and retries.
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

from linckia.proto.errors import InvalidParams, LinckiaError
from linckia.proto.ops import watch as ops
from linckia.services.files import paths
from linckia.services.files.core import Core
from linckia.services.files.index.listing import look, without_files
from linckia.services.files.index.live import Hint, Live, doubt, doubted, trust
from linckia.services.files.index.tree import find
from linckia.services.files.store.database import steadily
from linckia.services.files.store.sql import fetch_all, fetch_one

BATCH = 5_000
"""Changes that are dealt with at once."""

FIRST_DELAY_S, MAX_DELAY_S = 0.05, 5.0
"""Between one attempt and the next, while the watcher does not answer."""

SETTLE_S = 0.2
"""Between two looks at whether the watcher has seen what the index has."""

_log = logging.getLogger("linckia.files")

Deal = Callable[[Sequence[str] | None], Awaitable[None]]
"""Told, once the index has them, of the paths that were made or changed; None stands for all there is."""


@dataclass(frozen=True, slots=True)
class Followed:
    """What is followed; `path` is real and below the roots."""

    subscription: str
    path: str
    recursive: bool
    debounce_s: float


class Follower:
    """One that runs in this process."""

    def __init__(self, core: Core, followed: Followed, deal: Deal | None) -> None:
        self._core = core
        self._followed = followed
        self._deal = deal
        self._delay_s = FIRST_DELAY_S
        self.scope = trio.CancelScope()
        self.ended = trio.Event()
        self.in_step = False
        """Whether the state was taken, and all that the watcher told until now dealt with."""
        self.problem = ""
        """Why it does not get on."""
        self._doubted: list[tuple[int, int]] = []
        """Rows of what was looked at again last."""
        self._missing: set[str] = set()
        """What of it was not found, and is still stored."""

    async def run(self) -> None:
        """Until `scope` is cancelled."""
        try:
            with self.scope:
                while True:
                    try:
                        await self._subscribe()
                        await self._read()
                    except (LinckiaError, OSError) as error:
                        self.in_step = False
                        if str(error) != self.problem:
                            _log.warning("following %s: %s", self._followed.path, error)
                        self.problem = str(error)
                    await trio.sleep(self._delay_s)
                    self._delay_s = min(MAX_DELAY_S, self._delay_s * 2)
        finally:
            self.ended.set()

    async def _subscribe(self) -> None:
        followed = self._followed
        try:
            await self._core.env.call(
                ops.WatchSubscribe(
                    name=followed.subscription,
                    paths=[paths.to_os(followed.path)],
                    recursive=followed.recursive,
                    ignore=self._core.settings.ignore,
                )
            )
        except InvalidParams as error:
            if await trio.to_thread.run_sync(look, followed.path) is not None:
                raise
            # It is gone for now. Who subscribed before is told when it comes back.
            self.problem = str(error)

    async def _read(self) -> None:
        """Batch after batch. Raises LinckiaError, OSError."""
        followed = self._followed
        stored = await self._core.database.read(
            lambda db: fetch_one(db, "SELECT sequence FROM follow WHERE subscription = ?", (followed.subscription,))
        )
        # A damaged database may have lost it.
        sequence: int | None = None if stored is None else stored[0]
        while True:
            doubts = self.in_step and bool((await self._core.database.read(partial(doubted, root=followed.path)))[0])
            settled = doubts and (await self._core.env.call(ops.WatchStatus())).settled
            wait_s = 0.0 if settled or not self.in_step else SETTLE_S if doubts else ops.MAX_WAIT_S
            answer = await self._core.env.call(
                ops.WatchChanges(
                    subscription=followed.subscription,
                    after=0 if sequence is None else sequence,
                    # The first time there is a state to be taken, which is told at once.
                    wait_s=wait_s if sequence is not None else ops.MAX_WAIT_S,
                    limit=BATCH,
                )
            )
            began = trio.current_time()
            self._delay_s, self.problem = FIRST_DELAY_S, ""
            if not answer.complete:
                self.in_step = False
                # The watcher's own first look is under way.
                await trio.sleep(FIRST_DELAY_S)
                continue
            note = partial(self._note, sequence=answer.sequence, changes=len(answer.changes))
            if answer.resync:
                self.in_step = False
                await self._take_state(note)
            elif answer.changes:
                await self._take(answer.changes, note)
            if answer.resync or answer.changes:
                sequence = answer.sequence
            self.in_step = not answer.more
            if settled and self.in_step:
                await self._make_sure()
            if answer.changes and not answer.more:
                # What comes close upon a change is taken together.
                await trio.sleep_until(began + followed.debounce_s)

    async def _take(self, changes: Sequence[ops.Change], note: Callable[[apsw.Connection], None]) -> None:
        hints = [hint_of(change) for change in changes]
        if self._deal is None:
            await trio.to_thread.run_sync(self._live().apply, hints, note)
            return
        await trio.to_thread.run_sync(self._live().apply, hints)
        news = [
            hint.path for hint, each in zip(hints, changes, strict=True) if each.change is not ops.ChangeKind.DELETED
        ]
        await self._deal(list(dict.fromkeys(news)))
        await self._core.database.write(note)

    async def _make_sure(self) -> None:
        """Look again at what was listed beside the watcher, which never reports the removal of what it had not seen.

        Its log has been read to where it was when it had settled. What is not found now may have been renamed since:
        it is taken for removed only if the log, read so once more, does not say otherwise.
        """
        if self._missing:
            folders = {paths.split(path)[0] for path in self._missing}
        else:
            self._doubted, found = await self._core.database.read(partial(doubted, root=self._followed.path))
            folders = set(found)
        self._missing = await trio.to_thread.run_sync(self._live().look_again, folders, self._missing)
        if not self._missing:
            await self._core.database.write(partial(trust, rows=self._doubted))

    async def _take_state(self, note: Callable[[apsw.Connection], None]) -> None:
        self._missing = set()
        if self._followed.recursive:
            await self._core.jobs.rescan(self._followed.path)
        else:
            await trio.to_thread.run_sync(self._live().list_root)
        await self._core.database.write(self._doubt)
        if self._deal is not None:
            await self._deal(None)
        await self._core.database.write(note)

    def _doubt(self, db: apsw.Connection) -> None:
        root = find(db, self._followed.path)
        if root is not None:
            doubt(db, root.id, whole=self._followed.recursive)

    def _live(self) -> Live:
        return live(self._core, self._followed.path, recursive=self._followed.recursive)

    def _note(self, db: apsw.Connection, sequence: int, changes: int) -> None:
        """All up to `sequence` was dealt with. A damaged database may have lost the row."""
        db.execute(
            "INSERT INTO follow(subscription, sequence, changes, latest) VALUES(?1, ?2, ?3, ?4)"
            " ON CONFLICT(subscription) DO UPDATE SET sequence = ?2, changes = changes + ?3, latest = ?4",
            (self._followed.subscription, sequence, changes, time.time_ns()),
        )


class Followers:
    """All followers of this process. Its methods belong to trio's thread."""

    def __init__(self, core: Core, nursery: trio.Nursery) -> None:
        """`nursery`: ends before the database is closed."""
        self._core = core
        self._nursery = nursery
        self._running: dict[str, Follower] = {}
        self._ending = trio.Event()

    def start(self, followed: Followed, deal: Deal | None = None) -> Follower:
        """Follow a folder; its row, made by `begin`, is stored already."""
        running = self._running.get(followed.subscription)
        if running is not None:
            return running
        follower = self._running[followed.subscription] = Follower(self._core, followed, deal)
        self._nursery.start_soon(follower.run)
        return follower

    def find(self, subscription: str) -> Follower | None:
        """The one that runs under a name."""
        return self._running.get(subscription)

    async def stop(self, subscription: str) -> None:
        """Until it does not run any more. What is stored of it is for `end` to take away."""
        follower = self._running.pop(subscription, None)
        if follower is not None:
            follower.scope.cancel()
            await follower.ended.wait()
        self._ending.set()

    async def close(self) -> None:
        """At the orderly end of the service: all of them stop where they are."""
        for subscription in list(self._running):
            await self.stop(subscription)

    async def run(self) -> None:
        """End the subscriptions that are not needed, however long the watcher does not answer; until cancelled."""
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
                    _log.info("the subscription %s is still to be ended: %s", name, error)
                    continue
                await database.write(partial(_forget, subscription=name))
            with trio.move_on_after(MAX_DELAY_S if left else float("inf")):
                await self._ending.wait()


def live(core: Core, path: str, *, recursive: bool) -> Live:
    """What brings the index in step with the changes below a path."""
    return Live(core.tree, path, recursive=recursive, skipped_devices=without_files(path))


def begin(db: apsw.Connection, subscription: str) -> None:
    """Store that a folder is to be followed from now on, its state still to be taken."""
    db.execute("INSERT INTO follow(subscription) VALUES(?)", (subscription,))


def end(db: apsw.Connection, subscription: str) -> None:
    """Store that it is not to be followed any more."""
    db.execute("UPDATE follow SET ended = 1 WHERE subscription = ?", (subscription,))


def _forget(db: apsw.Connection, subscription: str) -> None:
    """The watcher knows."""
    db.execute("DELETE FROM follow WHERE subscription = ?", (subscription,))


def hint_of(change: ops.Change) -> Hint:
    """A change of the watcher's as the index takes it."""
    old = _text(change.old_path, change.raw_old_path) if change.old_path is not None else None
    left = change.change is ops.ChangeKind.DELETED and change.kind is ops.EntryKind.FOLDER
    return Hint(_text(change.path, change.raw_path), old, change.inode, left)


def _text(path: str, raw: bytes | None) -> str:
    return paths.to_text(path if raw is None else os.fsdecode(raw))
