"""Signs of life of a server with calls in flight, and the calls that wait behind it.

A server that says nothing for a while is pinged. One that does not answer either is silent: it hangs, or its only
thread works. Nobody can tell which, so this ends no server. It keeps further calls from a silent one, and answers those
that have waited for too long.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import trio

from proto.mounts import TOOLS_CALL
from services.mounts.link.exchange import Exchange, Exchanges, what_is_called
from services.mounts.link.peer import BadReply, Lost, NoReply, Peer

QUIET_S, PING_S = 5.0, 5.0
"""Time without a sign of life after which a server with calls in flight is pinged, and time for its answer."""

DOUBT_S = 2.0
"""Time without a sign of life after which a server that owes a reply gets another call only after a ping."""

BEHIND_S = 45.0
"""How long a call may wait behind a silent server. Clients often give up after 60 s."""

AGAIN_S = 60.0
"""Time after which an unanswered ping is repeated: it may be lost, over HTTP."""

LOOK_S = 1.0
"""Interval of looks at a server."""


class Behind(Exception):
    """A call has waited for too long behind a silent server; the message says behind what.

    Args:
        begun: whether it is in the server's input, so that the server may still get it.
    """

    def __init__(self, cause: str, *, begun: bool) -> None:
        super().__init__(cause)
        self.begun = begun


class Server(Protocol):
    """What this needs of an instance."""

    peer: Peer
    ended: trio.Event

    @property
    def heard_at(self) -> float:
        """When the last sign of life came: a message, or anything else that the server wrote."""

    async def ping(self, *, limit_s: float) -> object:
        """Ask the server for a reply. Raises NoReply, BadReply or Lost."""


class Activity(NamedTuple):
    """What a server does: busy or silent, with calls in flight."""

    silent_s: float
    """Time since its last sign of life; 0 unless it is silent."""
    text: str


class Liveness:
    """Whether a server lives, as far as its calls in flight are concerned."""

    def __init__(self, server: Server, exchanges: Exchanges, nursery: trio.Nursery, *, patient: bool) -> None:
        self._server = server
        self._exchanges = exchanges
        self._nursery = nursery
        self._patient = patient
        self._pinged_at = math.inf
        self._answered = trio.Event()
        self._told: set[Exchange] = set()
        self._front: Exchange | None = None
        """The call that has been in flight for longest; kept when its client has given up."""

    @property
    def is_silent(self) -> bool:
        """Whether the server has left a ping unanswered, and has given no other sign of life meanwhile."""
        now = trio.current_time()
        waited_s = min(now - self._pinged_at, now - self._server.heard_at - QUIET_S)
        return waited_s >= PING_S and not self._is_asked()

    def _is_asked(self) -> bool:
        """Whether the server itself waits, for the answer to a question."""
        return any(each.questions for each in self._exchanges.running.values())

    def _ping(self) -> trio.Event:
        """Ping the server, unless an answer is outstanding. Returns an event that is set by the answer."""
        if self._pinged_at == math.inf:
            self._pinged_at = trio.current_time()
            self._answered = trio.Event()
            self._nursery.start_soon(self._until_answered)
        return self._answered

    async def _until_answered(self) -> None:
        while True:
            try:
                await self._server.ping(limit_s=AGAIN_S)
            except Lost:
                # The end of the server is handled elsewhere.
                return
            except NoReply:
                continue
            except BadReply:
                # It replied.
                pass
            break
        self._pinged_at = math.inf
        self._answered.set()

    # Calls that are not sent yet

    def is_in_doubt(self) -> bool:
        """Whether the server owes a reply and is quiet, so that another call should wait for a sign of life."""
        heard_at = self._server.heard_at
        owes = self._server.peer.asked_at > heard_at
        return owes and trio.current_time() - heard_at > DOUBT_S and not self._is_asked()

    async def until_heard(self, exchange: Exchange) -> None:
        """Wait for a sign of life. Raises Behind after a while in which the server is silent."""
        since = trio.current_time()
        while self._server.heard_at < since and self.is_in_doubt() and not self._server.ended.is_set():
            answered = self._ping()
            with trio.move_on_after(LOOK_S):
                await answered.wait()
            self._require_patience(exchange, since)

    async def patiently(self, exchange: Exchange, event: trio.Event) -> None:
        """Wait for an event that calls in flight decide. Raises Behind after a while in which the server is silent."""
        since = trio.current_time()
        while not event.is_set():
            with trio.move_on_after(LOOK_S):
                await event.wait()
            if not event.is_set():
                self._require_patience(exchange, since)

    def _require_patience(self, exchange: Exchange, since: float) -> None:
        if self.is_silent:
            self._tell(exchange)
            waited_s = trio.current_time() - max(since, self._server.heard_at)
            if waited_s >= BEHIND_S or not self._patient:
                raise Behind(f"{self._described(exchange)}; it was not sent", begun=False)

    # Calls that are sent

    def look(self) -> None:
        """Ping the server if it is quiet, and answer calls that it has not even read. To be called regularly."""
        if not self._exchanges.running:
            self._told.clear()
            return
        first = self._front = self._first()
        quiet_s = trio.current_time() - self._server.heard_at
        if quiet_s >= QUIET_S and not self._is_asked():
            self._ping()
        if not self.is_silent:
            return
        for exchange in list(self._exchanges.running.values()):
            if exchange is first:
                continue
            self._tell(exchange)
            if trio.current_time() - exchange.since >= BEHIND_S and self._server.peer.is_unread(exchange.pending):
                text = f"{self._described(exchange)}; the server has not read it yet"
                exchange.pending.fail(Behind(text, begun=True))

    def answered(self, exchange: Exchange) -> None:
        """Forget a call, which may have dozens of megabytes: the server has answered it."""
        if self._front is exchange:
            self._front = None

    def _first(self) -> Exchange:
        return min(self._exchanges.running.values(), key=lambda each: each.since)

    def _tell(self, exchange: Exchange) -> None:
        """Tell the client of a call once that it waits behind a silent server."""
        if exchange not in self._told:
            self._told.add(exchange)
            exchange.ctx.log("notice", self._described(exchange))

    def _described(self, exchange: Exchange) -> str:
        """Return how long the server has been silent, and what it has got before a call."""
        now = trio.current_time()
        text = f"the server has given no sign of life for {now - self._server.heard_at:.0f} s"
        first = self._first() if self._exchanges.running else self._front
        if first is None or first is exchange:
            return text
        is_own = first.session == exchange.session
        # A name may say something about the other client, unless it is a tool's.
        what = what_is_called(first.request) if is_own or first.request.method == TOOLS_CALL else first.request.method
        since = f"which it got {now - first.since:.0f} s ago"
        given_up = "" if self._exchanges.running else " and whose client has given up"
        return f"{text}; before this call comes {what} of {'this' if is_own else 'another'} client, {since}{given_up}"

    def activity(self) -> Activity | None:
        """Return what the server does; None if no call has been in flight for long."""
        count = len(self._exchanges.running)
        calls = f"{count} call{'' if count == 1 else 's'} in flight"
        now = trio.current_time()
        quiet_s = now - self._server.heard_at
        if self.is_silent:
            return Activity(quiet_s, f"silent for {quiet_s:.0f} s, {calls}")
        if not count or (busy_s := now - self._first().since) < QUIET_S:
            return None
        return Activity(0.0, f"busy for {busy_s:.0f} s, {calls}, last sign of life {quiet_s:.0f} s ago")
