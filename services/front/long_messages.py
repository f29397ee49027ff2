"""Turns for work on long messages: at most one step of it in each pass of a front's event loop.

A message of 60 MB takes some 40 ms to decode, to encode or to copy, which cannot be interrupted: msgspec keeps the
interpreter's lock, so a thread would not help. Several such steps in one pass, for one client or for many, would add up
to half a second in which nobody else is answered.
"""

from __future__ import annotations

import trio

LONG_BYTES = 512 * 1024
"""Length from which work on a message takes milliseconds."""

_turns: trio.lowlevel.RunVar[trio.Lock] = trio.lowlevel.RunVar("turns for long messages")


async def turn(size: int) -> None:
    """Wait until the caller may decode, encode or copy a message of this many bytes; return at once if it is not long.

    Call it before each such step: until the caller's next checkpoint, no other task is given a turn.
    """
    if size <= LONG_BYTES:
        return
    try:
        lock = _turns.get()
    except LookupError:
        lock = trio.Lock()
        _turns.set(lock)
    async with lock:
        # A pass in which others run between two steps.
        await trio.lowlevel.checkpoint()
