"""The same thing said once and then counted, so that a flood of it costs a line each minute and not a disk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")

INTERVAL_S = 60.0
MAX_KEYS = 256
"""Different things in one interval; those beyond are counted as one."""


class Repeats(Generic[K]):
    """What was said in the last minute.

    Args:
        others: stands for what there are too many different ones of.
    """

    def __init__(self, others: K) -> None:
        self._others = others
        self._counts: dict[K, int] = {}
        self._since = 0.0

    def is_first(self, key: K, now: float) -> bool:
        """Whether to say it now; otherwise it is counted."""
        if not self._counts:
            self._since = now
        if key not in self._counts and len(self._counts) >= MAX_KEYS:
            key = self._others
        if key in self._counts:
            self._counts[key] += 1
            return False
        self._counts[key] = 0
        # Of the others there is more to come, and a line of what they are not would say nothing.
        if key == self._others:
            self._counts[key] = 1
            return False
        return True

    def take(self, now: float, *, at_once: bool = False) -> Iterator[tuple[K, int]]:
        """What was counted, once a minute is over; then everything is new again."""
        if self._counts and (at_once or now >= self._since + INTERVAL_S):
            counts, self._counts = self._counts, {}
            yield from ((key, count) for key, count in counts.items() if count)

    @property
    def is_empty(self) -> bool:
        return not self._counts
