"""A response that is a stream holds back who writes to it while its client does not read."""

from __future__ import annotations

import trio
import trio.testing
from starlette.types import Message

from services.front.transport.exchange import BACKLOG, Exchange


class Reader:
    """A client that reads when the test says so."""

    def __init__(self) -> None:
        self.body = b""
        self.reads = trio.Event()

    async def receive(self) -> Message:
        await trio.sleep_forever()
        raise AssertionError

    async def send(self, message: Message) -> None:
        await self.reads.wait()
        self.body += message.get("body", b"")


async def test_notices_beyond_the_backlog_are_dropped_until_the_client_reads() -> None:
    reader = Reader()
    exchange = Exchange(reader.receive, reader.send, [])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange.listen)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(10 * BACKLOG):
            exchange.offer(b"<%d>" % number)
        reader.reads.set()
        await trio.testing.wait_all_tasks_blocked()
        assert reader.body.count(b"data: ") == BACKLOG
        exchange.offer(b"<later>")
        exchange.end()
    assert b"<later>" in reader.body


async def test_a_handler_waits_for_room() -> None:
    reader = Reader()
    exchange = Exchange(reader.receive, reader.send, [])
    count = 3 * BACKLOG
    sent = 0

    async def write() -> None:
        nonlocal sent
        for number in range(count):
            await exchange.room()
            exchange.send(b"<%d>" % number)
            sent += 1
        exchange.end()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange.listen)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(write)
        await trio.testing.wait_all_tasks_blocked()
        assert sent == BACKLOG
        reader.reads.set()
    assert reader.body.count(b"data: ") == count
