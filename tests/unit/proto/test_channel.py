"""Frames over links: order, fairness, large frames, and what happens when the other end goes."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import pytest
import trio
import trio.testing
from msgspec import Raw

from proto import frames
from proto.channel import Channel, ProtocolViolation
from proto.frames import AnyFrame, Call, Ping, Progress, Return
from proto.link import Link, LinkClosed, NngLink, memory_link, socket_pair

Pair = Callable[[], tuple[Link, Link]]


def nng_pair() -> tuple[Link, Link]:
    ours, theirs = socket_pair()
    return (
        NngLink(ours.detach(), max_message_bytes=1 << 20),
        NngLink(theirs.detach(), max_message_bytes=1 << 20),
    )


@pytest.fixture(params=[lambda: memory_link(4), memory_link, nng_pair], ids=["memory-4", "memory", "nng"])
def pair(request: pytest.FixtureRequest) -> Pair:
    made: Pair = request.param
    return made


def body(size: int) -> Raw:
    return frames.pack_body(b"x" * size)


async def take(channel: Channel, n: int) -> list[AnyFrame]:
    return [await channel.receive() for _ in range(n)]


async def test_frames_of_one_call_keep_their_order_whatever_their_size(pair: Pair) -> None:
    a, b = (Channel(link) for link in pair())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(a.run_sender)
        sizes = [10, 300_000, 20, 100_000, 5, 70_000]
        for size in sizes:
            a.post(Progress(7, size, None, "x" * size))
        received = await take(b, len(sizes))
        assert [f.done for f in received if isinstance(f, Progress)] == sizes
        a.close()
        b.close()


async def test_small_frame_overtakes_a_large_one(pair: Pair) -> None:
    a, b = (Channel(link) for link in pair())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(a.run_sender)
        a.post(Return(1, body(20_000_000)))
        a.post(Ping(1))
        first, second = await take(b, 2)
        assert first == Ping(1)
        assert isinstance(second, Return)
        assert second.body == body(20_000_000)
        a.close()
        b.close()


async def test_large_frames_of_several_calls_share_the_link(pair: Pair) -> None:
    a, b = (Channel(link) for link in pair())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(a.run_sender)
        a.post(Return(1, body(10_000_000)))
        a.post(Return(2, body(200_000)))
        assert [f.id for f in await take(b, 2) if isinstance(f, Return)] == [2, 1]
        a.close()
        b.close()


async def test_flush_waits_until_everything_is_handed_over(pair: Pair) -> None:
    a, b = (Channel(link) for link in pair())
    received: list[AnyFrame] = []

    async def read() -> None:
        for _ in range(300):
            received.append(await b.receive())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(a.run_sender)
        for n in range(299):
            a.post(Ping(n))
        a.post(Return(1, body(1_000_000)))
        nursery.start_soon(read)
        await a.flush()
        while len(received) < 300:
            await trio.lowlevel.checkpoint()
        assert received[:299] == [Ping(n) for n in range(299)]
        a.close()
        b.close()


async def test_what_arrived_before_the_close_is_received(pair: Pair) -> None:
    a, b = (Channel(link) for link in pair())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(a.run_sender)
        a.post(Ping(1))
        assert await b.receive() == Ping(1)
        a.close()
        with pytest.raises(LinkClosed):
            await b.receive()
        with pytest.raises(LinkClosed):
            b.post(Ping(2))
        b.close()


async def test_closing_wakes_the_tasks_that_wait_at_this_end(pair: Pair) -> None:
    a, b = (Channel(link) for link in pair())

    async def wait() -> None:
        with pytest.raises(LinkClosed):
            await a.receive()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        nursery.start_soon(a.run_sender)
        await trio.testing.wait_all_tasks_blocked(0.01)
        a.close()
    b.close()


async def test_random_bytes_are_a_violation_not_a_crash() -> None:
    a, b = memory_link()
    channel = Channel(b)
    a.try_send(b"\x93\xff\x00garbage")
    with pytest.raises(ProtocolViolation):
        await channel.receive()


async def test_cancelled_receives_lose_nothing(pair: Pair) -> None:
    a, b = (Channel(link) for link in pair())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(a.run_sender)
        received: list[AnyFrame] = []
        for n in range(200):
            a.post(Ping(n))
            with trio.move_on_after(0 if n % 2 else math.inf):
                received.append(await b.receive())
        while len(received) < 200:
            received.append(await b.receive())
        assert received == [Ping(n) for n in range(200)]
        a.close()
        b.close()


_CHILD = """
import sys, trio
from proto.channel import Channel
from proto.frames import Call, Return
from proto.link import LinkClosed, NngLink

async def main() -> None:
    link = NngLink(int(sys.argv[1]), max_message_bytes=1 << 20)
    channel = Channel(link)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.run_sender)
        try:
            while True:
                frame = await channel.receive()
                assert isinstance(frame, Call)
                channel.post(Return(frame.id, frame.params))
        except LinkClosed:
            nursery.cancel_scope.cancel()

trio.run(main)
"""


async def test_link_crosses_processes_and_its_end_is_seen_when_the_process_is_killed() -> None:
    ours, theirs = socket_pair()
    process = await trio.lowlevel.open_process(
        [sys.executable, "-c", _CHILD, str(theirs.fileno())], pass_fds=[theirs.fileno()]
    )
    theirs.close()
    channel = Channel(NngLink(ours.detach(), max_message_bytes=1 << 20))
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(channel.run_sender)
            for n in range(1, 200):
                params = body(200_000 if n % 50 == 0 else 10)
                channel.post(Call(n, "echo", params, 1000, "", "client", 1))
                answer = await channel.receive()
                assert isinstance(answer, Return)
                assert (answer.id, answer.body) == (n, params)
            process.kill()
            with pytest.raises(LinkClosed):
                await channel.receive()
            channel.close()
    await process.wait()
