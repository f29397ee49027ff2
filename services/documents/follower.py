"""Folders that sessions watch: the service `watch` says what changes below them, and what has is added.

A change is only a reason to look at its folder again, so it does not matter whether it is told twice.  While the
watcher is away, and until it has looked at everything for the first time, a folder is looked at in each interval.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

import apsw
import trio

from proto.errors import LinckiaError
from proto.ops.watch import Change
from services.documents.add.folders import VERSION_CONTROL, Walk
from services.documents.add.pipeline import add_changes
from services.documents.parts import Parts
from services.documents.store.rows import Given
from services.runtime.follower import Follower
from services.runtime.roots import is_below

_log = logging.getLogger("linckia.documents")


@dataclass(slots=True)
class _Watched:
    """A folder of a session; `due` is when it may be looked at next, `changed` whether there is a reason to."""

    session: str
    folder: str
    interval_s: float
    due: float = 0.0
    changed: bool = True


class SessionFollower:
    """The task, and what the runtime's follower tells of changes."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._wake = trio.Event()
        self._watched: dict[tuple[str, str], _Watched] = {}
        self._is_unwatched = False
        self._follower = Follower(parts.env, "sessions", self)

    def hurry(self) -> None:
        """The folders are no longer the same, or something changed below one."""
        self._wake.set()

    async def run(self) -> None:
        """Work until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follower.run)
            await self._parts.env.after_the_rush()
            while True:
                self._wake = trio.Event()
                try:
                    await self._list()
                except LinckiaError as error:
                    _log.error("what sessions watch cannot be read: %s", error)
                folders = sorted({one.folder for one in self._watched.values()})
                self._follower.follow(folders, ignore=[f"{name}/" for name in sorted(VERSION_CONTROL)])
                await self._look()
                next_look = min((one.due for one in self._watched.values() if self._is_wanted(one)), default=math.inf)
                with trio.move_on_at(next_look):
                    await self._wake.wait()

    async def changed(self, changes: Sequence[Change], sequence: int) -> None:
        """Look at the folders of these again."""
        for one in self._watched.values():
            one.changed |= any(
                is_below(path, (one.folder,))
                for change in changes
                for path in (change.path, change.old_path)
                if path is not None
            )
        self._wake.set()

    async def rescan(self, sequence: int) -> None:
        """Look at all folders again."""
        for one in self._watched.values():
            one.changed = True
        self._wake.set()

    def watched(self) -> None:
        """From now on a change is a reason to look, and nothing else."""
        self._is_unwatched = False

    def unwatched(self, reason: str) -> None:
        """From now on each interval is a reason to look."""
        if not self._is_unwatched:
            self._is_unwatched = True
            self._wake.set()

    def _is_wanted(self, one: _Watched) -> bool:
        return one.changed or self._is_unwatched

    async def _list(self) -> None:
        """What is watched now; what was before keeps its state."""

        def watched(db: apsw.Connection) -> list[_Watched]:
            query = "SELECT session, folder, interval_ms / 1000.0 FROM watched"
            return [_Watched(*row) for row in db.execute(query)]

        now = {(one.session, one.folder): one for one in await self._parts.store.read(watched)}
        for key, before in self._watched.items():
            if key in now:
                now[key].due, now[key].changed = before.due, before.changed
        self._watched = now

    async def _look(self) -> None:
        """Add what has changed in the folders that are due."""
        for one in list(self._watched.values()):
            if not self._is_wanted(one) or one.due > trio.current_time():
                continue
            # Before the look: what changes while it is under way is told after it.
            one.changed = False
            walk = Walk(one.folder, self._parts.adding.roots, avoid=(str(self._parts.env.data_dir),))
            try:
                await add_changes(self._parts.adding, walk, Given(session=one.session))
            except LinckiaError as error:
                _log.warning("watching %s: %s", one.folder, error)
                one.changed = True
            self._parts.hurry()
            one.due = trio.current_time() + one.interval_s
