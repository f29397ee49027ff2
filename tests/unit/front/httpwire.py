"""A raw HTTP/1.1 client under trio: it shows status, headers and body as they came, and can go away half-way."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import h11
import trio
from msgspec import structs
from starlette.routing import BaseRoute

from proto.wire.front import OFF, Http
from services.front.gateway import Gateway
from services.front.transport.access import Tokens
from services.front.web.serving import serve_http
from tests.unit.front.inprocess import InProcess
from tests.unit.front.wire import META, MODERN, gateway_in_process

KEY = b"k" * 32
ACCEPT = "application/json, text/event-stream"


class Reply:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The JSON-RPC messages, whether it is JSON or a stream."""
        if self.headers.get("content-type", "").startswith("text/event-stream"):
            lines = self.body.decode().replace("\r", "").split("\n")
            return [json.loads(line.removeprefix("data:")) for line in lines if line.startswith("data:")]
        return [json.loads(self.body)]

    @property
    def message(self) -> dict[str, Any]:
        return self.messages[-1]


class HttpWire:
    def __init__(self, port: int) -> None:
        self.port = port
        self.session: dict[str, str] = {}

    async def connect(self) -> tuple[trio.SocketStream, h11.Connection]:
        return await trio.open_tcp_stream("127.0.0.1", self.port), h11.Connection(h11.CLIENT)

    async def request(
        self, method: str = "POST", path: str = "/mcp", body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Reply:
        """One request on a connection of its own."""
        stream, connection = await self.connect()
        async with stream:
            await self.start(stream, connection, method, path, body, headers)
            return await self.finish(stream, connection)

    async def start(
        self, stream: trio.SocketStream, connection: h11.Connection, method: str, path: str, body: bytes,
        headers: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        sent = {"host": f"127.0.0.1:{self.port}", "content-length": str(len(body)), "connection": "close"}
        if method == "POST":
            sent |= {"content-type": "application/json", "accept": ACCEPT}
        sent |= headers or {}
        encoded = [(k.encode(), v.encode()) for k, v in sent.items() if v != "-"]
        request = h11.Request(method=method, target=path, headers=encoded)
        data = connection.send(request) or b""
        data += (connection.send(h11.Data(data=body)) or b"") if body else b""
        # A server that will not have the body may answer and close before all of it is sent, as clients know.
        with contextlib.suppress(trio.BrokenResourceError):
            await stream.send_all(data + (connection.send(h11.EndOfMessage()) or b""))

    async def finish(self, stream: trio.SocketStream, connection: h11.Connection) -> Reply:
        status, headers, body = 0, {}, b""
        with trio.fail_after(20):
            while True:
                event = connection.next_event()
                if event is h11.NEED_DATA:
                    connection.receive_data(await stream.receive_some(65536))
                elif isinstance(event, h11.Response):
                    status = event.status_code
                    headers = {k.decode(): v.decode() for k, v in event.headers}
                elif isinstance(event, h11.Data):
                    body += bytes(event.data)
                else:
                    return Reply(status, headers, body)

    async def rpc(
        self, method: str, params: dict[str, Any] | None = None, *, id: int | str | None = 1, path: str = "/mcp",
        headers: dict[str, str] | None = None, modern: bool = False,
    ) -> Reply:  # fmt: skip
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        if id is not None:
            message["id"] = id
        sent = dict(self.session)
        if modern:
            params = {"_meta": META, **(params or {})}
            sent = {"mcp-protocol-version": MODERN, "mcp-method": method}
            if method == "tools/call" and isinstance(params.get("name"), str):
                sent["mcp-name"] = params["name"]
        if params is not None:
            message["params"] = params
        return await self.request("POST", path, json.dumps(message).encode(), {**sent, **(headers or {})})

    async def messages(self, method: str, params: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """The messages of the stream that a request is answered with, as they come."""
        stream, connection = await self.connect()
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        async with stream:
            await self.start(stream, connection, "POST", "/mcp", body, self.session)
            async for message in streamed(stream, connection):
                yield message

    async def listen(self, *, task_status: trio.TaskStatus[trio.MemoryReceiveChannel[dict[str, Any]]]) -> None:
        """The messages of the session's own stream, once it is open, until cancelled."""
        send, receive = trio.open_memory_channel[dict[str, Any]](100)
        stream, connection = await self.connect()
        async with stream:
            await self.start(stream, connection, "GET", "/mcp", b"", {**self.session, "accept": "text/event-stream"})
            async for message in streamed(stream, connection, opened=lambda: task_status.started(receive)):
                await send.send(message)

    async def initialize(
        self, version: str = "2025-11-25", path: str = "/mcp", capabilities: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        client = {"name": "test", "version": "1"}
        params = {"protocolVersion": version, "capabilities": capabilities or {}, "clientInfo": client}
        reply = await self.rpc("initialize", params, id=0, path=path)
        self.session = {"mcp-session-id": reply.headers["mcp-session-id"], "mcp-protocol-version": version}
        assert (await self.rpc("notifications/initialized", id=None, path=path)).status == 202
        result: dict[str, Any] = reply.message["result"]
        return result


def _open(settings: Http) -> Http:
    """No token where the test names none."""
    return settings if settings.token is not None else structs.replace(settings, token=OFF)


async def streamed(
    stream: trio.SocketStream, connection: h11.Connection, *, opened: Callable[[], None] = lambda: None
) -> AsyncIterator[dict[str, Any]]:
    """The messages of a stream, until it ends."""
    buffer = b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(65536))
        elif isinstance(event, h11.Response):
            opened()
        elif isinstance(event, h11.Data):
            *lines, buffer = (buffer + bytes(event.data)).split(b"\n")
            for line in lines:
                if line.startswith(b"data:") and line.strip() != b"data:":
                    yield json.loads(line.removeprefix(b"data:"))
        else:
            return


@contextlib.asynccontextmanager
async def served(
    settings: Http | None = None,
    routes: Sequence[BaseRoute] = (),
    ready: bool = True,
    *,
    tokens: Tokens | None = None,
    has_peers: bool = False,
) -> AsyncIterator[tuple[HttpWire, Gateway, InProcess, trio.Event]]:
    """A server on a free port; the event shuts it down."""
    shutdown = trio.Event()
    async with gateway_in_process() as (gateway, dispatcher), trio.open_nursery() as nursery:
        listening = socket.create_server(("127.0.0.1", 0))
        port = listening.getsockname()[1]

        async def is_ready() -> bool:
            return ready

        async def serve(task_status: trio.TaskStatus[None]) -> None:
            await serve_http(
                gateway, _open(settings or Http(port=port)), listening, routes=routes, ready=is_ready, tokens=tokens,
                session_key=KEY, has_peers=has_peers, shutdown=shutdown.wait, task_status=task_status,
            )  # fmt: skip

        await nursery.start(serve)
        yield HttpWire(port), gateway, dispatcher, shutdown
        shutdown.set()
        nursery.cancel_scope.deadline = trio.current_time() + 5
