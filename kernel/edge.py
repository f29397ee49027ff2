"""Where a defect ends: what is done for one call, one connection or one process fails alone, and the kernel goes on."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import ParamSpec

import trio

P = ParamSpec("P")

AGAIN_S = 1.0
"""Between a defect in what must always run and its next try: its log is not to fill the disk."""

_log = logging.getLogger("linckia.kernel")


@contextlib.contextmanager
def edge(what: str) -> Iterator[None]:
    """Log and end every `Exception` of the block, one in a group as well; `what` names the block.

    Cancellation, and what else is no `Exception`, goes through.
    """
    try:
        yield
    except* Exception as defects:  # noqa: BLE001  # it is logged, whatever it is
        _log.error("%s failed by a defect", what, exc_info=defects)


async def contained(what: str, task: Callable[P, Awaitable[None]], *args: P.args, **kwargs: P.kwargs) -> None:
    """Run a task of a long-lived nursery that may fail alone."""
    with edge(what):
        await task(*args, **kwargs)


async def kept(what: str, task: Callable[P, Awaitable[None]], *args: P.args, **kwargs: P.kwargs) -> None:
    """The same for what must always run: after a defect it is begun again."""
    is_over = False
    while not is_over:
        with edge(what):
            await task(*args, **kwargs)
            is_over = True
        if not is_over:
            await trio.sleep(AGAIN_S)
