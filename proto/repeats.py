"""Reports a repeated event once and then counts it, so that a flood costs one line per minute rather than a full
disk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")

INTERVAL_S = 60.0
MAX_KEYS = 256
"""Maximum number of different events per interval; further ones are counted together."""


class Repeats(Generic[K]):
    """Events of the last minute.

    Args:
        others: key for all events beyond the maximum number.
    """

    def __init__(self, others: K) -> None:
        self._others = others
        self._counts: dict[K, int] = {}
        self._since = 0.0

    def is_first(self, key: K, now: float) -> bool:
        """Return whether to report the event now; otherwise it is counted."""
        if not self._counts:
            self._since = now
        if key not in self._counts and len(self._counts) >= MAX_KEYS:
            key = self._others
        if key in self._counts:
            self._counts[key] += 1
            return False
        self._counts[key] = 0
        # A line for the first of the others would not say what they are, so count from the start.
        if key == self._others:
            self._counts[key] = 1
            return False
        return True

    def take(self, now: float, *, at_once: bool = False) -> Iterator[tuple[K, int]]:
        """Yield the counts once a minute is over, and start again."""
        if self._counts and (at_once or now >= self._since + INTERVAL_S):
            counts, self._counts = self._counts, {}
            yield from ((key, count) for key, count in counts.items() if count)

    @property
    def is_empty(self) -> bool:
        return not self._counts
