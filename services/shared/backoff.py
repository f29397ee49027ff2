"""Pauses between attempts at something that fails for now: each is twice as long as the one before, up to a limit."""

from __future__ import annotations

import trio


class Backoff:
    """The pauses of one task (seconds)."""

    def __init__(self, first_s: float, last_s: float) -> None:
        self._first_s, self._last_s = first_s, last_s
        self._next_s = first_s

    @property
    def is_fresh(self) -> bool:
        """Whether nothing has failed since the last success."""
        return self._next_s == self._first_s

    def succeeded(self) -> None:
        """Begin with the shortest pause again."""
        self._next_s = self._first_s

    def pause_s(self, at_least_s: float = 0.0) -> float:
        """Return how long to pause now, and lengthen the next pause. `at_least_s` is what the other side asks for."""
        pause_s = max(self._next_s, at_least_s)
        self._next_s = min(2 * self._next_s, self._last_s)
        return pause_s

    async def pause(self) -> None:
        await trio.sleep(self.pause_s())
