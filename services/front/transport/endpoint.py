"""One surface over HTTP: ordinary calls by the fast path, all else by the SDK's session manager.

Who answers is said by `services.front.protocol.ways`.  A call is taken only where the SDK would have served
it: the same media types, the same headers, a session (with a handshake) or an envelope that its headers agree with
(2026-07-28).
"""

from __future__ import annotations

import contextlib
import math
import secrets
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import trio
from mcp.server.streamable_http import REQUEST_CANCELLED, StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import InitializeRequestParams
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION
from msgspec import UnsetType
from pydantic import ValidationError
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from proto import grants
from proto.errors import MaybeExecuted, Unavailable
from proto.json_types import JsonObject
from proto.operation import Access
from services.front import scratchpad
from services.front.protocol import batch
from services.front.protocol.batch import BATCH_VERSIONS
from services.front.protocol.client_requests import DEFAULT_LEVEL
from services.front.protocol.fast_path import Answer, FastPath, ToolCall
from services.front.protocol.handshake import agreed
from services.front.protocol.messages import (
    INVALID_REQUEST,
    PARSE_ERROR,
    Envelope,
    NotJson,
    correlation_key,
    error_message,
    is_call,
    read_envelope,
    read_long,
    request_key,
)
from services.front.protocol.server import SurfaceServer
from services.front.protocol.ways import Carrier, Way, way_of
from services.front.session import SessionState
from services.front.transport.exchange import Exchange
from services.front.transport.http_batch import serve_batch
from services.front.transport.http_sessions import HttpSession, Sessions
from services.front.transport.peers import Said
from services.front.transport.request import (
    Body,
    Headers,
    Refused,
    answered_once,
    client_of,
    headers_agree,
    media_types_are_plain,
    name_of,
    own_headers,
    replay_of,
    version_of,
)
from services.front.transport.session_ids import Claims
from services.front.transport.turns import LARGE_BYTES, Shared

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

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self._manager.run():
            yield

    def close_streams(self) -> None:
        """End the streams that only listen; their clients would keep the server from ending.  Calls have a while."""
        self._server.listening.close()
        for scope in self._streams:
            scope.cancel()
        self._calls_end = trio.current_time() + CALLS_S
        for scope in self._calls:
            scope.deadline = self._calls_end

    # ---- requests -------------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: Headers = dict(scope["headers"])
        grant, surface = grants.current.get(), self._server.surface.name
        if grant is not None and grant.surfaces and surface not in grant.surfaces:
            refusal = f"the token {grant.name} is not for the surface {surface}; it has: {', '.join(grant.surfaces)}"
            await JSONResponse({"error": refusal}, status_code=403)(scope, receive, send)
            return
        session: HttpSession | None = None
        session_id = headers.get(b"mcp-session-id")
        if session_id is not None and self._sessions is not None and version_of(headers) in _OF_SESSIONS:
            session = await self._sessions.find(session_id.decode("latin-1"), self._server)
            if session is None:
                answer = error_message(None, INVALID_REQUEST, "Session not found")
                await Response(answer, status_code=404, media_type="application/json")(scope, receive, send)
                return
        with contextlib.nullcontext() if session is None else session:
            if scope["method"] == "POST":
                await self._post(scope, headers, session, receive, send)
            elif scope["method"] == "DELETE" and session is not None and self._sessions is not None:
                await self._sessions.end(session)
                own = {"mcp-session-id": session.id}
                await Response(status_code=200, headers=own, media_type="application/json")(scope, receive, send)
            else:
                await self._listen(scope, headers, session, receive, send)

    async def _listen(
        self, scope: Scope, headers: Headers, session: HttpSession | None, receive: Receive, send: Send
    ) -> None:
        with trio.CancelScope() as stream:
            self._streams.add(stream)
            try:
                await self._by_sdk(scope, headers, session, b"", receive, send)
            finally:
                self._streams.discard(stream)

    async def _post(
        self, scope: Scope, headers: Headers, session: HttpSession | None, receive: Receive, send: Send
    ) -> None:
        body = Body(self._shared, client_of(scope, session), self._max_body_bytes)
        try:
            await self._take(scope, headers, session, await body.read(receive, headers), receive, send)
        except Refused as error:
            await Response(str(error), status_code=error.status)(scope, receive, send)
        finally:
            body.done()

    async def _take(
        self, scope: Scope, headers: Headers, session: HttpSession | None, body: bytes, receive: Receive, send: Send
    ) -> None:
        try:
            envelope = read_envelope(body) if len(body) <= LARGE_BYTES else await read_long(body)
        except NotJson as error:
            message = error_message(error.request_id, PARSE_ERROR, f"Parse error: {error}")
            await Response(message, status_code=400, media_type="application/json")(scope, receive, send)
            return
        if envelope is None and batch.is_batch(body) and self._takes_batches(headers, session):

            async def serve(message: bytes, receive: Receive, send: Send) -> None:
                await self._serve_message(scope, headers, session, message, read_envelope(message), receive, send)

            await serve_batch(body, serve, receive, send, own_headers(session))
            return
        await self._serve_message(scope, headers, session, body, envelope, receive, send)

    def _takes_batches(self, headers: Headers, session: HttpSession | None) -> bool:
        """Whether the client speaks a revision that has them, and takes what they may be answered with."""
        if not media_types_are_plain(headers):
            return False
        if session is not None:
            return session.claims.version in BATCH_VERSIONS
        # Without a session there is only the header, which the revisions with batches do not have yet.
        return self._sessions is None and (version_of(headers) or "2025-03-26") in BATCH_VERSIONS

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
        pads = self._server.scratchpads
        scratchpad.enter(pads.passing(name_of(scope)) if session is None else session.scratchpad)
        if session is not None and envelope is not None and request_key(envelope) is None:
            self._hear(session, envelope, body)
        is_plain = len(headers) == len(scope["headers"]) and media_types_are_plain(headers)
        if len(body) > LARGE_BYTES:
            await trio.lowlevel.checkpoint()
        match way_of(envelope, Carrier.HTTP) if is_plain else Way.SDK:
            case Way.CALL if envelope is not None and (call := self._recognise(headers, session, envelope)) is not None:
                await self._serve(call, session, receive, send)
            case Way.GREETING if await self._greet(scope, headers, session, body, receive, send):
                return
            case _:
                await self._by_sdk(scope, headers, session, body, receive, send)

    async def _greet(
        self, scope: Scope, headers: Headers, session: HttpSession | None, body: bytes, receive: Receive, send: Send
    ) -> bool:
        """Answer the message, if it is a greeting that is to be answered here."""
        if self._sessions is None or version_of(headers) not in _OF_SESSIONS:
            return False
        greeting = self._server.greeter.answer(body, greeted=session is not None)
        if greeting is None:
            return False
        own = own_headers(session)
        if session is None:
            own = [(b"mcp-session-id", self._id_for(self._sessions, greeting.params).encode())]
        response = Response(greeting.answer, 200 if greeting.answer else 202, media_type="application/json")
        response.raw_headers += own
        await response(scope, receive, send)
        return True

    def _id_for(self, sessions: Sessions, params: JsonObject) -> str:
        """For a session that is opened with these parameters of `initialize`."""
        said, client = params.get("capabilities"), params.get("clientInfo")
        said, client = (each if isinstance(each, dict) else {} for each in (said, client))
        return sessions.ids.give(self._server.surface.name, agreed(params.get("protocolVersion")), said, client)

    async def _by_sdk(
        self, scope: Scope, headers: Headers, session: HttpSession | None, body: bytes, receive: Receive, send: Send
    ) -> None:
        replay = replay_of(body, receive)
        if self._sessions is None or version_of(headers) not in _OF_SESSIONS:
            await self._manager.handle_request(scope, replay, answered_once(send))
        elif session is not None:
            transport = await self._sessions.transport(session)
            await transport.handle_request(scope, replay, answered_once(send))
        else:
            await self._open(self._sessions, scope, body, replay, send)

    async def _open(self, sessions: Sessions, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """A request without a session, which only an `initialize` may be: the SDK says what is wrong with any other."""
        session_id = secrets.token_hex(16)
        with contextlib.suppress(msgspec.DecodeError, ValidationError):
            params = msgspec.json.decode(body, type=_Opening).params
            InitializeRequestParams.model_validate(params, by_name=False)
            session_id = self._id_for(sessions, params)
        claims = sessions.ids.read(session_id) or Claims("", self._server.surface.name, "", 0)
        session = HttpSession(session_id, claims, self._server, SessionState())
        transport = await sessions.open(session)
        try:
            await transport.handle_request(scope, receive, answered_once(send))
        finally:
            # Where it was opened, the next request makes it from its id.
            with trio.CancelScope(shield=True):
                await transport.terminate()

    def _hear(self, session: HttpSession, message: Envelope, body: bytes) -> None:
        """What is no request may be meant for a call that another front has in its hands, as for one here."""
        self.hear(session, message)
        if message.method != "notifications/initialized" and self._sessions is not None:
            self._sessions.peers.tell(Said(session.claims.name, body))

    @staticmethod
    def hear(session: HttpSession, message: Envelope) -> None:
        """Withdraw the call that a message names, where that is what it does; the SDK receives it too."""
        if message.method == "notifications/cancelled":
            _withdraw(session, message)

    def _recognise(self, headers: Headers, session: HttpSession | None, message: Envelope) -> ToolCall | None:
        """The call, if the request and its session are such that the fast path may take it."""
        version = version_of(headers)
        modern = version == LATEST_MODERN_VERSION
        if not (modern or version in _OF_SESSIONS) or not is_call(message):
            return None
        if not modern and self._sessions is not None and session is None:
            return None
        call = self._fast_path.recognise(message, modern=modern)
        if call is not None and modern and not headers_agree(headers, call):
            return None
        return call

    async def _answer(self, call: ToolCall, session: HttpSession | None, exchange: Exchange, *rest: Any) -> Answer:
        answer = None
        with trio.CancelScope(deadline=self._calls_end) as ending:
            self._calls.add(ending)
            try:
                answer = await self._fast_path.answer(call, exchange, *rest)
            finally:
                self._calls.discard(ending)
        if answer is None:
            return self._fast_path.failed(call, _ENDED_READING if call.operation.access is Access.READ else _ENDED)
        if session is not None and self._sessions is not None:
            await self._sessions.keep(session)
        return answer

    async def _serve(self, call: ToolCall, session: HttpSession | None, receive: Receive, send: Send) -> None:
        own = [] if call.modern else own_headers(session)
        level, cancelled = call.level, None
        if not call.modern:
            # These revisions end a withdrawn request with an error, 2026-07-28 with silence.
            cancelled = Answer(error_message(call.id, REQUEST_CANCELLED, "Request cancelled"), REQUEST_CANCELLED)
            level = DEFAULT_LEVEL if session is None else session.state.level
        exchange = Exchange(receive, send, own, modern=call.modern, capabilities=call.capabilities)
        scope = trio.CancelScope()
        key = correlation_key(call.id)
        if session is not None:
            session.calls[key] = scope
        try:
            await exchange.run(lambda nursery: self._answer(call, session, exchange, nursery, level), cancelled, scope)
        finally:
            if session is not None and session.calls.get(key) is scope:
                del session.calls[key]


async def hear(session: HttpSession, body: bytes) -> None:
    """What another front was sent for this session, and is no request: for what is asked or in hand here."""
    with contextlib.suppress(NotJson):
        if (message := read_envelope(body)) is not None:
            Endpoint.hear(session, message)
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


class _Opening(msgspec.Struct):
    params: JsonObject = {}


class _Cancelled(msgspec.Struct):
    request_id: int | str = msgspec.field(name="requestId")
