"""HTTP clients that ask for too much, or do not wait for their answers."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any

import trio

from tests.chaos.storm import KERNEL, Storm

BURST = 500


async def burst(storm: Storm) -> list[str]:
    """Send many calls at once, each on its own connection."""
    request = _request(_call("mcp.echo", {"message": "b"}))

    async def one() -> None:
        with contextlib.suppress(OSError, trio.BrokenResourceError), trio.move_on_after(10):
            async with await trio.open_tcp_stream("127.0.0.1", storm.system.port) as stream:
                await stream.send_all(request)
                await stream.receive_some()

    async with trio.open_nursery() as nursery:
        for _ in range(BURST):
            nursery.start_soon(one)
    storm.ended()
    return [KERNEL]


async def does_not_read(storm: Storm) -> list[str]:
    """Send large requests and read nothing, then disconnect."""
    request = _request(_call("query", {"steps": [{"op": "list", "params": {}}]}))
    streams = []
    with contextlib.suppress(OSError, trio.BrokenResourceError):
        for _ in range(20):
            stream = await trio.open_tcp_stream("127.0.0.1", storm.system.port)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            streams.append(stream)
            await stream.send_all(request * 5)
    await trio.sleep(1)
    for stream in streams:
        await trio.aclose_forcefully(stream)
    storm.ended()
    return [KERNEL]


async def huge(storm: Storm) -> list[str]:
    """Send a useless body of many mebibytes."""
    request = _request(_call("mcp.echo", {"message": ["x" * storm.chance.choice((4 << 20, 24 << 20))]}))
    with contextlib.suppress(OSError, trio.BrokenResourceError), trio.move_on_after(20):
        async with await trio.open_tcp_stream("127.0.0.1", storm.system.port) as stream:
            await stream.send_all(request)
            await stream.receive_some()
    storm.ended()
    return [KERNEL]


async def half(storm: Storm) -> list[str]:
    """Disconnect in the middle of a request."""
    with contextlib.suppress(OSError, trio.BrokenResourceError):
        for _ in range(30):
            stream = await trio.open_tcp_stream("127.0.0.1", storm.system.port)
            await stream.send_all(_request(b"{" * 300)[: storm.chance.randrange(10, 400)])
            await trio.aclose_forcefully(stream)
    return [KERNEL]


def _call(tool: str, arguments: dict[str, Any]) -> bytes:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    return json.dumps(message).encode()


def _request(body: bytes) -> bytes:
    head = (
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2025-06-18\r\n"
    )
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
