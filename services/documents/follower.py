"""Folders that sessions watch: the service `watch` says what changes below them, and what has is added.

What is told is only looked at again, so that it does not matter whether it is told twice.  Between the
end of one read and the next nothing is lost: the watcher keeps its log on disk.  While it is away, and until it has
looked at everything for the first time, the folders are looked through again and again instead.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import apsw
import trio

from proto.errors import Kind, LinckiaError
from proto.ops.watch import MAX_WAIT_S, WatchChanges, WatchSubscribe, WatchUnsubscribe
from services.documents.add.folders import VERSION_CONTROL, Walk
from services.documents.add.places import is_below
from services.documents.parts import Parts
from services.documents.store.rows import Given

SUBSCRIPTION = "sessions"
WAIT_S = MAX_WAIT_S / 2
MAX_CHANGES = 5000

_log = logging.getLogger("linckia.documents")


@dataclass(slots=True)
class _Watched:
    """A folder of a session; `due` is when it may be looked at next, `changed` whether there is a reason to."""

    session: str
    folder: str
    interval_s: float
    due: float = 0.0
    changed: bool = True


class Watching:
    """The task."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._wake = trio.Event()
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._watched: dict[tuple[str, str], _Watched] = {}
        self._subscribed: list[str] | None = None
        self._after = 0

    def hurry(self) -> None:
        """What is watched is no longer the same."""
        self._wake.set()

    async def run(self) -> None:
        """Work until `stop`, or until cancelled."""
        try:
            with self._scope:
                await self._parts.env.after_the_rush()
                while True:
                    self._wake = trio.Event()
                    await self._list()
                    if not self._watched:
                        await self._follow_nothing()
                        await self._wake.wait()
                        continue
                    await self._look()
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._until_woken, nursery.cancel_scope)
                        await self._hear()
                        nursery.cancel_scope.cancel()
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """End the task; once this returns it uses neither the databases nor a file."""
        self._scope.cancel()
        with trio.CancelScope(shield=True):
            await self._ended.wait()

    async def _until_woken(self, scope: trio.CancelScope) -> None:
        await self._wake.wait()
        scope.cancel()

    async def _list(self) -> None:
        """What is watched now; what was before keeps its state."""

        def watched(db: apsw.Connection) -> list[_Watched]:
            rows = db.execute("SELECT session, folder, interval_ms FROM watched")
            return [_Watched(str(session), str(folder), int(str(ms)) / 1000) for session, folder, ms in rows]

        before = self._watched
        self._watched = {}
        for one in await self._parts.store.read(watched):
            key = (one.session, one.folder)
            known = before.get(key)
            if known is not None:
                one.due, one.changed = known.due, known.changed
            self._watched[key] = one

    async def _look(self) -> None:
        """Add what has changed in the folders that are due."""
        for one in self._watched.values():
            if not one.changed or one.due > trio.current_time():
                continue
            # Before the look: what changes while it is under way is told after it.
            one.changed = False
            walk = Walk(one.folder, self._parts.adding.roots, avoid=(str(self._parts.env.data_dir),))
            try:
                await self._parts.adding.changes(walk, Given(session=one.session))
            except LinckiaError as error:
                _log.warning("watching %s: %s", one.folder, error)
            self._parts.hurry()
            one.due = trio.current_time() + one.interval_s

    async def _hear(self) -> None:
        """Wait for changes, or for a look that is due."""
        reasons = [one.due for one in self._watched.values() if one.changed]
        wait_s = min(WAIT_S, max(0.0, min(reasons) - trio.current_time())) if reasons else WAIT_S
        folders = sorted({one.folder for one in self._watched.values()})
        try:
            if folders != self._subscribed:
                await self._subscribe(folders)
            answer = await self._parts.env.call(
                WatchChanges(subscription=SUBSCRIPTION, after=self._after, wait_s=wait_s, limit=MAX_CHANGES)
            )
        except LinckiaError as error:
            if error.failure.kind not in (Kind.UNAVAILABLE, Kind.OVERLOADED, Kind.MAYBE_EXECUTED):
                # It may know nothing of the subscription, its database being lost.
                self._subscribed = None
            await self._look_instead()
            return
        if not answer.complete:
            await self._look_instead()
            return
        self._after = answer.sequence
        for change in answer.changes:
            self._changed(change.path)
            if change.old_path is not None:
                self._changed(change.old_path)
        if answer.resync:
            self._all_changed()

    async def _subscribe(self, folders: Sequence[str]) -> None:
        ignore = [f"{name}/" for name in sorted(VERSION_CONTROL)]
        await self._parts.env.call(WatchSubscribe(name=SUBSCRIPTION, paths=list(folders), ignore=ignore))
        self._subscribed, self._after = list(folders), 0

    async def _follow_nothing(self) -> None:
        try:
            await self._parts.env.call(WatchUnsubscribe(name=SUBSCRIPTION))
        except LinckiaError as error:
            # The next watch states anew what is followed, and so does the next start of this service.
            _log.info("the watcher of folders still follows what no session watches: %s", error)
        self._subscribed = None

    async def _look_instead(self) -> None:
        """Nobody says what changes: everything may have, when the next look is due."""
        self._all_changed()
        await trio.sleep_until(min(one.due for one in self._watched.values()))

    def _all_changed(self) -> None:
        for one in self._watched.values():
            one.changed = True

    def _changed(self, path: str) -> None:
        for one in self._watched.values():
            if is_below(path, (one.folder,)):
                one.changed = True
