"""Whether what a function costs grows in proportion to its input: by ratios of processor time, never by time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

TIMES = 8
"""A large input for the cost of so many small ones: 1 where the cost is linear, 8 where it is quadratic."""

MOST = 3.0
"""Allowed multiple of linear cost, given the noise of a busy machine and of caches that a large input leaves."""

TRIES = 4


def growth(function: Callable[[T], object], make: Callable[[int], T], size: int) -> float:
    """What an input of `TIMES * size` costs, over `TIMES` inputs of `size`; the least of a few tries."""
    small, large = make(size), make(size * TIMES)
    function(small)
    found = float("inf")
    for _ in range(TRIES):
        found = min(found, _cost(function, large, 1) / _cost(function, small, TIMES))
        if found < MOST:
            break
    return found


def _cost(function: Callable[[T], object], value: T, times: int) -> float:
    start = time.thread_time_ns()
    for _ in range(times):
        function(value)
    return max(1, time.thread_time_ns() - start)
