"""An attacker inside each service: it opens the real service, and from then on attacks the kernel.

`tests.hostile.storm` installs it. Its messages go directly into the link, bypassing the service's own limits, and need
no memory of their own: large bodies repeat one piece.
"""

from __future__ import annotations

import importlib
import os
import random
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from proto import ops
from proto.wire import frames
from proto.wire.frames import ASK_CLIENT, Event, Log, Part, Pong
from services.runtime.handlers import Environment, Handlers
from tests.fuzz.frames.hostile import VIOLATIONS, Hostile, call, message

MODULE: Final = "HOSTILE_MODULE"
"""The variable that names the module of the real service."""

SEED: Final = "HOSTILE_SEED"

ATTACK_S = 2.0
"""Duration of each kind of attack."""

LETHAL_S = 12.0
"""Time between two attacks that kill their service; more often would be a crash loop, which ends the attack."""

PIECE = b"\x90" * frames.PART_BYTES
"""Empty lists, which take the longest to decode and the most memory afterwards."""


@asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Open the real service, and start the attacker beside it."""
    module = importlib.import_module(os.environ[MODULE])
    async with module.open_service(env) as handlers:
        env.background.start_soon(Implant(env).run)
        yield handlers


class Implant:
    """All attacks; each continues until it is cancelled or its service dies."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._link = env.outgoing.channel._link  # a real service must not do this
        self._random = random.Random(f"{os.environ[SEED]} {env.service} {env.generation}")
        self._number = 1 << 30
        admitted = [operation.name for operation in ops.load().values() if operation.admits(env.service)]
        self._operations = [*admitted, "no.such"]
        self._lasting: tuple[Callable[[], Awaitable[None]], ...] = (
            self.send_whatever_may_be_sent,
            self.send_pongs,
            self.send_logs,
            self.send_events,
            self.make_calls,
            self.make_large_calls,
            self.answer_at_length,
            self.leave_bodies_unfinished,
            self.ask_clients,
            self.fill_log,
        )
        self._lethal = (self.break_the_protocol, self.hang, self.end)

    async def run(self) -> None:
        """Run one attack after the other, in an order chosen by the seed."""
        await trio.sleep(self._random.random() * ATTACK_S)
        lethal_at = trio.current_time() + LETHAL_S * (0.5 + self._random.random())
        while trio.current_time() < lethal_at:
            with trio.move_on_after(ATTACK_S):
                await self._random.choice(self._lasting)()
        await self._random.choice(self._lethal)()

    async def _send(self, *messages: bytes) -> None:
        await self._link.send_together(messages)
        await trio.lowlevel.checkpoint()

    async def _send_all(self, small: Iterable[bytes]) -> None:
        """Send in as few messages as possible."""
        together: list[bytes] = []
        size = 0
        for each in small:
            if size + len(each) + 4 > frames.PART_BYTES:
                await self._send(*together)
                together, size = [], 0
            together.append(each)
            size += len(each) + 4

    async def _send_body(self, stream: int, head: bytes, size: int, *, whole: bool = True) -> None:
        await self._send(frames.encode(Part(stream, False, head)))
        first = b"\xdd" + struct.pack(">I", size - 5) + PIECE
        await self._send(frames.encode(Part(stream, False, first[: frames.PART_BYTES])))
        piece = frames.encode(Part(stream, False, PIECE))
        for _ in range(size // frames.PART_BYTES - 2):
            await self._send(piece)
        await self._send(frames.encode(Part(stream, whole, PIECE)))

    def _numbers(self) -> Iterator[int]:
        while True:
            self._number += 1
            yield self._number

    def _call(self, op: str, params: object, **changes: object) -> bytes:
        return call(next(self._numbers()), op, params, caller=self._env.service, **changes)

    async def send_whatever_may_be_sent(self) -> None:
        while True:
            lawful = Hostile(self._random.randrange(1 << 30))
            await self._send_all(lawful.stream(10_000, violations=0))

    async def send_pongs(self) -> None:
        info = {f"{n}": "é" * frames.INFO_CHARS for n in range(frames.INFO_ENTRIES)}
        pong = frames.encode(Pong(0, 0, info))
        while True:
            await self._send(pong)

    async def send_logs(self) -> None:
        while True:
            await self._send_all(frames.encode(Log("info", "x", n)) for n in range(10_000))

    async def send_events(self) -> None:
        event = frames.encode(Event("mcp.resource_updated", frames.pack_body("file:///x")))
        while True:
            await self._send_all([event] * 10_000)
            await self._send_body(1000, message(10, "mcp.resource_updated", b""), 16 << 20)

    async def make_calls(self) -> None:
        odd: tuple[object, ...] = (
            {},
            [],
            None,
            "x",
            {"path": "/etc/shadow"},
            {"name": "x" * 60_000},
            [[]] * 10_000,
            {"service": "echo"},
        )
        while True:
            for op in self._random.sample(self._operations, len(self._operations)):
                await self._send_all(self._call(op, params, left_ms=2000) for params in odd for _ in range(20))

    async def make_large_calls(self) -> None:
        while True:
            op = self._random.choice(self._operations)
            size = self._random.choice((1, 16, 256)) << 20
            number = next(self._numbers())
            head = message(3, number, op, b"", 30_000, "", self._env.service, 1, None, False)
            await self._send_body(1001, head, size)

    async def answer_at_length(self) -> None:
        """Answer the in-flight calls of any caller at great length."""
        while True:
            number = next(iter(self._env.outgoing.waiting), self._random.randrange(1, 50))
            await self._send_body(1002, message(4, number, b""), 256 << 20)

    async def leave_bodies_unfinished(self) -> None:
        streams = range(2000, 2000 + frames.MAX_STREAMS - 8)
        for stream in streams:
            await self._send(frames.encode(Part(stream, False, message(4, 1, b""))))
        piece = frames.MAX_MESSAGE_BYTES // len(streams) // frames.PART_BYTES
        for stream in streams:
            for _ in range(piece):
                await self._send(frames.encode(Part(stream, False, PIECE)))
        await trio.sleep_forever()

    async def ask_clients(self) -> None:
        while True:
            parent = self._random.randrange(50)
            head = message(3, next(self._numbers()), ASK_CLIENT, b"", 5000, "", self._env.service, 1, parent, False)
            await self._send_body(1003, head, 1 << 20)

    async def fill_log(self) -> None:
        line = b"\x1b[2J\x1b]0;owned\x07" * 4000 + b"\n"
        while True:
            os.write(1, line)
            await trio.lowlevel.checkpoint()

    async def break_the_protocol(self) -> None:
        for each in self._random.choice(list(VIOLATIONS.values())):
            await self._send(each)
        await trio.sleep_forever()

    async def hang(self) -> None:
        time.sleep(20)  # noqa: ASYNC251  # it should be ended for this

    async def end(self) -> None:
        os._exit(3)
