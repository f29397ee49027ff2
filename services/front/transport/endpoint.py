"""One surface over HTTP: ordinary calls by the fast path, all else by the SDK's session manager.

A request is taken only where the SDK would have served it: the same media types, the same headers, a session that is
established (with a handshake) or an envelope that its headers agree with (2026-07-28).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import msgspec
import trio
from mcp.server.streamable_http import REQUEST_CANCELLED
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.inbound import decode_header_value
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION
from msgspec import UnsetType
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from proto import grants
from services.front import scratchpad
from services.front.protocol import batch
from services.front.protocol.batch import BATCH_VERSIONS
from services.front.protocol.client_requests import DEFAULT_LEVEL
from services.front.protocol.connections import level_of, on_connection
from services.front.protocol.fast_path import Answer, FastPath, ToolCall
from services.front.protocol.messages import (
    INVALID_REQUEST,
    PARSE_ERROR,
    TOOLS_CALL,
    Envelope,
    NotJson,
    correlation_key,
    error_message,
    is_call,
    read_envelope,
)
from services.front.protocol.server import SurfaceServer
from services.front.transport.access import current_key
from services.front.transport.exchange import Exchange
from services.front.transport.http_batch import serve_batch
from services.front.transport.http_sessions import MAX_SESSIONS, HttpSession, Sessions

Headers = dict[bytes, bytes]


class Endpoint:
    """The ASGI application of one surface; requests are served inside `running` only."""

    def __init__(self, server: SurfaceServer, max_body_bytes: int, *, stateless: bool = False) -> None:
        self._server = server
        self._fast_path = FastPath(server)
        self._max_body_bytes = max_body_bytes
        self._stateless = stateless
        self._streams: set[trio.CancelScope] = set()
        # The limit on sessions is kept by `Sessions`, which makes room; the SDK's would turn new clients away.
        self._manager = StreamableHTTPSessionManager(
            server.sdk,
            stateless=stateless,
            max_request_body_size=max_body_bytes,
            session_idle_timeout=None,
            max_sessions=None if stateless else 2 * MAX_SESSIONS,
        )
        self.sessions = Sessions(self._end_session)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self._manager.run(), trio.open_nursery() as nursery:
            nursery.start_soon(self.sessions.sweep)
            yield
            nursery.cancel_scope.cancel()

    def close_streams(self) -> None:
        """End the streams that only listen; their clients would keep the server from ending."""
        self._server.listening.close()
        for scope in self._streams:
            scope.cancel()

    async def _end_session(self, session_id: str) -> None:
        """As if its client had said DELETE, which is the SDK's public way to end one."""
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "DELETE", "path": "/mcp",
            "raw_path": b"/mcp", "query_string": b"", "root_path": "", "scheme": "http",
            "headers": [(b"mcp-session-id", session_id.encode())], "client": None, "server": None,
        }  # fmt: skip

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            return None

        await self._manager.handle_request(scope, receive, send)

    # ---- requests -------------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: Headers = dict(scope["headers"])
        grant, surface = grants.current.get(), self._server.surface.name
        if grant is not None and grant.surfaces and surface not in grant.surfaces:
            refusal = f"the token {grant.name} is not for the surface {surface}; it has: {', '.join(grant.surfaces)}"
            await JSONResponse({"error": refusal}, status_code=403)(scope, receive, send)
            return
        session = self.sessions.get(headers.get(b"mcp-session-id", b"").decode("latin-1"))
        if session is not None and session.key != current_key.get():
            # As if it were not there: it is another client's.
            message = error_message(None, INVALID_REQUEST, "Session not found")
            await Response(message, status_code=404, media_type="application/json")(scope, receive, send)
            return
        with contextlib.nullcontext() if session is None else session:
            if scope["method"] == "POST":
                await self._post(scope, headers, session, receive, send)
            elif scope["method"] == "GET":
                await self._listen(scope, receive, send)
            else:
                await self._manager.handle_request(scope, receive, send)

    async def _listen(self, scope: Scope, receive: Receive, send: Send) -> None:
        with trio.CancelScope() as stream:
            self._streams.add(stream)
            try:
                await self._manager.handle_request(scope, receive, send)
            finally:
                self._streams.discard(stream)

    async def _post(
        self, scope: Scope, headers: Headers, session: HttpSession | None, receive: Receive, send: Send
    ) -> None:
        body = await read_body(receive, headers, self._max_body_bytes)
        if body is None:
            await Response("Request body too large", status_code=413)(scope, receive, send)
            return
        try:
            envelope = read_envelope(body)
        except NotJson as error:
            message = error_message(error.request_id, PARSE_ERROR, f"Parse error: {error}")
            await Response(message, status_code=400, media_type="application/json")(scope, receive, send)
            return
        if envelope is None and batch.is_batch(body) and self._takes_batches(headers, session):
            own = [] if session is None else [(b"mcp-session-id", headers[b"mcp-session-id"])]

            async def serve(message: bytes, receive: Receive, send: Send) -> None:
                await self._serve_message(scope, headers, session, message, read_envelope(message), receive, send)

            await serve_batch(body, serve, receive, send, own)
            return
        await self._serve_message(scope, headers, session, body, envelope, receive, send)

    def _takes_batches(self, headers: Headers, session: HttpSession | None) -> bool:
        """Whether the client speaks a revision that has them, and takes what they may be answered with."""
        if not _media_types_are_plain(headers):
            return False
        if session is not None:
            return session.connection.protocol_version in BATCH_VERSIONS
        # Without a session there is only the header, which the revisions with batches do not have yet.
        return (
            self._stateless and headers.get(b"mcp-protocol-version", b"2025-03-26").decode("latin-1") in BATCH_VERSIONS
        )

    async def _serve_message(
        self,
        scope: Scope,
        headers: Headers,
        session: HttpSession | None,
        body: bytes,
        envelope: Envelope | None,
        receive: Receive,
        send: Send,
    ) -> None:
        self._lay_out(scope, headers, session, envelope)
        call = None if envelope is None else self._recognise(scope, headers, session, envelope)
        if call is not None:
            await self._serve(call, headers, session, receive, send)
            return
        if not self._stateless and envelope is not None and envelope.method == "initialize":
            # It opens a session, which then is this surface's to look after.
            await self.sessions.make_room()
            on_connection.set(self.sessions.opened)
        await self._manager.handle_request(scope, _replay(body, receive), _answered_once(send))

    def _lay_out(self, scope: Scope, headers: Headers, session: HttpSession | None, message: Envelope | None) -> None:
        """Set the scratchpad of the request; a session that it opens inherits it."""
        pads = self._server.scratchpads
        if session is not None:
            scratchpad.enter(session.scratchpad)
        elif not self._stateless and message is not None and message.method == "initialize":
            scratchpad.enter(pads.open())
        else:
            client = scope.get("client")
            scratchpad.enter(pads.shared(headers, client[0] if client else ""))

    def _recognise(
        self, scope: Scope, headers: Headers, session: HttpSession | None, message: Envelope
    ) -> ToolCall | None:
        """The call, if the request and its session are such that the fast path may take it."""
        version = headers.get(b"mcp-protocol-version", b"").decode("latin-1")
        modern = version == LATEST_MODERN_VERSION
        if not modern and version and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            return None
        if len(headers) != len(scope["headers"]) or not _media_types_are_plain(headers):
            return None
        if message.method == "notifications/cancelled" and session is not None and not modern:
            _withdraw(session, message)
        if not is_call(message):
            return None
        if not modern and not self._stateless and (session is None or not session.connection.initialize_accepted):
            return None
        call = self._fast_path.recognise(message, modern=modern)
        if call is not None and modern and not _headers_agree(headers, call):
            return None
        return call

    async def _serve(
        self, call: ToolCall, headers: Headers, session: HttpSession | None, receive: Receive, send: Send
    ) -> None:
        own: list[tuple[bytes, bytes]] = []
        level, cancelled = call.level, None
        if not call.modern:
            # These revisions end a withdrawn request with an error, 2026-07-28 with silence.
            cancelled = Answer(error_message(call.id, REQUEST_CANCELLED, "Request cancelled"), REQUEST_CANCELLED)
            level = DEFAULT_LEVEL if session is None else level_of(session.connection)
            if session is not None:
                own.append((b"mcp-session-id", headers[b"mcp-session-id"]))
        exchange = Exchange(receive, send, own, modern=call.modern, capabilities=call.capabilities)
        scope = trio.CancelScope()
        key = correlation_key(call.id)
        if session is not None:
            session.calls[key] = scope
        try:
            await exchange.run(lambda nursery: self._fast_path.answer(call, exchange, nursery, level), cancelled, scope)
        finally:
            if session is not None and session.calls.get(key) is scope:
                del session.calls[key]


async def read_body(receive: Receive, headers: Headers, limit: int) -> bytes | None:
    """The whole body; None where it is longer than `limit`, which a declared length shows before any of it is read."""
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and int(declared) > limit:
        return None
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            break
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            return None
        chunks.append(chunk)
        if not message.get("more_body", False):
            break
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _answered_once(send: Send) -> Send:
    """Drop what follows a whole answer.

    The SDK acknowledges a notification and hands it on afterwards; where the session has ended in between, it answers
    a second time, with an error that the server would log as the application's.
    """
    whole = False

    async def send_once(message: Message) -> None:
        nonlocal whole
        if whole:
            return
        whole = message["type"] == "http.response.body" and not message.get("more_body", False)
        await send(message)

    return send_once


def _replay(body: bytes, receive: Receive) -> Receive:
    """`receive` for an application that has yet to read the body."""
    pending = True

    async def replay() -> Message:
        nonlocal pending
        if pending:
            pending = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay


def _media_types_are_plain(headers: Headers) -> bool:
    """Whether the request names its media types in the usual words; the SDK judges all others."""
    if headers.get(b"content-type", b"").partition(b";")[0].strip() != b"application/json":
        return False
    accepted = {part.partition(b";")[0].strip() for part in headers.get(b"accept", b"").split(b",")}
    return b"*/*" in accepted or {b"application/json", b"text/event-stream"} <= accepted


def _headers_agree(headers: Headers, call: ToolCall) -> bool:
    name = headers.get(b"mcp-name")
    return (
        headers.get(b"mcp-method") == TOOLS_CALL.encode()
        and name is not None
        and decode_header_value(name.decode("latin-1")) == call.operation.name
    )


def _withdraw(session: HttpSession, message: Envelope) -> None:
    """Cancel the call that a notification names, where it is on the fast path; the SDK receives it too."""
    if isinstance(message.params, UnsetType):
        return
    try:
        params = msgspec.json.decode(message.params, type=_Cancelled)
    except msgspec.DecodeError:
        return
    scope = session.calls.get(correlation_key(params.request_id))
    if scope is not None:
        scope.cancel()


class _Cancelled(msgspec.Struct):
    request_id: int | str = msgspec.field(name="requestId")
