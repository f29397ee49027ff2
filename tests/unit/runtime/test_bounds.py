"""What an honest service sends stays within the bounds of the protocol, whatever its handlers say."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import cast

import pytest
import trio
import trio.testing

from proto.errors import InvalidParams
from proto.origin import Origin
from proto.wire import frames
from proto.wire.channel import Channel, Link
from proto.wire.frames import Call, Cancel, Fault, Log, Pong, Progress
from proto.wire.launch import LaunchConfig
from services.runtime.calls import Outgoing, _Pending
from services.runtime.dispatch import ClientRequests
from services.runtime.handlers import Context, Environment
from tests.memory_link import memory_link


def both() -> tuple[Outgoing, Link]:
    ours, theirs = memory_link()
    return Outgoing(Channel(ours, frames.from_kernel), "honest", 1), theirs


def sent(theirs: Link) -> object:
    message = theirs.try_receive()
    assert message is not None
    return frames.from_service(message)


async def test_long_texts_are_cut() -> None:
    outgoing, theirs = both()
    ctx = Context(Call(1, "op", frames.pack_body({}), 1000, Origin("client"), 1, None, True), outgoing)
    ctx.log("info", "x" * 1_000_000)
    ctx.progress(1, 2, "x" * 1_000_000)
    assert sent(theirs) == Log("info", "x" * frames.TEXT_CHARS, 1)
    assert sent(theirs) == Progress(1, 1, 2, "x" * frames.TEXT_CHARS)


async def test_long_info_is_cut() -> None:
    outgoing, theirs = both()
    launch = LaunchConfig(
        service="honest", module="", generation=1, operations=(), parent_pid=0, data_dir="/", roots=()
    )
    env = Environment(launch, outgoing, cast(trio.Nursery, None), trio.Event(), AsyncExitStack())
    env.info(**{f"n{n}": "x" * 100_000 for n in range(1000)})
    outgoing.channel.post(Pong(1, 0, env.shown))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outgoing.channel.run_sender)
        pong = await Channel(theirs, frames.from_service).receive()
        assert isinstance(pong, Pong)
        assert len(pong.info) == frames.INFO_ENTRIES
        outgoing.channel.close()


async def test_a_call_without_a_deadline_has_weeks(autojump_clock: trio.testing.MockClock) -> None:
    outgoing, theirs = both()
    with trio.move_on_after(1):
        await outgoing.raw("op", frames.pack_body({}), Origin("a"), limit_s=1e12)
    call = sent(theirs)
    assert isinstance(call, Call)
    assert call.left_ms == frames.MAX_LEFT_MS
    assert isinstance(sent(theirs), Cancel)


async def test_parameters_larger_than_the_link_allows_are_refused_by_the_caller() -> None:
    outgoing, theirs = both()
    with pytest.raises(InvalidParams, match="parameters of more than"):
        await outgoing.raw("op", bytes(frames.MAX_MESSAGE_BYTES + 1), Origin("a"), limit_s=1)
    assert theirs.try_receive() is None


@pytest.mark.parametrize(
    "body", [{}, {"method": "x"}, {"method": 1, "params": {}}, {"method": "x", "params": []}, None]
)
async def test_question_without_its_fields_is_refused(body: object) -> None:
    outgoing, theirs = both()
    outgoing.waiting[7] = _Pending(cast(ClientRequests, object()))
    await outgoing.ask(Call(1, frames.ASK_CLIENT, frames.pack_body(body), 1000, Origin("kernel"), 0, 7))
    answer = sent(theirs)
    assert isinstance(answer, Fault)
    assert answer.failure.kind == "invalid_params"
    assert outgoing.waiting.keys() == {7}
