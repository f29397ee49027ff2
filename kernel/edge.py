"""Where a defect ends: what is done for one call, one connection or one process fails alone, and the kernel goes on."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import ParamSpec

import trio

P = ParamSpec("P")

AGAIN_S = 1.0
"""Between a defect in what must always run and its next try: its log is not to fill the disk."""

_log = logging.getLogger("linckia.kernel")


class Edge:
    """A context that logs and ends every `Exception` of its block, one in a group as well; `what` names the block.

    Cancellation, and what else is no `Exception`, goes through.
    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> bool:
        if error is None:
            return False
        defect, rest = error.split(Exception) if isinstance(error, BaseExceptionGroup) else (error, None)
        if not isinstance(defect, Exception):
            return False
        _log.error("%s failed by a defect", self._what, exc_info=defect)
        if rest is not None:
            raise rest from None
        return True


async def contained(what: str, task: Callable[P, Awaitable[None]], *args: P.args, **kwargs: P.kwargs) -> None:
    """Run a task of a long-lived nursery that may fail alone."""
    with Edge(what):
        await task(*args, **kwargs)


async def kept(what: str, task: Callable[P, Awaitable[None]], *args: P.args, **kwargs: P.kwargs) -> None:
    """The same for what must always run: after a defect it is begun again."""
    is_over = False
    while not is_over:
        with Edge(what):
            await task(*args, **kwargs)
            is_over = True
        if not is_over:
            await trio.sleep(AGAIN_S)
