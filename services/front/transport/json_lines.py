"""Splits a client's input into lines, one message each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import msgspec

from proto.mcp import RequestId
from services.front.protocol.messages import EARLY_BYTES, readable_id
from services.front.transport.descriptors import Input

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Longest line that is read."""

PARTIAL_BYTES = 512 * 1024
"""Longest beginning of an incomplete line that is passed to `on_partial`."""

TOO_LONG = f"The message exceeds the limit of {MAX_MESSAGE_BYTES} bytes ({MAX_MESSAGE_BYTES >> 20} MiB)"
LOST = "The process that read this message died before it had all of it; send it again"


class SkippedLine(msgspec.Struct):
    """A line that was skipped: why, and the id at its beginning if there was one."""

    request_id: RequestId | None
    why: str = TOO_LONG


class Line(msgspec.Struct):
    """One line of input; `rest` is the input after it that has been read already."""

    data: bytes
    skipped: SkippedLine | None = None
    rest: bytes = b""


async def lines(
    source: Input,
    *,
    limit: int = MAX_MESSAGE_BYTES,
    initial: bytes = b"",
    skipping: SkippedLine | None = None,
    on_partial: Callable[[bytes], None] = lambda data: None,
) -> AsyncIterator[Line]:
    """Yield the lines of `source` that are not blank; the last one may lack its newline.

    A line longer than `limit` bytes is not buffered, and yielded as skipped.

    Args:
        initial: input that was read already.
        skipping: set if the input starts in the middle of a line that is to be skipped.
        on_partial: called with the beginning of an incomplete line, up to `PARTIAL_BYTES`.
    """
    buffer = bytearray()
    searched = 0
    data = initial
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
            if skipping is None and len(line) > limit:
                skipping = SkippedLine(readable_id(line))
            if skipping is not None:
                yield Line(b"", skipping, bytes(buffer[start:]))
                skipping = None
            elif line and not line.isspace():
                yield Line(line, None, bytes(buffer[start:]))
        if start:
            del buffer[:start]
        searched = len(buffer)
        if searched > limit:
            if skipping is None:
                skipping = SkippedLine(readable_id(bytes(buffer[:EARLY_BYTES])))
            buffer.clear()
            searched = 0
        if buffer:
            on_partial(bytes(buffer[:PARTIAL_BYTES]))
    if skipping is not None:
        yield Line(b"", skipping)
    elif buffer and not buffer.isspace():
        yield Line(bytes(buffer))
