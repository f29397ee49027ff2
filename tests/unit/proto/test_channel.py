"""Frames over links: order, fairness, large frames, and what happens when the other end goes."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import pytest
import trio
import trio.testing

from proto.origin import Origin
from proto.wire import frames
from proto.wire.channel import Channel, Link, LinkClosed, ProtocolViolation, SocketLink, socket_pair
from proto.wire.frames import AnyFrame, Call, Part, Ping, Progress, Return
from proto.wire.nng_link import NngLink, stream_pair
from tests.memory_link import memory_link

Pair = Callable[[], tuple[Link, Link]]


def socket_links() -> tuple[Link, Link]:
    ours, theirs = socket_pair()
    return (
        SocketLink(ours.detach(), max_message_bytes=1 << 20),
        SocketLink(theirs.detach(), max_message_bytes=1 << 20),
    )


def nng_links() -> tuple[Link, Link]:
    ours, theirs = stream_pair()
    return (
        NngLink.inherited(ours.detach(), max_message_bytes=1 << 20),
        NngLink.inherited(theirs.detach(), max_message_bytes=1 << 20),
    )


@pytest.fixture(
    params=[lambda: memory_link(4), memory_link, socket_links, nng_links], ids=["memory-4", "memory", "socket", "nng"]
)
def pair(request: pytest.FixtureRequest) -> Pair:
    made: Pair = request.param
    return made


def body(size: int) -> bytes:
    return frames.pack_body(b"x" * size)


async def take(channel: Channel, n: int) -> list[AnyFrame]:
    return [await channel.receive() for _ in range(n)]


async def test_frames_of_one_call_keep_their_order_whatever_their_size(pair: Pair) -> None:
    a, b = (Channel(link) for link in pair())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(a.run_sender)
        sizes = [10, 300_000, 20, 100_000, 5, 70_000]
        for size in sizes:
            a.post(Return(7, body(size)))
        assert await take(b, len(sizes)) == [Return(7, body(size)) for size in sizes]
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


async def test_frames_that_arrived_before_the_close_are_received(pair: Pair) -> None:
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


class Endless(Link):
    """There is always one more message: a part of what never ends."""

    began = False

    def try_send(self, message: bytes) -> bool:
        return True

    def try_receive(self) -> bytes | None:
        data = bytes(frames.PART_BYTES) if self.began else HEAD
        self.began = True
        return frames.encode(Part(1, False, data))

    async def send(self, message: bytes) -> None: ...

    async def receive(self) -> bytes:
        raise AssertionError("there is always a message")

    def close(self) -> None: ...


async def test_end_that_sends_parts_without_end_leaves_others_their_turn() -> None:
    turns = 0

    async def count(scope: trio.CancelScope) -> None:
        nonlocal turns
        while turns < 100:
            turns += 1
            await trio.lowlevel.checkpoint()
        scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count, nursery.cancel_scope)
        await Channel(Endless()).receive()
    assert turns == 100


HEAD = frames.encode(Return(1, b""))


async def test_parts_take_no_more_memory_than_there_is_for_them() -> None:
    a, b = memory_link()
    channel = Channel(b)
    for n in range(frames.MAX_STREAMS + 1):
        a.try_send(frames.encode(Part(n, False, HEAD)))
    with pytest.raises(ProtocolViolation, match="at the same time"):
        await channel.receive()
    a, b = memory_link()
    channel = Channel(b)
    piece = frames.encode(Part(1, False, bytes(frames.PART_BYTES)))
    a.try_send(frames.encode(Part(1, False, HEAD)))
    for _ in range(frames.MAX_MESSAGE_BYTES // frames.PART_BYTES + 1):
        a.try_send(piece)
    with pytest.raises(ProtocolViolation, match="bytes together"):
        await channel.receive()


@pytest.mark.parametrize("part", [Part(1, False, b"x"), Part(1, False, b""), Part(1, True, bytes(1 << 17))])
async def test_all_parts_but_the_last_are_full(part: Part) -> None:
    a, b = memory_link()
    a.try_send(frames.encode(Part(1, False, HEAD)))
    a.try_send(frames.encode(part))
    with pytest.raises(ProtocolViolation, match="not the last, or too large"):
        await Channel(b).receive()


@pytest.mark.parametrize(
    "first",
    [
        Part(1, False, frames.encode(Ping(1))),
        Part(1, False, frames.encode(Part(2, False, HEAD))),
        Part(1, False, frames.encode(Return(1, b"x"))),
        Part(1, False, HEAD[:-1]),
        Part(1, True, HEAD),
    ],
    ids=["no body", "part", "body already there", "cut", "ends at once"],
)
async def test_parts_begin_with_a_frame_that_lacks_its_body(first: Part) -> None:
    a, b = memory_link()
    a.try_send(frames.encode(first))
    with pytest.raises(ProtocolViolation):
        await Channel(b).receive()


async def test_large_body_is_passed_on_in_the_pieces_in_which_it_came() -> None:
    a, b = memory_link()
    c, d = memory_link()
    first, middle, onward, last = Channel(a), Channel(b, passes_on=True), Channel(c), Channel(d)
    sent = Return(1, body(3_000_000))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.run_sender)
        nursery.start_soon(onward.run_sender)
        first.post(sent)
        frame = await middle.receive()
        passed: object = frames.body_of(frame)
        assert isinstance(passed, frames.Pieces)
        assert bytes(passed) == sent.body
        onward.post(frame)
        assert onward.held_bytes < len(sent.body) + 2000
        assert await last.receive() == sent
        await onward.flush()
        assert [each.held_bytes for each in (first, middle, onward, last)] == [0, 0, 0, 0]
        nursery.cancel_scope.cancel()


async def test_more_large_frames_than_may_be_in_parts_at_once_arrive_one_after_the_other(pair: Pair) -> None:
    a, b = (Channel(link) for link in pair())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(a.run_sender)
        sent = [Return(n, body(frames.PART_BYTES + n)) for n in range(1, 3 * frames.MAX_STREAMS)]
        for frame in sent:
            a.post(frame)
        received = [frame for frame in await take(b, len(sent)) if isinstance(frame, Return)]
        assert sorted(received, key=lambda frame: frame.id) == sent
        a.close()
        b.close()


async def test_a_peer_that_does_not_read_is_not_read_so_that_answers_do_not_pile_up() -> None:
    theirs, ours = memory_link(4)
    kernel = Channel(ours, frames.from_service, max_backlog_bytes=100_000)
    question = frames.encode(Call(1, "no.such", body(1), 1000, Origin(""), 1))
    answer = Return(1, body(10_000))
    answered = 0

    async def answers() -> None:
        nonlocal answered
        while True:
            await kernel.receive()
            kernel.post(answer)
            kernel.post(Progress(1, 0.5))
            answered += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(kernel.run_sender)
        nursery.start_soon(answers)
        while theirs.try_send(question):
            await trio.testing.wait_all_tasks_blocked()
        behind = kernel.is_behind
        assert behind
        assert answered < 30
        # It reads, and is read again: only frames that it can do without were lost.
        got = 0
        while got < answered:
            got += isinstance(frames.decode(await theirs.receive()), Return)
            await trio.testing.wait_all_tasks_blocked()
        assert kernel.is_behind != behind
        assert theirs.try_send(question)
        nursery.cancel_scope.cancel()


async def test_message_of_no_bytes_is_a_violation_or_the_end(pair: Pair) -> None:
    a, b = pair()
    await a.send(b"")
    with pytest.raises((ProtocolViolation, LinkClosed)):
        await Channel(b).receive()
    a.close()
    b.close()


async def test_cancelled_receives_lose_no_frame(pair: Pair) -> None:
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
from proto.wire.channel import Channel
from proto.wire.frames import Call, Return
from proto.wire.channel import LinkClosed, SocketLink

async def main() -> None:
    link = SocketLink(int(sys.argv[1]), max_message_bytes=1 << 20)
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
    channel = Channel(SocketLink(ours.detach(), max_message_bytes=1 << 20))
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(channel.run_sender)
            for n in range(1, 200):
                params = body(200_000 if n % 50 == 0 else 10)
                channel.post(Call(n, "echo", params, 1000, Origin("client"), 1))
                answer = await channel.receive()
                assert isinstance(answer, Return)
                assert (answer.id, answer.body) == (n, params)
            process.kill()
            with pytest.raises(LinkClosed):
                await channel.receive()
            channel.close()
    await process.wait()


async def test_frames_sent_before_closing_arrive_even_if_the_sender_left_messages_unread() -> None:
    one, other = socket_links()
    assert other.try_send(b"never read")
    assert one.try_send(b"last words")
    one.close()
    assert await other.receive() == b"last words"
    with pytest.raises(LinkClosed):
        await other.receive()
    with pytest.raises(LinkClosed):
        other.try_send(b"too late")
    other.close()


async def test_a_message_over_the_limit_ends_the_link() -> None:
    ours, theirs = socket_pair()
    with theirs:
        link = SocketLink(ours.detach(), max_message_bytes=100)
        theirs.send(b"x" * 100)
        assert await link.receive() == b"x" * 100
        theirs.send(b"x" * 101)
        with pytest.raises(LinkClosed):
            await link.receive()
        link.close()
