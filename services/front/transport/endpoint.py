"""The HTTP endpoint of one surface: checks the protocol's rules for requests and answers their messages.

A request belongs to a session (revisions with a handshake) or stands alone (2026-07-28, and endpoints without
sessions).  Refusals have the same status and text as those of the SDK's own transports.
"""

from __future__ import annotations

import contextlib
import math

import trio
from mcp.server.streamable_http import REQUEST_CANCELLED, check_accept_headers
from mcp.shared.inbound import (
    InboundLadderRejection,
    find_duplicated_routing_header,
    unsupported_protocol_version_rejection,
)
from mcp_types import DEFAULT_NEGOTIATED_VERSION, HEADER_MISMATCH
from msgspec import structs
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from proto.errors import MaybeExecuted, Unavailable
from proto.mcp import BATCH_VERSIONS, INVALID_REQUEST, PARSE_ERROR
from proto.origin import Origin
from services.front import scratchpad
from services.front.protocol import batch
from services.front.protocol.batch import Part
from services.front.protocol.dispatch import MessageDispatcher
from services.front.protocol.handshake import GREETINGS
from services.front.protocol.messages import (
    Answer,
    Envelope,
    NotJson,
    error_message,
    fault_of,
    read_envelope,
    read_long,
    request_key,
)
from services.front.protocol.server import SurfaceServer
from services.front.protocol.session import Channel, McpSession, Request
from services.front.transport.access import ORIGIN, TOKEN_KEY
from services.front.transport.exchange import Body, Exchange, McpRequest, Refused, name_of, send_whole
from services.front.transport.fair_limits import LARGE_BYTES, FairLimits
from services.front.transport.http_batch import serve_batch
from services.front.transport.http_sessions import ClientMessage, Sessions

CALLS_S = 2.0
"""How long requests in flight may take once this front is stopping, before they are cancelled."""

_ENDED = MaybeExecuted("the front that served this call stopped before it was answered; another one has taken over")

_ENDED_READING = Unavailable("the front that served this call stopped before it was answered; try again")

_SINGLE = "Body must be a single JSON-RPC request or notification object"


class Endpoint:
    """The ASGI application of one surface.

    Args:
        limits: shared by all endpoints of a front.
        sessions: sessions of clients with a handshake; None for a stateless endpoint.
    """

    def __init__(
        self, server: SurfaceServer, max_body_bytes: int, limits: FairLimits, sessions: Sessions | None = None
    ) -> None:
        self._server = server
        self._limits = limits
        self._dispatcher = MessageDispatcher(server.served, self._loaded)
        self._max_body_bytes = max_body_bytes
        self._sessions = sessions
        self._streams: set[Exchange] = set()
        self._calls: set[trio.CancelScope] = set()
        self._calls_end = math.inf

    async def _loaded(self) -> SurfaceServer:
        return self._server

    def close_streams(self) -> None:
        """End the streams that only listen, which would never end, and give calls `CALLS_S` to finish."""
        self._server.listening.close()
        for stream in self._streams:
            stream.end()
        self._calls_end = trio.current_time() + CALLS_S
        for scope in self._calls:
            scope.deadline = self._calls_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = McpRequest(scope, receive, send)
        grant, surface = scope[ORIGIN].grant, self._server.surface.name
        if grant is not None and grant.surfaces and surface not in grant.surfaces:
            allowed = ", ".join(grant.surfaces)
            refusal = f"the token {grant.name} does not allow the surface {surface}; it allows: {allowed}"
            await request.answer(JSONResponse({"error": refusal}, status_code=403))
            return
        session_id = request.headers.get(b"mcp-session-id")
        if session_id is not None and self._sessions is not None and not request.is_modern:
            name, token_key = session_id.decode("latin-1"), scope[TOKEN_KEY]
            known = self._sessions.by_id.get(name)
            if known is None or known.token_key != token_key or known.claims.surface != surface:
                known = await self._sessions.find(name, token_key, self._server)
            request.session = known
            if known is None:
                await _refuse(request, 404, "Session not found")
                return
        with contextlib.nullcontext() if request.session is None else request.session:
            await self._respond(request)

    async def _respond(self, request: McpRequest) -> None:
        match request.scope["method"]:
            case "POST":
                await self._post(request)
            case _ if request.is_modern:
                await request.answer(Response(status_code=405, headers={"Allow": "POST"}))
            case "GET":
                await self._listen(request)
            case "DELETE":
                await self._end(request)
            case _:
                await _refuse(request, 405, "Method Not Allowed", (b"allow", b"GET, POST, DELETE"))

    def _lacks_session(self, request: McpRequest) -> bool:
        """Whether the request requires a session but has none."""
        return request.session is None and self._sessions is not None and not request.is_modern

    async def _end(self, request: McpRequest) -> None:
        if self._sessions is None:
            await _refuse(request, 405, "Method Not Allowed: Session termination not supported")
        elif request.session is None:
            await _refuse(request, 400, "Bad Request: Missing session ID")
        else:
            await self._sessions.end(request.session)
            await request.answer(_accepted(request, 200))

    async def _listen(self, request: McpRequest) -> None:
        """Stream messages that belong to no request, until the client disconnects."""
        session = request.session
        if not check_accept_headers(HttpRequest(request.scope))[1]:
            await _refuse(request, 406, "Not Acceptable: Client must accept text/event-stream")
        elif self._lacks_session(request):
            await _refuse(request, 400, "Bad Request: Missing session ID")
        elif session is not None and session.stream is not None:
            await _refuse(request, 409, "Conflict: Only one SSE stream is allowed per session")
        else:
            stream = Exchange(request.receive, request.send, request.own_headers)
            self._streams.add(stream)
            try:
                if session is None:
                    await stream.listen()
                    return
                session.stream = stream
                with self._server.notifier.follow(session, self._server.surface.name, self._server.lists):
                    await stream.listen()
            finally:
                self._streams.discard(stream)
                if session is not None:
                    session.stream = None

    async def _post(self, request: McpRequest) -> None:
        body = Body(self._limits, request.client, self._max_body_bytes)
        try:
            await self._take(request, await body.read(request.receive, request.headers))
        except Refused as error:
            await request.answer(Response(str(error), status_code=error.status))
        except ClientDisconnect:
            return
        finally:
            body.done()

    async def _take(self, request: McpRequest, body: bytes) -> None:
        if (fault := request.form_fault()) is not None:
            await _refuse(request, *fault)
            return
        try:
            envelope = read_envelope(body) if len(body) <= LARGE_BYTES else await read_long(body)
        except NotJson as error:
            message = error_message(error.request_id, PARSE_ERROR, f"Parse error: {error}")
            await send_whole(request.send, 400, message, [])
            return
        if envelope is None and batch.is_batch(body) and self._takes_batches(request):
            await self._serve_batch(request, body)
        elif (refusal := fault_of(envelope, body)) is not None:
            await send_whole(request.send, 400, refusal, [])
        else:
            assert envelope is not None
            await self._serve(request, body, envelope)

    def _takes_batches(self, request: McpRequest) -> bool:
        """Whether the client's revision has batches."""
        if request.session is not None:
            return request.session.claims.version in BATCH_VERSIONS
        # Without a session only the header is known, which is missing in the revisions with batches.
        return self._sessions is None and (request.version or DEFAULT_NEGOTIATED_VERSION) in BATCH_VERSIONS

    async def _serve(self, request: McpRequest, body: bytes, envelope: Envelope) -> None:
        if request_key(envelope) is None:
            await self._take_notification(request, body, envelope)
        elif not self._lacks_session(request):
            await self._serve_request(request, body, envelope)
        elif envelope.method == "initialize":
            await self._open(request, body, envelope)
        else:
            await _refuse(request, 400, "Bad Request: Missing session ID")

    async def _serve_request(self, request: McpRequest, body: bytes, envelope: Envelope) -> None:
        session, origin = self._enter(request)
        headers = request.text_headers if request.is_modern else None
        if headers is not None and (rejection := _routing_fault(request, headers)) is not None:
            await _reject(request, rejection, envelope)
            return
        if (greeting := self._greet(body, envelope, session)) is not None:
            await send_whole(request.send, 200, greeting.message, request.own_headers)
            return
        exchange = Exchange(request.receive, request.send, request.own_headers, modern=request.is_modern)

        async def answer(nursery: trio.Nursery) -> Answer | None:
            return await self._answer(Request(envelope, session, exchange, nursery, origin, headers))

        await exchange.run(answer)

    def _enter(self, request: McpRequest) -> tuple[McpSession, Origin]:
        """Return the session of a request, or a new one for it, and who calls in it; set this task's scratchpad."""
        session: McpSession
        if request.session is not None:
            session, pad = request.session, request.session.scratchpad
        else:
            session, pad = McpSession(reachable=False), self._server.scratchpads.for_request(name_of(request.scope))
            session.modern = request.is_modern
            session.version = request.version or DEFAULT_NEGOTIATED_VERSION
        scratchpad.current.set(pad)
        return session, structs.replace(request.scope[ORIGIN], session=pad.session)

    def _greet(self, body: bytes, envelope: Envelope, session: McpSession) -> Answer | None:
        if session.modern or envelope.method not in GREETINGS:
            return None
        answer = self._server.served.greeter.answer(body, session)
        return None if answer is None else Answer(answer)

    async def _serve_batch(self, request: McpRequest, body: bytes) -> None:
        session, origin = self._enter(request)

        async def serve(part: Part, channel: Channel, nursery: trio.Nursery) -> Answer | None:
            assert part.envelope is not None
            if request_key(part.envelope) is None:
                self._receive(request, part.data, part.envelope)
                return None
            greeting = self._greet(part.data, part.envelope, session)
            return greeting or await self._answer(Request(part.envelope, session, channel, nursery, origin))

        await serve_batch(body, serve, request.receive, request.send, request.own_headers)

    async def _answer(self, request: Request) -> Answer | None:
        request.scope.deadline = self._calls_end
        self._calls.add(request.scope)
        try:
            answer = await self._dispatcher.answer(request)
        finally:
            self._calls.discard(request.scope)
        if answer is None and trio.current_time() >= self._calls_end:
            return self._dispatcher.interrupted(request.envelope, request.id, reading=_ENDED_READING, other=_ENDED)
        if answer is None and not request.session.modern:
            # Revisions with a handshake answer a withdrawn request with an error; 2026-07-28 does not answer it.
            answer = Answer(error_message(request.id, REQUEST_CANCELLED, "Request cancelled"), REQUEST_CANCELLED)
        return answer

    async def _take_notification(self, request: McpRequest, body: bytes, envelope: Envelope) -> None:
        """Accept a notification, or the response to a question."""
        if request.is_modern:
            if not isinstance(envelope.method, str):
                await _refuse(request, 400, _SINGLE)
            elif (unsupported := unsupported_protocol_version_rejection(request.version or "")) is not None:
                await _reject(request, unsupported, None)
            else:
                # This revision has no client notifications over HTTP; ignore them.
                await request.answer(Response(status_code=202))
        elif self._lacks_session(request):
            await _refuse(request, 400, "Bad Request: Missing session ID")
        else:
            self._receive(request, body, envelope)
            await request.answer(_accepted(request, 202))

    def _receive(self, request: McpRequest, body: bytes, envelope: Envelope) -> None:
        if (session := request.session) is None or self._sessions is None:
            return
        session.receive(envelope)
        if envelope.method != "notifications/initialized":
            # It may concern a request that another front serves.
            self._sessions.peers.broadcast(ClientMessage(session.claims.name, body))

    async def _open(self, request: McpRequest, body: bytes, envelope: Envelope) -> None:
        """Answer `initialize`; the id of the new session holds all of its state."""
        assert self._sessions is not None
        session, exchange = McpSession(), Exchange(request.receive, request.send, [])
        answer = self._greet(body, envelope, session)
        if answer is None:
            session.modern = False
            async with trio.open_nursery() as nursery:
                answer = await self._answer(Request(envelope, session, exchange, nursery, request.scope[ORIGIN]))
        headers = []
        if session.version is not None:
            client = session.client["clientInfo"]
            session_id = self._sessions.ids.issue(
                self._server.surface.name, session.version, session.capabilities, client, request.scope[TOKEN_KEY]
            )
            headers = [(b"mcp-session-id", session_id.encode())]
        await send_whole(request.send, 200, b"" if answer is None else answer.message, headers)


def _routing_fault(request: McpRequest, headers: Headers) -> InboundLadderRejection | None:
    """Return the error for a repeated routing header, if there is one."""
    if request.is_plain or (duplicated := find_duplicated_routing_header(headers.items())) is None:
        return None
    return InboundLadderRejection(code=HEADER_MISMATCH, message=f"{duplicated} header appears more than once")


async def _reject(request: McpRequest, rejection: InboundLadderRejection, envelope: Envelope | None) -> None:
    request_id = envelope.id if envelope is not None and isinstance(envelope.id, int | str) else None
    message = error_message(request_id, rejection.code, rejection.message, rejection.data)
    await send_whole(request.send, 400, message, [])


async def _refuse(request: McpRequest, status: int, text: str, *more: tuple[bytes, bytes]) -> None:
    message = error_message(None, INVALID_REQUEST, text)
    await send_whole(request.send, status, message, [*request.own_headers, *more])


def _accepted(request: McpRequest, status: int) -> Response:
    """Return a response without a body."""
    response = Response(status_code=status, media_type="application/json")
    response.raw_headers += request.own_headers
    return response
