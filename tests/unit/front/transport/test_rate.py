"""How often a client may call, and that it is each client's own concern."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from proto.errors import Overloaded
from proto.grants import Rate, parse_rate
from proto.operation import operation_of
from proto.origin import Origin
from proto.wire.channel import Channel
from services.front import rate, scratchpad
from services.front.operations.steps import ScratchpadList
from services.front.protocol.calls import LinkDispatcher
from services.front.rate import MAX_CLIENTS, Limits
from services.runtime.calls import Outgoing
from tests.memory_link import memory_link


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("600/min", Rate(600, 100)),
        ("10/s burst 5", Rate(600, 5)),
        ("60/h", Rate(1, 1)),
        ("120/min burst 1", Rate(120, 1)),
    ],
)
def test_a_rate_is_parsed(text: str, meant: Rate) -> None:
    assert parse_rate(text) == meant


@pytest.mark.parametrize(
    "text", ["", "600", "0/min", "-1/s", "1.5/s", "10/day", "10/s burst 0", "9999999999/s", "1/s x"]
)
def test_an_invalid_rate_is_refused_with_the_correct_form(text: str) -> None:
    with pytest.raises(ValueError, match="600/min"):
        parse_rate(text)


def calls(limits: Limits, key: str, count: int, allowed: Rate) -> int:
    """How many of so many calls were let through."""
    limit = limits.of(key, key, allowed)
    assert limit is not None
    done = 0
    for _ in range(count):
        try:
            limit.call("x", Origin("client"))
            done += 1
        except Overloaded:
            pass
    return done


async def test_a_burst_and_then_the_rate(autojump_clock: trio.testing.MockClock) -> None:
    limits, allowed = Limits(), Rate(60, 10)
    assert calls(limits, "a", 100, allowed) == 10
    await trio.sleep(5)
    assert calls(limits, "a", 100, allowed) == 5
    await trio.sleep(3600)
    assert calls(limits, "a", 100, allowed) == 10


async def test_a_client_that_waits_for_the_announced_time_is_admitted(autojump_clock: trio.testing.MockClock) -> None:
    limits, allowed = Limits(), Rate(7, 1)
    calls(limits, "a", 1, allowed)
    limit = limits.of("a", "ci", allowed)
    assert limit is not None
    with pytest.raises(Overloaded, match=r"a may make 7 calls a minute, 1 at once; try again in 8.6 s") as caught:
        limit.call("x", Origin("client"))
    assert caught.value.failure.retry_after_ms is not None
    await trio.sleep(caught.value.failure.retry_after_ms / 1000)
    limit.call("x", Origin("client"))


async def test_the_flood_of_one_client_does_not_affect_others(autojump_clock: trio.testing.MockClock) -> None:
    limits, allowed = Limits(), Rate(60, 10)
    assert calls(limits, "a", 1000, allowed) == 10
    assert calls(limits, "b", 10, allowed) == 10
    assert limits.of("operator", "", None) is None


async def test_requests_are_many_more_than_calls_before_they_are_refused(
    autojump_clock: trio.testing.MockClock,
) -> None:
    limit = Limits().of("a", "a", Rate(60, 10))
    assert limit is not None
    waits = [limit.request() for _ in range(100)]
    assert waits.index(next(wait for wait in waits if wait)) == 50
    await trio.sleep(waits[-1])
    assert limit.request() == 0.0


async def test_another_rate_is_in_force_at_once_and_memory_is_bounded(autojump_clock: trio.testing.MockClock) -> None:
    limits = Limits()
    assert calls(limits, "a", 5, Rate(1, 1)) == 1
    assert calls(limits, "a", 5, Rate(1, 3)) == 3
    for number in range(2 * MAX_CLIENTS):
        limits.of(str(number), "", Rate(1, 1))
    assert len(limits._by_key) == MAX_CLIENTS


async def test_a_limit_counts_the_calls_of_its_own_task_alone(autojump_clock: trio.testing.MockClock) -> None:
    dispatcher = LinkDispatcher(Outgoing(Channel(memory_link()[0]), "front", 1), scratchpad.HANDLERS)

    async def call() -> None:
        await dispatcher.call(operation_of(ScratchpadList), ScratchpadList(), origin=Origin("client"))

    async def limited() -> None:
        rate.current.set(Limits().of("a", "", Rate(1, 1)))
        await call()
        with pytest.raises(Overloaded):
            await call()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(limited)
    for _ in range(10):
        await call()
