"""Who begins next where many are to start and processors are few: what somebody waits for, then the rest in order."""

from __future__ import annotations

from collections.abc import Sequence

import trio


class Turns:
    """Lets `at_once` begin at a time, in the order of `names`, however many are wanted in one moment."""

    def __init__(self, names: Sequence[str], at_once: int) -> None:
        self._order = {name: index for index, name in enumerate(names)}
        self._at_once = at_once
        self._waiting: set[str] = set()
        self._active: set[str] = set()
        self._hurried: set[str] = set()
        self._changed = trio.lowlevel.ParkingLot()

    async def begin(self, name: str) -> None:
        """Until it is this one's turn; `end` gives the turn on."""
        self._waiting.add(name)
        try:
            # Others that were wanted in the same moment come forward first.
            await trio.lowlevel.checkpoint()
            while name not in self._hurried and (
                len(self._active) >= self._at_once or name != min(self._waiting, key=self._place)
            ):
                await self._changed.park()
            self._active.add(name)
        finally:
            self._waiting.discard(name)
            self._changed.unpark_all()

    def _place(self, name: str) -> tuple[int, str]:
        return self._order.get(name, len(self._order)), name

    def hurry(self, name: str) -> None:
        """Somebody waits for it: its turn is now."""
        if name not in self._hurried:
            self._hurried.add(name)
            self._changed.unpark_all()

    def end(self, name: str) -> None:
        """What took long is over, or has failed; idempotent."""
        self._active.discard(name)
        self._changed.unpark_all()
