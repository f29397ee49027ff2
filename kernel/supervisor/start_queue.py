"""Decides which process starts next when many wait for few processors: those somebody waits for, then in order."""

from __future__ import annotations

from collections.abc import Sequence

import trio


class StartQueue:
    """Lets `at_once` processes start at a time, in the order of `names`, even if all are requested at the same
    moment."""

    def __init__(self, names: Sequence[str], at_once: int) -> None:
        self._order = {name: index for index, name in enumerate(names)}
        self._at_once = at_once
        self._waiting: set[str] = set()
        self._active: set[str] = set()
        self._prioritized: set[str] = set()
        self._changed = trio.lowlevel.ParkingLot()

    async def begin(self, name: str) -> None:
        """Wait until it is this one's turn; `end` passes the turn on."""
        self._waiting.add(name)
        try:
            # Let others requested at the same moment queue up first.
            await trio.lowlevel.checkpoint()
            while name not in self._prioritized and (
                len(self._active) >= self._at_once or name != min(self._waiting, key=self._place)
            ):
                await self._changed.park()
            self._active.add(name)
        finally:
            self._waiting.discard(name)
            self._changed.unpark_all()

    def _place(self, name: str) -> tuple[int, str]:
        return self._order.get(name, len(self._order)), name

    def prioritize(self, name: str) -> None:
        """Start it now, since somebody waits for it."""
        if name not in self._prioritized:
            self._prioritized.add(name)
            self._changed.unpark_all()

    def forget(self, name: str) -> None:
        """Release its turn and its priority; a later process may have the same name."""
        self._prioritized.discard(name)
        self.end(name)

    def end(self, name: str) -> None:
        """Note that the slow part is over or has failed. Idempotent."""
        self._active.discard(name)
        self._changed.unpark_all()
