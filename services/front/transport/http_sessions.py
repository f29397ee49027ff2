"""Sessions of clients with a handshake over HTTP, which belong to no front: any that gets a good id serves it.

The id says what the handshake agreed on (`services.front.transport.session_ids`), and the kernel keeps what its client
has said since (`services.front.session`).  A front makes the rest when the session is first used there: the SDK's part
when a message needs the SDK.  What idled longest is given up for another; the next request makes it again.

Where there are several fronts, the requests of one session come to any of them, so that what one is told of a session
the others are told as well.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec
import trio
from mcp.server.connection import Connection
from mcp.server.runner import serve_connection
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.transport_context import TransportContext
from mcp_types import InitializeRequestParams

from linckia.proto import frames, grants
from linckia.proto.dispatch import Dispatcher
from linckia.proto.errors import LinckiaError
from linckia.proto.frames import Event
from linckia.proto.front import SERVICE
from linckia.proto.front import TO_FRONTS as PREFIX
from linckia.proto.operation import Params, operation_of
from linckia.proto.ops.kernel import KernelKeepSession, KernelKeptSession
from linckia.services.front.dispatcher import Events
from linckia.services.front.protocol.connections import KEEP, STATE
from linckia.services.front.protocol.server import SurfaceServer
from linckia.services.front.scratchpad import LOOSE, Entry, Scratchpad, Scratchpads
from linckia.services.front.session import SessionState, read_state
from linckia.services.front.transport.session_ids import Claims, SessionIds

MAX_SESSIONS = 4096
"""That a front has in memory."""

MAX_SERVED = 512
"""Those of them that have the SDK's part, which is four tasks."""

MAX_ENDED = 4096
"""Sessions that clients have ended, remembered here; the kernel remembers more."""

IDLE_S = 4 * 3600.0
_SWEEP_S = 60.0

_log = logging.getLogger("linckia.gateway")


class Changed(msgspec.Struct, frozen=True):
    """A session is as its state says."""

    name: str
    state: str


class Said(msgspec.Struct, frozen=True):
    """A session's client has sent what is no request: an answer to a question, or the withdrawal of a call."""

    name: str
    message: bytes


class Cached(msgspec.Struct, frozen=True):
    """A long answer was kept for a session, or for clients without one."""

    name: str
    entry: Entry


News: TypeAlias = Changed | Said | Cached

_KINDS: dict[str, type[News]] = {f"{PREFIX}{kind.__name__}": kind for kind in (Changed, Said, Cached)}


class Peers:
    """The other fronts, if there are `several`, and the kernel."""

    def __init__(self, dispatcher: Dispatcher, events: Events, *, several: bool) -> None:
        self.several = several
        self._dispatcher = dispatcher
        self._events = events

    async def _ask_kernel(self, params: Params[object]) -> object:
        with grants.lifted():
            return await self._dispatcher.call(operation_of(params), params, caller=SERVICE)

    async def keep(self, name: str, state: SessionState) -> None:
        """Have the kernel keep what a session is, and tell the others."""
        written = state.written()
        try:
            await self._ask_kernel(KernelKeepSession(name=name, state=written))
        except LinckiaError as error:
            _log.warning("a session's state is not kept: %s", error)
        self.tell(Changed(name, written))

    async def kept(self, name: str) -> SessionState:
        """What the kernel keeps of a session; the defaults where that is nothing."""
        try:
            written = await self._ask_kernel(KernelKeptSession(name=name))
            return read_state(written) if isinstance(written, str) else SessionState()
        except (LinckiaError, msgspec.DecodeError) as error:
            _log.warning("a session's state is not known: %s", error)
            return SessionState()

    def tell(self, what: News) -> None:
        """The other fronts, if there are any."""
        if self.several:
            self._events.publish(f"{PREFIX}{type(what).__name__}", what)

    def listen(self, receive: Callable[[News], Awaitable[None]]) -> None:
        """Call `receive` with what the others tell."""

        async def read(event: Event) -> None:
            if (kind := _KINDS.get(event.topic)) is not None:
                await receive(frames.read_body(event.body, kind))

        if self.several:
            self._events.on_event(read)


class HttpSession:
    """One session as far as this front has it: its state, its calls on the fast path by id, the SDK's part."""

    def __init__(self, session_id: str, claims: Claims, server: SurfaceServer, state: SessionState) -> None:
        self.id = session_id
        self.claims = claims
        self.server = server
        self.state = state
        self.scratchpad: Scratchpad = server.scratchpads.open(claims.name, state)
        self.calls: dict[int | str, trio.CancelScope] = {}
        self.transport: StreamableHTTPServerTransport | None = None
        self.starting = trio.Lock()
        self.in_flight = 0
        self.used_at = trio.current_time()

    def __enter__(self) -> HttpSession:
        self.in_flight += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.in_flight -= 1
        self.used_at = trio.current_time()


class Sessions:
    """The sessions of all surfaces.

    Args:
        said: told what is no request and came to another front: the session, and the message.
    """

    def __init__(
        self,
        ids: SessionIds,
        peers: Peers,
        pads: Scratchpads,
        said: Callable[[HttpSession, bytes], Awaitable[None]],
        *,
        limit: int = MAX_SESSIONS,
        served: int = MAX_SERVED,
        idle_s: float = IDLE_S,
    ) -> None:
        self.ids = ids
        self.peers = peers
        self._pads = pads
        self._said = said
        self._limit = limit
        self._served = served
        self._idle_s = idle_s
        self._by_name: dict[str, HttpSession] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._nursery: trio.Nursery | None = None

    def __len__(self) -> int:
        return len(self._by_name)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve the SDK's parts of sessions, and give up what idles, until cancelled."""
        self.peers.listen(self._receive)
        self._pads.several = self.peers.several
        self._pads.kept = self._tell_of_entry
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            while True:
                await trio.sleep(min(_SWEEP_S, self._idle_s))
                self._give_up(trio.current_time() - self._idle_s)

    async def find(self, session_id: str, server: SurfaceServer) -> HttpSession | None:
        """The session of that id, where it was given for this surface and goes on."""
        claims = self.ids.read(session_id, self._by_name)
        if claims is None or claims.surface != server.surface.name or claims.name in self._ended:
            return None
        if claims.name not in self._by_name:
            state = await self.peers.kept(claims.name)
            if state.ended:
                self._note_end(claims.name)
            # Another request of it may have been quicker.
            elif claims.name not in self._by_name and claims.name not in self._ended:
                self._add(HttpSession(session_id, claims, server, state))
        return self._by_name.get(claims.name)

    def _add(self, session: HttpSession) -> None:
        """It is used here for the first time."""
        if len(self._by_name) >= self._limit:
            idle = (each for each in self._by_name.values() if not each.in_flight)
            # One of which nothing is lost goes first.
            other = min(idle, key=lambda each: (each.scratchpad.size_bytes > 0, each.used_at), default=None)
            if other is not None:
                self._forget(other)
        self._by_name[session.claims.name] = session

    async def end(self, session: HttpSession) -> None:
        """Its client has no more use for it: no front serves it any more."""
        session.state.ended = True
        self._note_end(session.claims.name)
        await self.keep(session)
        self._forget(session)

    async def keep(self, session: HttpSession) -> None:
        """The session's state was changed: have the kernel keep it, and the others told."""
        await self.peers.keep(session.claims.name, session.state)

    def _note_end(self, name: str) -> None:
        self._ended[name] = None
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)

    def _forget(self, session: HttpSession) -> None:
        if self._by_name.get(session.claims.name) is session:
            del self._by_name[session.claims.name]
        for scope in session.calls.values():
            scope.cancel()
        if session.transport is not None and self._nursery is not None:
            self._nursery.start_soon(session.transport.terminate)

    def _give_up(self, used_before: float) -> None:
        for session in list(self._by_name.values()):
            if not session.in_flight and session.used_at <= used_before:
                self._forget(session)

    def _tell_of_entry(self, session: str, entry: Entry) -> None:
        if session == LOOSE or session in self._by_name:
            self.peers.tell(Cached(session, entry))

    async def _receive(self, what: News) -> None:
        session = self._by_name.get(what.name)
        match what:
            case Cached(entry=entry):
                self._pads.arrive(what.name, entry)
            case Changed(state=written):
                state = read_state(written)
                if state.ended:
                    self._note_end(what.name)
                    if session is not None:
                        self._forget(session)
                elif session is not None:
                    session.state.become(state)
            case Said(message=message) if session is not None:
                await self._said(session, message)

    async def transport(self, session: HttpSession) -> StreamableHTTPServerTransport:
        """The SDK's part of a session that goes on.  Raises ValidationError: its client is none that the SDK knows."""
        async with session.starting:
            if session.transport is None:
                claims = session.claims
                said = {"name": "", "version": "", **claims.client}
                client = InitializeRequestParams.model_validate(
                    {"protocolVersion": claims.version, "capabilities": claims.capabilities, "clientInfo": said},
                    by_name=False,
                )
                await self.start(session, client)
        assert session.transport is not None
        return session.transport

    async def start(
        self, session: HttpSession, client: InitializeRequestParams | None = None
    ) -> StreamableHTTPServerTransport:
        """Start the SDK's part of a session, whose `initialize` it has yet to see where there is no `client`."""
        served = [each for each in self._by_name.values() if each.transport is not None]
        idle = (each for each in served if not each.in_flight)
        if len(served) >= self._served and (other := min(idle, key=lambda each: each.used_at, default=None)):
            assert other.transport is not None
            await other.transport.terminate()
        assert self._nursery is not None
        transport: StreamableHTTPServerTransport = await self._nursery.start(self._serve, session, client)
        session.transport = transport
        return transport

    async def _serve(
        self,
        session: HttpSession,
        client: InitializeRequestParams | None,
        *,
        task_status: trio.TaskStatus[StreamableHTTPServerTransport],
    ) -> None:
        transport = StreamableHTTPServerTransport(session.id)
        try:
            async with transport.connect() as (incoming, outgoing):
                dispatcher: JSONRPCDispatcher[TransportContext] = JSONRPCDispatcher(
                    incoming, outgoing, inline_methods=frozenset({"initialize"})
                )
                # Of what fronts ask a session's client, no two may have the same id; the SDK has no way to say so.
                dispatcher._next_id = secrets.randbits(40)
                connection = Connection.for_loop(dispatcher, session_id=session.id)
                connection.state |= {STATE: session.state, KEEP: lambda: self.keep(session)}
                if client is not None:
                    connection.client_params, connection.protocol_version = client, session.claims.version
                    connection.initialized.set()
                    session.server.welcome(connection)
                task_status.started(transport)
                await serve_connection(session.server.sdk, dispatcher, connection=connection, lifespan_state={})
        except Exception:  # noqa: BLE001  # the edge: one session's defect must not end the others
            _log.exception("an HTTP session failed")
        finally:
            if session.transport is transport:
                session.transport = None
            if not transport.is_terminated:
                with trio.CancelScope(shield=True), contextlib.suppress(trio.ClosedResourceError):
                    await transport.terminate()
