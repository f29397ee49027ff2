"""One surface over HTTP: ordinary calls by the fast path, all else by the SDK's session manager.

Who answers is said by `services.front.protocol.ways`.  A call is taken only where the SDK would have served
it: the same media types, the same headers, a session (with a handshake) or an envelope that its headers agree with
(2026-07-28).
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import secrets
from contextlib import AbstractAsyncContextManager

import msgspec
import trio
from mcp.server.streamable_http import REQUEST_CANCELLED, StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import InitializeRequestParams
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION
from msgspec import UnsetType
from pydantic import ValidationError
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from linckia.proto import grants
from linckia.proto.errors import MaybeExecuted, Unavailable
from linckia.proto.json_types import JsonObject
from linckia.proto.operation import Access
from linckia.services.front import scratchpad
from linckia.services.front.protocol import batch
from linckia.services.front.protocol.batch import BATCH_VERSIONS, Part
from linckia.services.front.protocol.client_requests import DEFAULT_LEVEL
from linckia.services.front.protocol.fast_path import Answer, FastPath, ToolCall
from linckia.services.front.protocol.handshake import agreed
from linckia.services.front.protocol.messages import (
    INVALID_REQUEST,
    PARSE_ERROR,
    Envelope,
    NotJson,
    correlation_key,
    error_message,
    fault_of,
    is_call,
    read_envelope,
    read_long,
    request_key,
)
from linckia.services.front.protocol.server import SurfaceServer
from linckia.services.front.protocol.ways import Carrier, Way, way_of
from linckia.services.front.session import SessionState
from linckia.services.front.transport.exchange import Exchange, send_whole
from linckia.services.front.transport.http_batch import serve_batch
from linckia.services.front.transport.http_sessions import HttpSession, Said, Sessions
from linckia.services.front.transport.request import Body, McpRequest, Refused, answered_once, name_of, replay_of
from linckia.services.front.transport.session_ids import Claims
from linckia.services.front.transport.turns import LARGE_BYTES, Shared

CALLS_S = 2.0
"""For calls in flight when this front is to end, before the server itself ends them."""

_ENDED = MaybeExecuted("the front that served this has ended while it was in flight; another one has taken over")

_ENDED_READING = Unavailable("the front that served this has ended while it was in flight; ask again")

_OF_SESSIONS = frozenset({"", *HANDSHAKE_PROTOCOL_VERSIONS})
"""What the header of the revision says, if anything, where there is a handshake."""


class Endpoint:
    """The ASGI application of one surface; requests are served inside `running` only.

    Args:
        shared: among the endpoints of a front.
        sessions: of clients with a handshake; without them each request stands for itself.
    """

    def __init__(
        self, server: SurfaceServer, max_body_bytes: int, shared: Shared, sessions: Sessions | None = None
    ) -> None:
        self._server = server
        self._shared = shared
        self._fast_path = FastPath(server)
        self._max_body_bytes = max_body_bytes
        self._sessions = sessions
        self._streams: set[trio.CancelScope] = set()
        self._calls: set[trio.CancelScope] = set()
        self._calls_end = math.inf
        # For what stands for itself: all of 2026-07-28, and what has no session.
        self._manager = StreamableHTTPSessionManager(server.sdk, stateless=True, max_request_body_size=max_body_bytes)

    def running(self) -> AbstractAsyncContextManager[None]:
        return self._manager.run()

    def close_streams(self) -> None:
        """End the streams that only listen; their clients would keep the server from ending.  Calls have a while."""
        self._server.listening.close()
        for scope in self._streams:
            scope.cancel()
        self._calls_end = trio.current_time() + CALLS_S
        for scope in self._calls:
            scope.deadline = self._calls_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = McpRequest(scope, receive, send)
        grant, surface = grants.current.get(), self._server.surface.name
        if grant is not None and grant.surfaces and surface not in grant.surfaces:
            refusal = f"the token {grant.name} is not for the surface {surface}; it has: {', '.join(grant.surfaces)}"
            await request.answer(JSONResponse({"error": refusal}, status_code=403))
            return
        session_id = request.headers.get(b"mcp-session-id")
        if session_id is not None and (sessions := self._sessions_for(request)) is not None:
            request.session = await sessions.find(session_id.decode("latin-1"), self._server)
            if request.session is None:
                await send_whole(send, 404, error_message(None, INVALID_REQUEST, "Session not found"), [])
                return
        with contextlib.nullcontext() if request.session is None else request.session:
            if scope["method"] == "POST":
                await self._post(request)
            elif scope["method"] == "DELETE" and request.session is not None and self._sessions is not None:
                await self._sessions.end(request.session)
                own = {"mcp-session-id": request.session.id}
                await request.answer(Response(status_code=200, headers=own, media_type="application/json"))
            else:
                await self._listen(request)

    def _sessions_for(self, request: McpRequest) -> Sessions | None:
        """Where those of a handshake are, if the request may belong to one."""
        return self._sessions if request.version in _OF_SESSIONS else None

    async def _listen(self, request: McpRequest) -> None:
        # Events have no ids, so there is nothing to resume; the SDK would not respond to the header at all.
        headers = [header for header in request.scope["headers"] if header[0] != b"last-event-id"]
        request = dataclasses.replace(request, scope={**request.scope, "headers": headers})
        with trio.CancelScope() as stream:
            self._streams.add(stream)
            try:
                await self._by_sdk(request, b"")
            finally:
                self._streams.discard(stream)

    async def _post(self, request: McpRequest) -> None:
        body = Body(self._shared, request.client, self._max_body_bytes)
        try:
            await self._take(request, await body.read(request.receive, request.headers))
        except Refused as error:
            await request.answer(Response(str(error), status_code=error.status))
        except ClientDisconnect:
            return
        finally:
            body.done()

    async def _take(self, request: McpRequest, body: bytes) -> None:
        try:
            envelope = read_envelope(body) if len(body) <= LARGE_BYTES else await read_long(body)
        except NotJson as error:
            message = error_message(error.request_id, PARSE_ERROR, f"Parse error: {error}")
            await send_whole(request.send, 400, message, [])
            return
        if envelope is None and batch.is_batch(body) and self._takes_batches(request):

            async def serve(part: Part, receive: Receive, send: Send) -> None:
                await self._serve_message(
                    dataclasses.replace(request, receive=receive, send=send), part.data, part.envelope
                )

            await serve_batch(body, serve, request.receive, request.send, request.own_headers)
            return
        if (fault := fault_of(envelope, body)) is not None:
            await send_whole(request.send, 400, fault, [])
            return
        await self._serve_message(request, body, envelope)

    def _takes_batches(self, request: McpRequest) -> bool:
        """Whether the client speaks a revision that has them, and takes what they may be answered with."""
        if not request.is_plain:
            return False
        if request.session is not None:
            return request.session.claims.version in BATCH_VERSIONS
        # Without a session there is only the header, which the revisions with batches do not have yet.
        return self._sessions is None and (request.version or "2025-03-26") in BATCH_VERSIONS

    async def _serve_message(self, request: McpRequest, body: bytes, envelope: Envelope | None) -> None:
        session, pads = request.session, self._server.scratchpads
        scratchpad.enter(pads.passing(name_of(request.scope)) if session is None else session.scratchpad)
        if session is not None and envelope is not None and request_key(envelope) is None:
            # What is no request may be meant for a call that another front has in its hands, as for one here.
            _withdraw(session, envelope)
            if envelope.method != "notifications/initialized" and self._sessions is not None:
                self._sessions.peers.tell(Said(session.claims.name, body))
        if len(body) > LARGE_BYTES:
            await trio.lowlevel.checkpoint()
        match way_of(envelope, Carrier.HTTP) if request.is_plain else Way.SDK:
            case Way.CALL if envelope is not None and (call := self._recognise(request, envelope)) is not None:
                await self._serve(request, call)
            case Way.GREETING if await self._greet(request, body):
                return
            case _:
                await self._by_sdk(request, body)

    async def _greet(self, request: McpRequest, body: bytes) -> bool:
        """Answer the message, if it is a greeting that is to be answered here."""
        sessions = self._sessions_for(request)
        greeting = self._server.greeter.answer(body, greeted=request.session is not None)
        if sessions is None or greeting is None:
            return False
        own = request.own_headers
        if request.session is None:
            own = [(b"mcp-session-id", self._id_for(sessions, greeting.params).encode())]
        response = Response(greeting.answer, 200 if greeting.answer else 202, media_type="application/json")
        response.raw_headers += own
        await request.answer(response)
        return True

    def _id_for(self, sessions: Sessions, params: JsonObject) -> str:
        """For a session that is opened with these parameters of `initialize`."""
        said, client = params.get("capabilities"), params.get("clientInfo")
        said, client = (each if isinstance(each, dict) else {} for each in (said, client))
        return sessions.ids.give(self._server.surface.name, agreed(params.get("protocolVersion")), said, client)

    async def _by_sdk(self, request: McpRequest, body: bytes) -> None:
        replayed = dataclasses.replace(request, receive=replay_of(body, request.receive))
        if (sessions := self._sessions_for(request)) is None:
            replayed.send = answered_once(request.send)
            await replayed.answer(self._manager.handle_request)
        elif request.session is not None:
            replayed.send = answered_once(request.send)
            await replayed.answer((await sessions.transport(request.session)).handle_request)
        else:
            await self._open(sessions, replayed, body)

    async def _open(self, sessions: Sessions, request: McpRequest, body: bytes) -> None:
        """A request without a session, which only an `initialize` may be: the SDK says what is wrong with any other."""
        session_id = secrets.token_hex(16)
        with contextlib.suppress(msgspec.DecodeError, ValidationError):
            params = msgspec.json.decode(body, type=_Opening).params
            InitializeRequestParams.model_validate(params, by_name=False)
            session_id = self._id_for(sessions, params)
        claims = sessions.ids.read(session_id) or Claims("", self._server.surface.name, "", 0)
        session = HttpSession(session_id, claims, self._server, SessionState())
        transport = await sessions.start(session)
        try:
            await transport.handle_request(request.scope, request.receive, answered_once(request.send))
        finally:
            # Where it was opened, the next request makes it from its id.
            with trio.CancelScope(shield=True):
                await transport.terminate()

    def _recognise(self, request: McpRequest, message: Envelope) -> ToolCall | None:
        """The call, if the request and its session are such that the fast path may take it."""
        modern = request.version == LATEST_MODERN_VERSION
        if not (modern or request.version in _OF_SESSIONS) or not is_call(message):
            return None
        if not modern and self._sessions is not None and request.session is None:
            return None
        call = self._fast_path.recognise(message, modern=modern)
        return None if call is not None and modern and not request.agrees(call) else call

    async def _serve(self, request: McpRequest, call: ToolCall) -> None:
        session = request.session
        own = [] if call.modern else request.own_headers
        level, cancelled = call.level, None
        if not call.modern:
            # These revisions end a withdrawn request with an error, 2026-07-28 with silence.
            cancelled = Answer(error_message(call.id, REQUEST_CANCELLED, "Request cancelled"), REQUEST_CANCELLED)
            level = DEFAULT_LEVEL if session is None else session.state.level
        exchange = Exchange(request.receive, request.send, own, modern=call.modern, capabilities=call.capabilities)

        async def answer(nursery: trio.Nursery) -> Answer:
            with trio.CancelScope(deadline=self._calls_end) as ending:
                self._calls.add(ending)
                try:
                    return await self._fast_path.answer(call, exchange, nursery, level)
                finally:
                    self._calls.discard(ending)
            return self._fast_path.failed(call, _ENDED_READING if call.operation.access is Access.READ else _ENDED)

        scope = trio.CancelScope()
        key = correlation_key(call.id)
        if session is not None:
            session.calls[key] = scope
        try:
            await exchange.run(answer, cancelled, scope)
        finally:
            if session is not None and session.calls.get(key) is scope:
                del session.calls[key]


async def hear(session: HttpSession, body: bytes) -> None:
    """What another front was sent for this session, and is no request: for what is asked or in hand here."""
    with contextlib.suppress(NotJson):
        if (message := read_envelope(body)) is not None:
            _withdraw(session, message)
            if session.transport is not None:
                await _post_to(session.transport, session.id, body)


async def _post_to(transport: StreamableHTTPServerTransport, session_id: str, body: bytes) -> None:
    """Give the SDK a message as if it had come in a request, which is its public way to take one."""
    headers = {"mcp-session-id": session_id, "content-type": "application/json", "accept": "*/*"}
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": "/mcp",
        "raw_path": b"/mcp", "query_string": b"", "root_path": "", "scheme": "http", "client": None, "server": None,
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }  # fmt: skip

    async def send(message: Message) -> None:
        return None

    await transport.handle_request(scope, replay_of(body, trio.sleep_forever), send)


def _withdraw(session: HttpSession, message: Envelope) -> None:
    """Cancel the call on the fast path that a message names, where that is what it does; the SDK receives it too."""
    if message.method != "notifications/cancelled" or isinstance(message.params, UnsetType):
        return
    with contextlib.suppress(msgspec.DecodeError):
        params = msgspec.json.decode(message.params, type=_Cancelled)
        if (scope := session.calls.get(correlation_key(params.request_id))) is not None:
            scope.cancel()


class _Opening(msgspec.Struct):
    params: JsonObject = {}


class _Cancelled(msgspec.Struct):
    request_id: int | str = msgspec.field(name="requestId")
