"""A real HTTP server on the loopback that speaks chat completions and `/api/chat`, and misbehaves as a test chooses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trio

Script = Callable[["Server", "Request", trio.SocketStream], Awaitable[None]]


class Request(msgspec.Struct, frozen=True):
    """What a client sent."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def material(self) -> dict[str, Any]:
        """The JSON object that the model is asked about."""
        found: dict[str, Any] = msgspec.json.decode(self.body["messages"][-1]["content"])
        return found


class Server:
    """`script` answers each request; `requests` keeps them all."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[Request] = []
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, stream: trio.SocketStream) -> None:
        try:
            while (request := await _read(stream)) is not None:
                self.requests.append(request)
                await self.script(self, request, stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # The client has gone, as many of these tests want it to.
        finally:
            await trio.aclose_forcefully(stream)


async def _read(stream: trio.SocketStream) -> Request | None:
    data = b""
    while b"\r\n\r\n" not in data:
        more = await stream.receive_some()
        if not more:
            return None
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", "0")):
        body += await stream.receive_some()
    return Request(first.split()[1], headers, msgspec.json.decode(body))


async def reply(stream: trio.SocketStream, body: bytes, status: str = "200 OK") -> None:
    """A whole response."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    await stream.send_all(head.encode() + body)


def saying(answer: object) -> Script:
    """A model that replies with `answer` (text unchanged, anything else as JSON), in the protocol of the request."""

    async def script(server: Server, request: Request, stream: trio.SocketStream) -> None:
        content = answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()
        message = {"role": "assistant", "content": content}
        if request.path.endswith("/api/chat"):
            body: dict[str, Any] = {"model": request.body["model"], "message": message, "done": True}
        else:
            body = {"id": "1", "object": "chat.completion", "choices": [{"index": 0, "message": message}]}
        await reply(stream, msgspec.json.encode(body))

    return script


@asynccontextmanager
async def serving(script: Script) -> AsyncIterator[Server]:
    """A server on a free port of the loopback."""
    server = Server(script)
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, server.serve, 0)
        server.port = listeners[0].socket.getsockname()[1]
        yield server
        nursery.cancel_scope.cancel()
