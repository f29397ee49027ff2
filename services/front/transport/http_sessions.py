"""Sessions of clients with a handshake over HTTP: how many there are, how long they may idle, what each has in flight.

The SDK keeps the sessions themselves.  Clients seldom say that they leave, and a kernel runs for weeks: a session that
was not used for four hours is ended, and one more than `MAX_SESSIONS` ends the one that idled longest.  Its client is
answered 404 and makes a new one, as the protocol has it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import trio
from mcp.server.connection import Connection

from services.front import scratchpad
from services.front.transport.access import current_key

MAX_SESSIONS = 512
IDLE_S = 4 * 3600.0
_SWEEP_S = 60.0

_log = logging.getLogger("linckia.gateway")


class HttpSession:
    """One session: its connection, and its calls on the fast path by id."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.scratchpad = scratchpad.current.get()
        self.key = current_key.get()
        self.calls: dict[int | str, trio.CancelScope] = {}
        self.in_flight = 0
        self.used_at = trio.current_time()

    def __enter__(self) -> HttpSession:
        self.in_flight += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.in_flight -= 1
        self.used_at = trio.current_time()


class Sessions:
    """The sessions of one surface, by id.

    Args:
        end: ends a session with the SDK, by id.
    """

    def __init__(
        self, end: Callable[[str], Awaitable[None]], *, limit: int = MAX_SESSIONS, idle_s: float = IDLE_S
    ) -> None:
        self._end = end
        self._limit = limit
        self._idle_s = idle_s
        self._by_id: dict[str, HttpSession] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, session_id: str | None) -> HttpSession | None:
        return None if session_id is None else self._by_id.get(session_id)

    def opened(self, connection: Connection) -> None:
        """A session was established; it is forgotten when its connection ends."""
        session_id = connection.session_id
        if session_id is None:
            return
        self._by_id[session_id] = HttpSession(connection)
        connection.exit_stack.callback(self._by_id.pop, session_id, None)

    async def make_room(self) -> None:
        """End the session that idled longest, if there are as many as may be."""
        if len(self._by_id) < self._limit:
            return
        idle = [(session.used_at, session_id) for session_id, session in self._by_id.items() if not session.in_flight]
        if idle:
            await self._end_one(min(idle)[1], "to make room for another")

    async def sweep(self) -> None:
        """End what idled too long, for as long as this runs."""
        while True:
            await trio.sleep(min(_SWEEP_S, self._idle_s))
            oldest = trio.current_time() - self._idle_s
            for session_id, session in list(self._by_id.items()):
                if not session.in_flight and session.used_at <= oldest:
                    await self._end_one(session_id, f"after idling for {self._idle_s:.0f} s")

    async def _end_one(self, session_id: str, why: str) -> None:
        _log.info("ending an HTTP session %s", why)
        await self._end(session_id)
        self._by_id.pop(session_id, None)
