"""The SDK's own transports over a surface's server: their answers are those that clients of every other server get."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import mcp_types as types
import trio
from mcp.server.context import CallNext, HandlerResult
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.message import SessionMessage
from mcp_types.jsonrpc import jsonrpc_message_adapter
from starlette.types import ASGIApp, Message, Scope

from proto.origin import Origin
from services.front.protocol.messages import Envelope
from services.front.protocol.sdk import Context
from services.front.protocol.server import SurfaceServer
from services.front.protocol.session import McpSession, Request
from services.front.transport.access import ORIGIN, TOKEN_KEY
from services.front.transport.endpoint import Endpoint
from services.front.transport.fair_limits import FairLimits
from services.front.transport.http_sessions import Peers, Sessions
from services.front.transport.session_ids import SessionIds
from tests.unit.front.wire import connected, gateway_in_process

Send = Callable[[bytes], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]

_NOTIFICATIONS: dict[str, type[types.ServerNotification]] = {
    "notifications/progress": types.ProgressNotification,
    "notifications/message": types.LoggingMessageNotification,
}


class Gathered:
    """A channel that keeps what a handler sends."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def send(self, message: bytes) -> None:
        self.messages.append(message)

    async def room(self) -> None:
        return None


def adapted(server: SurfaceServer, nursery: trio.Nursery) -> None:
    """Give the handlers of a server the request that they expect, although a transport of the SDK brought it."""

    async def adapt(ctx: Context, call_next: CallNext) -> HandlerResult:
        state = ctx.session._connection.state
        session = state.setdefault("session", McpSession())
        channel = Gathered()
        if ctx.request_id is None:
            return await call_next(ctx)
        request = Request(Envelope("2.0", ctx.request_id, ctx.method), session, channel, nursery, Origin("client"))
        try:
            return await call_next(dataclasses.replace(ctx, request=request))
        finally:
            for message in map(json.loads, channel.messages):
                notification = _NOTIFICATIONS[message["method"]].model_validate(message, by_name=False)
                await ctx.session.send_notification(notification, related_request_id=ctx.request_id)

    server.sdk.middleware.insert(0, adapt)


# ---- stdio ----------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def stdio_of_ours() -> AsyncIterator[tuple[Send, Receive]]:
    async with gateway_in_process() as (gateway, _), connected(gateway) as wire:
        yield wire.send_bytes, wire.receive


@contextlib.asynccontextmanager
async def stdio_of_the_sdk() -> AsyncIterator[tuple[Send, Receive]]:
    async with gateway_in_process() as (gateway, _), trio.open_nursery() as nursery:
        server = await gateway.server("all")
        adapted(server, nursery)
        to_server, server_reads = anyio.create_memory_object_stream[SessionMessage | Exception](100)
        server_writes, from_server = anyio.create_memory_object_stream[SessionMessage](100)
        options = server.sdk.create_initialization_options()
        nursery.start_soon(server.sdk.run, server_reads, server_writes, options)

        async def send(line: bytes) -> None:
            await to_server.send(SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False)))

        async def receive() -> dict[str, Any]:
            with trio.fail_after(10):
                message = (await from_server.receive()).message
            found: dict[str, Any] = json.loads(message.model_dump_json(by_alias=True, exclude_unset=True))
            return found

        async with to_server, server_reads, server_writes, from_server:
            yield send, receive
        nursery.cancel_scope.cancel()


# ---- HTTP -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Response:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def messages(self) -> list[Any]:
        """The JSON-RPC messages, whether it is JSON or a stream."""
        if self.headers.get("content-type", "").startswith("text/event-stream"):
            lines = self.body.decode().replace("\r", "").split("\n")
            return [json.loads(line.removeprefix("data:")) for line in lines if line.startswith("data:")]
        return [json.loads(self.body)] if self.headers.get("content-type") == "application/json" and self.body else []


async def ask(app: ASGIApp, method: str, headers: list[tuple[str, str]], body: bytes = b"") -> Response:
    """One request; a stream that only listens is left once it has begun, or has said what opens it."""
    scope: Scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": "/mcp",
        "raw_path": b"/mcp", "query_string": b"", "root_path": "", "scheme": "http", "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2), "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers],
        ORIGIN: Origin("client", peer="127.0.0.1"), TOKEN_KEY: "",
    }  # fmt: skip
    found = Response(0, {}, b"")
    pending = [{"type": "http.request", "body": body, "more_body": False}]
    listens = method == "GET" or b'"subscriptions/listen"' in body

    async def receive() -> Message:
        if pending:
            return pending.pop()
        await trio.sleep_forever()
        raise AssertionError

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            found.status = message["status"]
            found.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
            if method == "GET" and found.status == 200:
                left.cancel()
        else:
            found.body += message.get("body", b"")
            if listens and found.body:
                left.cancel()

    with trio.fail_after(20), trio.CancelScope() as left:
        await app(scope, receive, send)
    return found


@contextlib.asynccontextmanager
async def http_of_ours(*, stateless: bool = False) -> AsyncIterator[ASGIApp]:
    async with gateway_in_process() as (gateway, dispatcher), trio.open_nursery() as nursery:
        peers = Peers(dispatcher, dispatcher, has_peers=False)
        sessions = Sessions(SessionIds(b"k" * 32), peers, gateway.scratchpads)
        await nursery.start(sessions.run)
        yield Endpoint(await gateway.server("all"), 10_000_000, FairLimits(), None if stateless else sessions)
        nursery.cancel_scope.cancel()


@contextlib.asynccontextmanager
async def http_of_the_sdk(*, stateless: bool = False) -> AsyncIterator[ASGIApp]:
    async with gateway_in_process() as (gateway, _), trio.open_nursery() as nursery:
        server = await gateway.server("all")
        adapted(server, nursery)
        manager = StreamableHTTPSessionManager(server.sdk, stateless=stateless)
        async with manager.run():
            yield manager.handle_request
        nursery.cancel_scope.cancel()
