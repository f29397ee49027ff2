"""Work on long messages takes turns, so that each pass of the event loop has at most one step of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from proto import ops
from proto.ops import Table
from services.echo.main import open_service
from services.front.protocol import dispatch as fast_path
from services.front.protocol import messages
from services.front.protocol.messages import LONG_BYTES, turn
from tests.unit.front.wire import connected, gateway_in_process


class Passes(trio.abc.Instrument):
    """Counts the passes of the event loop, and notes in which of them long steps were made."""

    def __init__(self) -> None:
        self.number = 0
        self.steps: list[int] = []

    def after_io_wait(self, timeout: float) -> None:
        self.number += 1

    def noting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(value: Any) -> Any:
            if memoryview(value).nbytes > LONG_BYTES:
                self.steps.append(self.number)
            return function(value)

        return noted


async def test_long_steps_have_a_pass_each_and_short_ones_do_not_wait() -> None:
    passes, short = Passes(), []
    trio.lowlevel.add_instrument(passes)

    async def work() -> None:
        for _ in range(3):
            await turn(LONG_BYTES + 1)
            passes.steps.append(passes.number)

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(work)
        before = passes.number
        await turn(LONG_BYTES)
        short.append(passes.number - before)
    trio.lowlevel.remove_instrument(passes)
    assert len(passes.steps) == 12
    # Others run in the pass between two steps.
    assert all(later - earlier >= 2 for earlier, later in zip(passes.steps, passes.steps[1:], strict=False))
    assert short == [0]


async def test_calls_with_long_messages_share_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = Passes()
    for module, name in ((messages, "_decode_envelope"), (fast_path, "_decode_params")):
        monkeypatch.setattr(module, name, passes.noting(getattr(module, name)))
    clients, text = 4, "x" * (4 * LONG_BYTES)
    table = Table(op for op in ops.load().values() if op.name == "mcp_echo")

    waiting, begin = 0, trio.Event()

    async with gateway_in_process(table, open_service) as (gateway, _):

        async def call() -> None:
            nonlocal waiting
            async with connected(gateway) as client:
                await client.initialize()
                waiting += 1
                if waiting == clients:
                    trio.lowlevel.add_instrument(passes)
                    begin.set()
                await begin.wait()
                await client.call("mcp_echo", {"message": text})
                assert (await client.receive())["result"]["structuredContent"] == {"message": text}

        async with trio.open_nursery() as nursery:
            for _ in range(clients):
                nursery.start_soon(call)
    trio.lowlevel.remove_instrument(passes)
    assert len(passes.steps) == 2 * clients
    assert len(set(passes.steps)) == len(passes.steps), passes.steps
