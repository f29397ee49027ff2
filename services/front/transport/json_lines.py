"""The lines of a client's input, one message each, whatever pieces they arrive in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import msgspec

from linckia.services.front.protocol.messages import EARLY_BYTES, RequestId, readable_id
from linckia.services.front.transport.descriptors import Input

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Longest line that is read."""


BEGUN_BYTES = 512 * 1024

TOO_LONG = f"Message of more than {MAX_MESSAGE_BYTES} bytes ({MAX_MESSAGE_BYTES >> 20} MiB), the limit"
LOST = "the process that read it died while this message was on its way, and has only its beginning: send it again"


class Excess(msgspec.Struct):
    """A line that was not kept: why, and the id at its beginning where there was one."""

    request_id: RequestId | None
    why: str = TOO_LONG


class Line(msgspec.Struct):
    """One line of input, and what was read with it and follows it."""

    data: bytes
    excess: Excess | None = None
    rest: bytes = b""


async def lines(
    source: Input,
    *,
    limit: int = MAX_MESSAGE_BYTES,
    before: bytes = b"",
    excess: Excess | None = None,
    begun: Callable[[bytes], None] = lambda data: None,
) -> AsyncIterator[Line]:
    """The lines of `source` that are not blank, the last one also without its newline; one longer than `limit` bytes is
    skipped as it comes, and yielded as excess.

    Args:
        before: what was read of it already; `excess` instead, of the line that it is in the middle of.
        begun: told what there is of a line that has no end yet, up to `BEGUN_BYTES`.
    """
    buffer = bytearray()
    searched = 0
    data = before
    while True:
        data = data or await source.receive()
        if not data:
            break
        buffer += data
        data = b""
        start = 0
        while (end := buffer.find(b"\n", max(start, searched))) >= 0:
            line = bytes(buffer[start:end])
            start = end + 1
            if excess is None and len(line) > limit:
                excess = Excess(readable_id(line))
            if excess is not None:
                yield Line(b"", excess, bytes(buffer[start:]))
                excess = None
            elif line and not line.isspace():
                yield Line(line, None, bytes(buffer[start:]))
        if start:
            del buffer[:start]
        searched = len(buffer)
        if searched > limit:
            if excess is None:
                excess = Excess(readable_id(bytes(buffer[:EARLY_BYTES])))
            buffer.clear()
            searched = 0
        if buffer:
            begun(bytes(buffer[:BEGUN_BYTES]))
    if excess is not None:
        yield Line(b"", excess)
    elif buffer and not buffer.isspace():
        yield Line(bytes(buffer))
