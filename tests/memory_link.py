"""A link within one process: policy is tested with it under trio's mock clock, without a process."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import trio

from proto.wire.channel import Link, LinkClosed


class _MemoryEnd(Link):
    """One end of an in-memory link."""

    def __init__(self, out: trio.MemorySendChannel[bytes], into: trio.MemoryReceiveChannel[bytes]) -> None:
        self._out = out
        self._into = into

    def try_send(self, message: bytes) -> bool:
        with _link_closed(), contextlib.suppress(trio.WouldBlock):
            self._out.send_nowait(message)
            return True
        return False

    def try_receive(self) -> bytes | None:
        with _link_closed(), contextlib.suppress(trio.WouldBlock):
            return self._into.receive_nowait()
        return None

    async def send(self, message: bytes) -> None:
        with _link_closed():
            await self._out.send(message)

    async def receive(self) -> bytes:
        with _link_closed():
            return await self._into.receive()

    def close(self) -> None:
        self._out.close()
        self._into.close()


@contextlib.contextmanager
def _link_closed() -> Iterator[None]:
    try:
        yield
    except (trio.BrokenResourceError, trio.ClosedResourceError, trio.EndOfChannel):
        raise LinkClosed from None


def memory_link(capacity: float = math.inf) -> tuple[Link, Link]:
    """Both ends of a link within one process; `capacity` messages may wait in each direction."""
    (a_out, b_into), (b_out, a_into) = (trio.open_memory_channel[bytes](capacity) for _ in range(2))
    return _MemoryEnd(a_out, a_into), _MemoryEnd(b_out, b_into)
