"""Sessions of clients with a handshake over HTTP.  They belong to no front: any front serves a session with a valid id.

The id holds what the handshake agreed on (`services.front.transport.session_ids`), and the kernel keeps what its client
has said since (`services.front.protocol.session`).  A front creates its own part when the session is first used there.
If there are too many, the one that idled longest is dropped; its next request creates it again.

If there are several fronts, requests of a session reach any of them, so each passes on to the others what its clients
say.
"""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec
import trio

from linckia.proto import frames, grants
from linckia.proto.dispatch import Dispatcher
from linckia.proto.errors import LinckiaError
from linckia.proto.frames import Event
from linckia.proto.front import SERVICE
from linckia.proto.front import TO_FRONTS as PREFIX
from linckia.proto.json_types import JsonObject
from linckia.proto.operation import Params, operation_of
from linckia.proto.ops.kernel import KernelKeepSession, KernelKeptSession
from linckia.services.front.dispatcher import Events
from linckia.services.front.protocol.messages import NotJson, read_envelope
from linckia.services.front.protocol.server import SurfaceServer
from linckia.services.front.protocol.session import McpSession, SessionState, read_state
from linckia.services.front.scratchpad import LOOSE, Entry, Scratchpad, Scratchpads
from linckia.services.front.transport.exchange import Exchange
from linckia.services.front.transport.session_ids import Claims, SessionIds

MAX_SESSIONS = 4096
"""Most sessions in the memory of one front."""

MAX_ENDED = 4096
"""Most ended sessions that a front remembers; the kernel remembers more."""

IDLE_S = 4 * 3600.0
_SWEEP_S = 60.0

_log = logging.getLogger("linckia.gateway")


class Changed(msgspec.Struct, frozen=True):
    """The state of a session changed."""

    name: str
    state: str


class Said(msgspec.Struct, frozen=True):
    """A session's client has sent an answer to a question, or a notification."""

    name: str
    message: bytes


class Cached(msgspec.Struct, frozen=True):
    """A long answer was stored for a session, or for clients without one."""

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
        """Have the kernel keep the state of a session, and pass it on to the other fronts."""
        written = state.written()
        try:
            await self._ask_kernel(KernelKeepSession(name=name, state=written))
        except LinckiaError as error:
            _log.warning("a session's state is not kept: %s", error)
        self.tell(Changed(name, written))

    async def kept(self, name: str) -> SessionState:
        """The state that the kernel keeps for a session; the default state if it keeps none."""
        try:
            written = await self._ask_kernel(KernelKeptSession(name=name))
            return read_state(written) if isinstance(written, str) else SessionState()
        except (LinckiaError, msgspec.DecodeError) as error:
            _log.warning("a session's state is not known: %s", error)
            return SessionState()

    def tell(self, what: News) -> None:
        """Send a message to the other fronts, if there are any."""
        if self.several:
            self._events.publish(f"{PREFIX}{type(what).__name__}", what)

    def listen(self, receive: Callable[[News], Awaitable[None]]) -> None:
        """Call `receive` with each message of the other fronts."""

        async def read(event: Event) -> None:
            if (kind := _KINDS.get(event.topic)) is not None:
                await receive(frames.read_body(event.body, kind))

        if self.several:
            self._events.on_event(read)


class HttpSession(McpSession):
    """One session, as far as this front knows it."""

    def __init__(
        self, session_id: str, claims: Claims, server: SurfaceServer, state: SessionState, peers: Peers
    ) -> None:
        super().__init__(state)
        client = {"name": "", "version": "", **claims.client}
        params = {"protocolVersion": claims.version, "capabilities": claims.capabilities, "clientInfo": client}
        super().open(params, claims.version)
        self.initialized = True
        self.id = session_id
        self.claims = claims
        self.scratchpad: Scratchpad = server.scratchpads.open(claims.name, state)
        self.stream: Exchange | None = None
        """The response that the client listens to for messages that belong to no request."""
        self.in_flight = 0
        self.used_at = trio.current_time()
        self._peers = peers

    def __enter__(self) -> HttpSession:
        self.in_flight += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.in_flight -= 1
        self.used_at = trio.current_time()

    def open(self, params: JsonObject, version: str) -> None:
        """A second `initialize` is answered and changes nothing: the session is what its id says, at every front."""

    def send(self, message: bytes) -> None:
        if self.stream is not None:
            self.stream.offer(message)

    async def changed(self) -> None:
        await self._peers.keep(self.claims.name, self.state)

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
        self._ended: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_name)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Give up sessions that idle, until cancelled."""
        self.peers.listen(self._receive)
        self._pads.several = self.peers.several
        self._pads.kept = self._tell_of_entry
        task_status.started()
        while True:
            await trio.sleep(min(_SWEEP_S, self._idle_s))
            self._give_up(trio.current_time() - self._idle_s)

    async def find(self, session_id: str, server: SurfaceServer) -> HttpSession | None:
        """The session with this id; None if it was not issued for this surface, or has ended."""
        claims = self.ids.read(session_id, self._by_name)
        if claims is None or claims.surface != server.surface.name or claims.name in self._ended:
            return None
        if claims.name not in self._by_name:
            state = await self.peers.kept(claims.name)
            if state.ended:
                self._note_end(claims.name)
            # Another request of it may have been quicker.
            elif claims.name not in self._by_name and claims.name not in self._ended:
                self._add(HttpSession(session_id, claims, server, state, self.peers))
        return self._by_name.get(claims.name)

    def _add(self, session: HttpSession) -> None:
        """Add a session that is new to this front."""
        if len(self._by_name) >= self._limit:
            idle = (each for each in self._by_name.values() if not each.in_flight)
            # One without scratchpad entries goes first: nothing is lost with it.
            other = min(idle, key=lambda each: (each.scratchpad.size_bytes > 0, each.used_at), default=None)
            if other is not None:
                self._forget(other)
        self._by_name[session.claims.name] = session

    async def end(self, session: HttpSession) -> None:
        """End a session at its client's request: no front serves it any more."""
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
            del self._by_name[session.claims.name]
        session.close()

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
                with contextlib.suppress(NotJson):
                    if (said := read_envelope(message)) is not None:
                        session.receive(said)
