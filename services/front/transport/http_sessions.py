"""HTTP sessions of clients with a handshake.  Any front can serve any session with a valid id.

The id holds the result of the handshake (`services.front.transport.session_ids`), and the kernel stores the state that
the client has set since (`services.front.protocol.session`).  A front creates its copy of a session on first use.  If
there are too many, the one that was idle longest is dropped; its next request creates it again.

If there are several fronts, the requests of a session may reach any of them, so each front forwards state changes and
client messages to the others.
"""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

import msgspec
import trio

from proto.errors import LinckiaError
from proto.json_types import JsonObject
from proto.operation import Params, operation_of
from proto.ops.kernel import KernelKeepSession, KernelKeptSession
from proto.wire import frames
from proto.wire.frames import Event
from proto.wire.front import OWN
from proto.wire.front import TO_FRONTS as PREFIX
from services.front.protocol.calls import Events
from services.front.protocol.messages import NotJson, read_envelope
from services.front.protocol.server import SurfaceServer
from services.front.protocol.session import McpSession, SessionState, read_state
from services.front.scratchpad import SESSIONLESS, Scratchpad, Scratchpads, StoredResult
from services.front.transport.session_ids import Claims, SessionIds
from services.runtime.dispatch import Dispatcher

MAX_SESSIONS = 4096
"""Most sessions in the memory of one front."""

MAX_ENDED = 4096
"""Most ended sessions that a front remembers; the kernel remembers more."""

IDLE_S = 4 * 3600.0
_SWEEP_S = 60.0

_log = logging.getLogger("linckia.gateway")


class StateChanged(msgspec.Struct, frozen=True):
    """The state of a session changed."""

    name: str
    state: str


class ClientMessage(msgspec.Struct, frozen=True):
    """A session's client sent an answer to a question, or a notification."""

    name: str
    message: bytes


class ResultStored(msgspec.Struct, frozen=True):
    """A long result was stored for a session, or for clients without one."""

    name: str
    entry: StoredResult


PeerMessage: TypeAlias = StateChanged | ClientMessage | ResultStored

_KINDS: dict[str, type[PeerMessage]] = {
    f"{PREFIX}{kind.__name__}": kind for kind in (StateChanged, ClientMessage, ResultStored)
}


class Peers:
    """Connects a front with the other fronts, if there are any, and with the kernel."""

    def __init__(self, dispatcher: Dispatcher, events: Events, *, has_peers: bool) -> None:
        self.has_peers = has_peers
        self._dispatcher = dispatcher
        self._events = events

    async def _ask_kernel(self, params: Params[object]) -> object:
        return await self._dispatcher.call(operation_of(params), params, origin=OWN)

    async def save(self, name: str, state: SessionState) -> None:
        """Store the state of a session in the kernel and send it to the other fronts."""
        encoded = state.encoded()
        try:
            await self._ask_kernel(KernelKeepSession(name=name, state=encoded))
        except LinckiaError as error:
            _log.warning("the state of a session could not be stored: %s", error)
        self.broadcast(StateChanged(name, encoded))

    async def load(self, name: str) -> SessionState:
        """Return the state that the kernel has stored for a session, or the default state."""
        try:
            encoded = await self._ask_kernel(KernelKeptSession(name=name))
            return read_state(encoded) if isinstance(encoded, str) else SessionState()
        except (LinckiaError, msgspec.DecodeError) as error:
            _log.warning("the state of a session could not be loaded: %s", error)
            return SessionState()

    def broadcast(self, message: PeerMessage) -> None:
        """Send a message to the other fronts, if there are any."""
        if self.has_peers:
            self._events.publish(f"{PREFIX}{type(message).__name__}", message)

    def listen(self, receive: Callable[[PeerMessage], Awaitable[None]]) -> None:
        """Call `receive` with each message of the other fronts."""

        async def read(event: Event) -> None:
            if (kind := _KINDS.get(event.topic)) is not None:
                await receive(frames.read_body(event.body, kind))

        if self.has_peers:
            self._events.on_event(read)


class Stream(Protocol):
    """An SSE stream to a client (`services.front.transport.exchange.Exchange`)."""

    def offer(self, message: bytes) -> None: ...

    def end(self) -> None: ...


class HttpSession(McpSession):
    """This front's copy of one session."""

    def __init__(
        self, session_id: str, token_key: str, claims: Claims, server: SurfaceServer, state: SessionState, peers: Peers
    ) -> None:
        super().__init__(state)
        client = {"name": "", "version": "", **claims.client}
        params = {"protocolVersion": claims.version, "capabilities": claims.capabilities, "clientInfo": client}
        super().open(params, claims.version)
        self.initialized = True
        self.id = session_id
        self.claims = claims
        self.scratchpad: Scratchpad = server.scratchpads.open(claims.name, state)
        self.stream: Stream | None = None
        """The client's SSE stream for messages that belong to no request; None if it has none open."""
        self.token_key = token_key
        self.used_at = trio.current_time()
        self._peers = peers

    def open(self, params: JsonObject, version: str) -> None:
        """Do nothing: a second `initialize` is answered but cannot change a session, which its id defines."""

    def send(self, message: bytes) -> None:
        if self.stream is not None:
            self.stream.offer(message)

    async def changed(self) -> None:
        await self._peers.save(self.claims.name, self.state)

    def close(self) -> None:
        super().close()
        if self.stream is not None:
            self.stream.end()


class Sessions:
    """The sessions of all surfaces."""

    def __init__(
        self,
        ids: SessionIds,
        peers: Peers,
        pads: Scratchpads,
        *,
        limit: int = MAX_SESSIONS,
        idle_s: float = IDLE_S,
    ) -> None:
        self.ids = ids
        self.peers = peers
        self._pads = pads
        self._limit = limit
        self._idle_s = idle_s
        self._by_name: dict[str, HttpSession] = {}
        self.by_id: dict[str, HttpSession] = {}
        """The same sessions, by their ids as clients send them."""
        self._ended: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_name)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Drop idle sessions, until cancelled."""
        self.peers.listen(self._receive)
        self._pads.has_peers = self.peers.has_peers
        self._pads.on_stored = self._replicate_entry
        task_status.started()
        while True:
            await trio.sleep(min(_SWEEP_S, self._idle_s))
            self._drop_idle(trio.current_time() - self._idle_s)

    async def find(self, session_id: str, token_key: str, server: SurfaceServer) -> HttpSession | None:
        """The session with this id; None if it was not issued for this surface, or has ended."""
        claims = self.ids.verify(session_id, token_key, self._by_name)
        if claims is None or claims.surface != server.surface.name or claims.name in self._ended:
            return None
        if claims.name not in self._by_name:
            state = await self.peers.load(claims.name)
            if state.ended:
                self._note_end(claims.name)
            # Another request of the session may have created it meanwhile.
            elif claims.name not in self._by_name and claims.name not in self._ended:
                self._add(HttpSession(session_id, token_key, claims, server, state, self.peers))
        return self._by_name.get(claims.name)

    def _add(self, session: HttpSession) -> None:
        """Add a session that is new to this front."""
        if len(self._by_name) >= self._limit:
            idle = (each for each in self._by_name.values() if not each.in_flight)
            # Prefer one without scratchpad entries: nothing is lost with it.
            other = min(idle, key=lambda each: (each.scratchpad.size_bytes > 0, each.used_at), default=None)
            if other is not None:
                self._forget(other)
        self._by_name[session.claims.name] = self.by_id[session.id] = session

    async def end(self, session: HttpSession) -> None:
        """End a session at its client's request; no front serves it afterwards."""
        session.state.ended = True
        self._note_end(session.claims.name)
        await session.changed()
        self._forget(session)

    def _note_end(self, name: str) -> None:
        self._ended[name] = None
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)

    def _forget(self, session: HttpSession) -> None:
        if self._by_name.get(session.claims.name) is session:
            del self._by_name[session.claims.name], self.by_id[session.id]
        session.close()

    def _drop_idle(self, used_before: float) -> None:
        for session in list(self._by_name.values()):
            if not session.in_flight and session.used_at <= used_before:
                self._forget(session)

    def _replicate_entry(self, session: str, entry: StoredResult) -> None:
        if session == SESSIONLESS or session in self._by_name:
            self.peers.broadcast(ResultStored(session, entry))

    async def _receive(self, peer_message: PeerMessage) -> None:
        name = peer_message.name
        session = self._by_name.get(name)
        match peer_message:
            case ResultStored(entry=entry):
                self._pads.replicate(name, entry)
            case StateChanged(state=encoded):
                state = read_state(encoded)
                if state.ended:
                    self._note_end(name)
                    if session is not None:
                        self._forget(session)
                elif session is not None:
                    session.state.become(state)
            case ClientMessage(message=message) if session is not None:
                with contextlib.suppress(NotJson):
                    if (envelope := read_envelope(message)) is not None:
                        session.receive(envelope)
