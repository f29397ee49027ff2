"""One client's flood leaves the others their turns, and the work in flight is bounded."""

from __future__ import annotations

import math

import msgspec
import pytest
import trio
import trio.testing

from services.front.transport import fair_limits
from services.front.transport.fair_limits import BodyBudget, FairLimiter
from tests.unit.front.httpwire import HttpWire, Reply, served


class Asking:
    """Requests that note when they begin."""

    def __init__(self, limiter: FairLimiter, nursery: trio.Nursery) -> None:
        self.limiter = limiter
        self.nursery = nursery
        self.begun: list[str] = []
        self.at_once = 0
        self.most = 0

    async def ask(self, client: str, takes_s: float) -> None:
        token = await self.limiter.acquire(client)
        try:
            self.begun.append(client)
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            await trio.sleep(takes_s)
        finally:
            self.at_once -= 1
            self.limiter.release(token)

    def start(self, client: str, takes_s: float) -> None:
        self.nursery.start_soon(self.ask, client, takes_s)


async def test_an_occasional_client_precedes_the_rest_of_a_flood(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        asking = Asking(FairLimiter(each=4, total=6, quick_s=math.inf), nursery)
        for _ in range(100):
            asking.start("flood", 0.01)
        await trio.sleep(0.001)
        for other in "abc":
            asking.start(other, 0.01)
    assert asking.most == 6
    assert max(asking.begun.index(other) for other in "abc") < 12
    assert len(asking.begun) == 103
    assert asking.limiter._held == {}
    assert not asking.limiter._by_client
    assert not asking.limiter._waiting


async def test_several_floods_share_the_limit_fairly(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        asking = Asking(FairLimiter(each=3, total=3, quick_s=math.inf), nursery)
        for client in "abcd":
            for _ in range(30):
                asking.start(client, 0.01)
    third = asking.begun[30:60]
    assert all(6 <= third.count(client) <= 9 for client in "abcd"), third


async def test_a_long_call_counts_for_a_moment_only(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        asking = Asking(FairLimiter(each=2, total=2, quick_s=0.05), nursery)
        for _ in range(20):
            asking.start("patient", 1000)
        await trio.sleep(0.6)
        assert len(asking.begun) == 20
        began = trio.current_time()
        await asking.ask("other", 0)
        assert trio.current_time() - began <= 0.05


async def test_a_client_that_leaves_while_waiting_passes_its_turn_on(autojump_clock: trio.testing.MockClock) -> None:
    limiter = FairLimiter(each=1, total=1, quick_s=math.inf)
    async with trio.open_nursery() as nursery:
        asking = Asking(limiter, nursery)
        asking.start("a", 1)
        await trio.sleep(0.1)
        with trio.move_on_after(0.2):
            await asking.ask("b", 1)
        assert not limiter._waiting
        with trio.CancelScope() as gone:

            async def withdraw_and_call() -> None:
                # Withdraw it and give it its turn in the same step.
                gone.cancel()
                limiter.release(next(iter(limiter._held)))

            nursery.start_soon(withdraw_and_call)
            await asking.ask("d", 1)
        await asking.ask("c", 1)
    assert asking.begun == ["a", "c"]
    assert limiter._held == {}
    assert not limiter._by_client
    assert not limiter._waiting


def test_bodies_over_the_limit_are_refused_to_the_client_with_the_most() -> None:
    bodies = BodyBudget(limit=100)
    assert all(bodies.reserve("flood", 20) for _ in range(5))
    assert not bodies.reserve("flood", 1)
    assert bodies.reserve("other", 50)
    assert not bodies.reserve("other", 20)
    assert bodies.reserve("flood", -100)
    assert bodies.reserve("other", 20)


async def test_one_client_has_at_most_its_share_of_requests_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_limits, "BodyBudget", lambda: BodyBudget(10 * 1024 * 1024))
    async with served() as (http, *_):
        other = HttpWire(http.port)
        await http.initialize()
        await other.initialize()
        text = "x" * (4 * 1024 * 1024)
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        large = msgspec.json.encode({**body, "params": {"name": "t_pair", "arguments": {"text": text}}})
        small = msgspec.json.encode({**body, "params": {"name": "t_string", "arguments": {}}})
        replies: list[Reply] = []

        async def send() -> None:
            replies.append(await http.request(body=large, headers=http.session))

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(send)
            while len(replies) < 10:
                assert (await other.request(body=small, headers=other.session)).status == 200
        statuses = [reply.status for reply in replies]
        assert set(statuses) == {200, 503}
        assert all(b"1000" in reply.body for reply in replies if reply.status == 200)


async def test_long_bodies_of_one_client_wait_in_their_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a front need not have memory for all of them: none is refused."""
    monkeypatch.setattr(fair_limits, "BodyBudget", lambda: BodyBudget(17 * 1024 * 1024))
    monkeypatch.setattr(fair_limits, "READ_S", 60.0)
    async with served() as (http, *_):
        await http.initialize()
        call = {"name": "t_pair", "arguments": {"text": "x" * (4 * 1024 * 1024)}}
        large = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call})
        statuses: list[int] = []

        async def send() -> None:
            statuses.append((await http.request(body=large, headers=http.session)).status)

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(send)
        assert statuses == [200] * 8
