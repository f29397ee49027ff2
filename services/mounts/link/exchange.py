"""Calls of clients that a server is working on, and which of them it asks something for.

MCP does not say for which call a server asks (`sampling/createMessage` and so on), so it is only known if all calls in
flight are of one session.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
import trio
from msgspec import UNSET

from proto.mounts import PROGRESS_S, MountRequest
from services.mounts.link import messages
from services.mounts.link.messages import Id, JsonObject
from services.mounts.link.peer import Pending
from services.runtime.handlers import Context

PARKED_S = 600.0
"""How long the answer to a question of a parked call may take."""
PARKED_MOST = 64

TURN_S = 30.0
"""How long a session may make calls while others wait for their turn."""

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


def session_key(ctx: Context) -> str:
    """Return a name for the session of a call; a call without one has a session of its own."""
    return ctx.session or f"call {ctx.id}"


def what_is_called(request: MountRequest) -> str:
    """Return the method of a request and the tool, prompt or URI, for messages."""
    return f"{request.method} {request.name}".strip()


class Exchange:
    """One call on a server.

    Attributes:
        since: when it was sent, on trio's clock.
        questions: the server's open questions to the client, by a name that nobody can guess.
    """

    def __init__(self, ctx: Context, request: MountRequest, pending: Pending) -> None:
        self.ctx = ctx
        self.request = request
        self.pending = pending
        self.session = session_key(ctx)
        self.since = 0.0
        self.questions: dict[str, Id] = {}
        self.parked_at: float | None = None
        self.key = ctx.session

    def progress(self, params: JsonObject) -> None:
        """Pass progress on to the client."""
        done, total, text = params.get("progress"), params.get("total"), params.get("message")
        if isinstance(done, int | float):
            self.ctx.progress(
                float(done),
                float(total) if isinstance(total, int | float) else None,
                text if isinstance(text, str) else None,
                interval_s=PROGRESS_S,
            )

    def adopt(self, ctx: Context, request: MountRequest) -> None:
        """Go on with the call in which the client has answered."""
        self.ctx, self.request, self.parked_at = ctx, request, None
        self.session = session_key(ctx)

    def ask(self, number: Id) -> str:
        """Note a question of the server; return its name."""
        name = secrets.token_hex(16)
        self.questions[name] = number
        self.pending.pause()
        return name

    def answered(self, name: str) -> bool:
        """Forget a question. Returns whether it was open."""
        if self.questions.pop(name, UNSET) is UNSET:
            return False
        self.pending.resume()
        return True


class Exchanges:
    """The calls in flight on one server, and those parked until the client has answered."""

    def __init__(self) -> None:
        self.running: dict[int, Exchange] = {}
        self.parked: dict[int, Exchange] = {}

    def asker(self) -> Exchange | None:
        """Return the call for which the server asks; None if this is unclear."""
        if len({exchange.session for exchange in self.running.values()}) != 1:
            return None
        return self.running[max(self.running)]

    def park(self, exchange: Exchange) -> Exchange | None:
        """Keep a call whose client was asked and will call again. Returns one that must make room, if any."""
        exchange.parked_at = trio.current_time()
        self.parked[exchange.pending.number] = exchange
        return next(iter(self.parked.values())) if len(self.parked) > PARKED_MOST else None

    def resumed(self, ctx: Context, request: MountRequest) -> tuple[Exchange, dict[str, JsonObject]] | None:
        """Return the call that a call's answers belong to, and those answers.

        It is parked, or about to be: its cancellation may arrive after the answers.
        """
        asking = {**self.parked, **{n: each for n, each in self.running.items() if each.request.modern}}
        if not request.answers or not asking:
            return None
        try:
            given = msgspec.json.decode(request.answers, type=dict[str, JsonObject])
        except msgspec.DecodeError:
            return None
        for number, exchange in asking.items():
            found = {name: given[name] for name in exchange.questions if name in given}
            if found and exchange.key == ctx.session and exchange.request.method == request.method:
                self.parked.pop(number, None)
                exchange.adopt(ctx, request)
                return exchange, found
        return None

    def overdue(self) -> list[Exchange]:
        """Return parked calls whose client has not called again."""
        now = trio.current_time()
        return [each for each in self.parked.values() if now - (each.parked_at or now) > PARKED_S]


class Turns:
    """Lets the calls of one session at a time through, once `strict` is set. Others queue, first come, first served.

    A session may make more calls while it has its turn, since one may need the other to finish; but not for ever.
    """

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self._inside: dict[str, int] = {}
        self._waiting: deque[tuple[str, trio.Event]] = deque()
        self._waiting_since = 0.0

    @asynccontextmanager
    async def turn(self, session: str, wait: Callable[[trio.Event], Awaitable[None]]) -> AsyncIterator[None]:
        """Wait for the turn, and have it while this context is active.

        Args:
            wait: waits for an event; may raise.
        """
        if not self._may_enter(session):
            entry = (session, trio.Event())
            self._waiting_since = self._waiting_since if self._waiting else trio.current_time()
            self._waiting.append(entry)
            try:
                await wait(entry[1])
            except BaseException:
                if entry in self._waiting:
                    self._waiting.remove(entry)
                else:
                    self._leave(session)
                raise
        else:
            self._inside[session] = self._inside.get(session, 0) + 1
        try:
            yield
        finally:
            self._leave(session)

    def _may_enter(self, session: str) -> bool:
        others = self._inside.keys() - {session}
        if not self.strict:
            return True
        is_urgent = self._waiting and trio.current_time() - self._waiting_since > TURN_S
        return not others and (not self._waiting or (session in self._inside and not is_urgent))

    def _leave(self, session: str) -> None:
        self._inside[session] -= 1
        if not self._inside[session]:
            del self._inside[session]
        while self._waiting and not (self.strict and self._inside.keys() - {self._waiting[0][0]}):
            entering, event = self._waiting.popleft()
            self._waiting_since = trio.current_time()
            self._inside[entering] = self._inside.get(entering, 0) + 1
            event.set()


def log_line(params: JsonObject) -> tuple[str, str]:
    """Return level and text of a log message of a server."""
    level, data = params.get("level"), params.get("data")
    text = data if isinstance(data, str) else messages.encode(data).decode()
    return (level if level in LEVELS else "info"), text
