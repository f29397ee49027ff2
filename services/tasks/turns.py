"""Turns of tasks: a limited number of tasks run at the same time, and owners take turns.

A free turn goes to the owner that has waited longest since its last one, whatever the number of its waiting tasks.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import AsyncIterator

import trio


class Turns:
    """`at_once` turns, given to owners in rotation; the tasks of one owner are served in order."""

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._waiting: collections.OrderedDict[str, collections.deque[trio.Event]] = collections.OrderedDict()
        """Waiting tasks by owner; the first owner is served next. An owner without waiting tasks is absent."""

    @contextlib.asynccontextmanager
    async def turn(self, owner: str) -> AsyncIterator[None]:
        """Wait for a turn and hold it during the block. Cancelling the wait gives up the place in the queue."""
        await self._take(owner)
        try:
            yield
        finally:
            self._give_back()

    async def _take(self, owner: str) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._free:
            # Nobody waits: a turn that is given back goes to a waiting task.
            self._free -= 1
            return
        mine = trio.Event()
        self._waiting.setdefault(owner, collections.deque()).append(mine)
        try:
            await mine.wait()
        except trio.Cancelled:
            if mine.is_set():
                self._give_back()
            else:
                self._leave(owner, mine)
            raise

    def _leave(self, owner: str, mine: trio.Event) -> None:
        queue = self._waiting[owner]
        queue.remove(mine)
        if not queue:
            del self._waiting[owner]

    def _give_back(self) -> None:
        if not self._waiting:
            self._free += 1
            return
        owner, queue = next(iter(self._waiting.items()))
        queue.popleft().set()
        if queue:
            self._waiting.move_to_end(owner)
        else:
            del self._waiting[owner]
