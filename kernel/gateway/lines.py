"""The lines of a client's input, one message each, whatever pieces they arrive in."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import msgspec

from kernel.gateway.descriptors import Input
from kernel.gateway.messages import RequestId

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Longest line that is read."""

_EARLY_BYTES = 4096

_EARLY_ID = re.compile(rb'^\s*\{(?:(?!"params").)*?"id"\s*:\s*(-?\d{1,18}|"[^"\\]{0,128}")', re.DOTALL)


class Excess(msgspec.Struct):
    """A line that was too long to be kept, and the id at its beginning where there was one."""

    request_id: RequestId | None


class Line(msgspec.Struct):
    """One line of input."""

    data: bytes
    excess: Excess | None = None


async def lines(source: Input, *, limit: int = MAX_MESSAGE_BYTES) -> AsyncIterator[Line]:
    """The lines of `source` that are not blank, the last one also without its newline.

    A line longer than `limit` bytes is skipped as it comes, and yielded as excess.
    """
    buffer = bytearray()
    searched = 0
    excess: Excess | None = None
    while True:
        data = await source.receive()
        if not data:
            break
        buffer += data
        start = 0
        while (end := buffer.find(b"\n", max(start, searched))) >= 0:
            line = bytes(buffer[start:end])
            start = end + 1
            if excess is None and len(line) > limit:
                excess = Excess(readable_id(line))
            if excess is not None:
                yield Line(b"", excess)
                excess = None
            elif line and not line.isspace():
                yield Line(line)
        if start:
            del buffer[:start]
        searched = len(buffer)
        if searched > limit:
            if excess is None:
                excess = Excess(readable_id(bytes(buffer[:_EARLY_BYTES])))
            buffer.clear()
            searched = 0
    if excess is not None:
        yield Line(b"", excess)
    elif buffer and not buffer.isspace():
        yield Line(bytes(buffer))


def readable_id(data: bytes) -> RequestId | None:
    """The id at the beginning of a message that cannot be read as a whole."""
    match = _EARLY_ID.match(data[:_EARLY_BYTES])
    return None if match is None else msgspec.json.decode(match[1], type=int | str)
