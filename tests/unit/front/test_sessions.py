"""Sessions over HTTP are limited in number and age, and one in use is never ended."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from mcp.server.connection import Connection, NotifyOnlyOutbound

from services.front.transport.http_sessions import Sessions
from tests.unit.front.httpwire import HttpWire, served


class Fake:
    """Sessions over connections without a client, and which were ended."""

    def __init__(self, limit: int = 3, idle_s: float = 100.0) -> None:
        self.ended: list[str] = []
        self.sessions = Sessions(self.end, limit=limit, idle_s=idle_s)

    async def end(self, session_id: str) -> None:
        self.ended.append(session_id)

    def open(self, session_id: str) -> Connection:
        outbound = NotifyOnlyOutbound(None)  # type: ignore[arg-type]  # nothing is sent
        connection = Connection(outbound, protocol_version="2025-11-25", session_id=session_id)
        self.sessions.opened(connection)
        return connection


async def test_room_is_made_by_ending_the_one_that_idled_longest(autojump_clock: trio.testing.MockClock) -> None:
    fake = Fake()
    for name in "abc":
        fake.open(name)
        await trio.sleep(1)
    session = fake.sessions.get("a")
    assert session is not None
    with session:
        await trio.sleep(1)
    await fake.sessions.make_room()
    assert fake.ended == ["b"]
    await fake.sessions.make_room()
    assert fake.ended == ["b"]


async def test_one_in_use_is_not_ended(autojump_clock: trio.testing.MockClock) -> None:
    fake = Fake(limit=1, idle_s=10)
    fake.open("a")
    session = fake.sessions.get("a")
    assert session is not None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fake.sessions.sweep)
        with session:
            await trio.sleep(1000)
            await fake.sessions.make_room()
            assert fake.ended == []
        await trio.sleep(21)
        assert fake.ended == ["a"]
        nursery.cancel_scope.cancel()


async def test_a_session_is_forgotten_with_its_connection() -> None:
    fake = Fake()
    connection = fake.open("a")
    await connection.exit_stack.aclose()
    assert len(fake.sessions) == 0
    assert fake.sessions.get("a") is None


async def test_one_session_too_many_ends_the_idlest_for_its_client_and_for_the_sdk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    defaults = Sessions.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "limit", 2)
    async with served() as (http, *_):
        clients = [HttpWire(http.port) for _ in range(3)]
        for client in clients:
            await client.initialize()
        call = {"name": "t_string", "arguments": {}}
        statuses = [(await client.rpc("tools/call", call)).status for client in clients]
        assert statuses == [404, 200, 200]
        statuses = [(await client.rpc("tools/list")).status for client in clients]
        assert statuses == [404, 200, 200]
