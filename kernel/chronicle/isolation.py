"""Isolation of defects: a failure in a call, connection or process task ends that task only, not the kernel."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import ParamSpec

import trio

P = ParamSpec("P")

AGAIN_S = 1.0
"""Delay before a failed task is run again, so that its log lines do not fill the disk."""

_log = logging.getLogger("linckia.kernel")


class isolated:
    """Log and suppress every `Exception` from the block, including those in a group; the words name the block.

    A class, since a generator would cost every call three times as much.

    Cancellation and other exceptions that are not `Exception` propagate.
    """

    __slots__ = ("_words",)

    def __init__(self, *words: str) -> None:
        self._words = words

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is None:
            return False
        try:
            raise error
        except* Exception as defects:  # noqa: BLE001  # any defect is logged
            report(defects, *self._words)
        return True


def report(defect: Exception, *words: str) -> None:
    """Log a defect; the words name what failed."""
    _log.error("%s failed because of a defect", " ".join(words), exc_info=defect)


async def run_isolated(what: str, task: Callable[P, Awaitable[None]], *args: P.args, **kwargs: P.kwargs) -> None:
    """Run a task in a long-lived nursery so that its failure does not affect other tasks."""
    with isolated(what):
        await task(*args, **kwargs)


async def keep_running(what: str, task: Callable[P, Awaitable[None]], *args: P.args, **kwargs: P.kwargs) -> None:
    """Like `run_isolated`, but run the task again after a defect."""
    is_over = False
    while not is_over:
        with isolated(what):
            await task(*args, **kwargs)
            is_over = True
        if not is_over:
            await trio.sleep(AGAIN_S)
