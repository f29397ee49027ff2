"""Injected faults: which frames are lost or late, and that nothing else changes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from proto.wire import frames
from proto.wire.channel import Channel
from proto.wire.frames import AnyFrame, Ping, Pong, Return
from tests.chaos.links import Injector, KernelChaos
from tests.memory_link import memory_link

pytestmark = pytest.mark.usefixtures("autojump_clock")


@asynccontextmanager
async def linked(*planned: KernelChaos) -> AsyncIterator[tuple[Channel, Channel]]:
    """Both ends of a link to `echo` with these faults: the kernel's, and the service's."""
    ours, theirs = memory_link()
    injector = Injector()
    for each in planned:
        injector.plan(each)
    kernel, service = injector.channel_to("echo", ours), Channel(theirs, frames.decode)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kernel.run_sender)
        nursery.start_soon(service.run_sender)
        yield kernel, service
        nursery.cancel_scope.cancel()


async def read(channel: Channel, count: int) -> list[AnyFrame]:
    return [await channel.receive() for _ in range(count)]


async def test_the_requested_number_of_frames_of_a_kind_is_lost() -> None:
    lose = KernelChaos(service="echo", fault="drop", direction="from", frame="return", count=2)
    async with linked(lose) as (kernel, service):
        sent: list[AnyFrame] = [Return(1, b"\x01"), Pong(1, 0), Return(2, b"\x02"), Return(3, b"\x03")]
        for frame in sent:
            service.post(frame)
        assert await read(kernel, 2) == [sent[1], sent[3]]


async def test_delayed_frames_arrive_in_order_and_once() -> None:
    late = KernelChaos(service="echo", fault="delay", direction="to", count=2, delay_ms=700)
    async with linked(late) as (kernel, service):
        began = trio.current_time()
        for n in range(5):
            kernel.post(Ping(n))
        assert await read(service, 5) == [Ping(n) for n in range(5)]
        assert trio.current_time() - began == pytest.approx(0.7)
        kernel.post(Ping(5))
        assert await service.receive() == Ping(5)
        assert trio.current_time() - began == pytest.approx(0.7)


async def test_other_services_and_withdrawn_faults_are_left_alone() -> None:
    other = KernelChaos(service="yaml", fault="drop", direction="from", count=9)
    lose = KernelChaos(service="echo", fault="drop", direction="from", count=9)
    clear = KernelChaos(service="echo", fault="clear")
    async with linked(other, lose, clear) as (kernel, service):
        service.post(Pong(1, 0))
        assert await kernel.receive() == Pong(1, 0)
