"""A call whose link to the kernel is lost is not answered by the process that ends with it."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from proto.errors import LinckiaError, MaybeExecuted, Unavailable
from proto.origin import Origin
from proto.wire import frames
from proto.wire.channel import Channel
from services.runtime.calls import Outgoing
from tests.memory_link import memory_link


async def test_call_in_flight_is_not_answered_before_the_process_ends() -> None:
    ours, _theirs = memory_link()
    outgoing = Outgoing(Channel(ours, frames.from_kernel), "front", 1)
    answers: list[object] = []

    async def call() -> None:
        try:
            answers.append(await outgoing.raw("op", frames.pack_body({}), Origin("a"), limit_s=60))
        except LinckiaError as error:
            answers.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await trio.testing.wait_all_tasks_blocked()
        outgoing.channel.close()
        # As the loop of a service does when it notices: in this order, without a checkpoint.
        outgoing.lost()
        nursery.cancel_scope.cancel()
    assert answers == []


async def test_call_in_flight_may_have_been_executed(autojump_clock: trio.testing.MockClock) -> None:
    ours, _theirs = memory_link()
    outgoing = Outgoing(Channel(ours, frames.from_kernel), "front", 1)

    async def lose() -> None:
        outgoing.channel.close()
        outgoing.lost()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lose)
        with pytest.raises(MaybeExecuted):
            await outgoing.raw("op", frames.pack_body({}), Origin("a"), limit_s=60)
    with pytest.raises(Unavailable):
        await outgoing.raw("op", frames.pack_body({}), Origin("a"), limit_s=60)
