"""Whatever a service sends, its own generation pays for it: the kernel lives, and so does every other service."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from kernel.router.ports import CauseKind
from proto.errors import Forbidden
from proto.operation import operation_of
from proto.origin import Origin
from proto.wire.frames import Fault
from tests.fuzz.frames.hostile import BROKEN_TEXT, DEEP, VIOLATIONS, call, message
from tests.fuzz.frames.memory import Defects, Kernel, kernel
from tests.fuzz.frames.run import fuzz
from tests.unit.router.ops import Say
from tests.unit.supervisor.stage import Act, Actor

pytestmark = pytest.mark.usefixtures("autojump_clock")


class Client:
    """A client that accepts all messages."""

    def progress(self, done: float, total: float | None, message: str | None) -> None: ...

    def log(self, level: str, logger: str, message: str) -> None: ...

    async def ask(self, question: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        return question


async def send(actor: Actor, *messages: bytes) -> None:
    for each in messages:
        actor.link.try_send(each)
    await trio.testing.wait_all_tasks_blocked()


async def answers(k: Kernel) -> bool:
    """Whether the kernel still passes calls on."""
    heard = await k.router.call(operation_of(Say), Say(text="still there?"), origin=Origin("client"))
    return isinstance(heard, dict) and heard["text"] == "heard"


@pytest.mark.parametrize("messages", VIOLATIONS.values(), ids=VIOLATIONS)
async def test_violation_ends_the_generation_and_nothing_else(
    messages: list[bytes], autojump_clock: trio.testing.MockClock
) -> None:
    async with kernel() as k:
        with Defects() as defects:
            k.acted.holds = True
            await send(k.acted.stage.actor("relay"), *messages)
            with trio.fail_after(60):
                await k.ready(["relay"], after=1)
            k.acted.holds = False
            assert k.report("relay").deaths == {CauseKind.PROTOCOL: 1}
            assert k.report("speaker").generation == k.report("speaker-2").generation == 1
            assert await answers(k)
        assert defects.found == []


@pytest.mark.parametrize("before_hello", [message(2, {}), message(10, "mcp.x", {}), message(4, 1, b""), message(15)])
async def test_first_word_of_a_service_is_its_hello(
    before_hello: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    async with kernel() as k:
        k.acted.stage.act = rude(before_hello, k.acted.stage.act)
        k.acted.stage.actor("relay").die(number=9)
        with trio.fail_after(60):
            await k.ready(["relay"], after=2)
        assert k.report("relay").deaths == {CauseKind.SIGNAL: 1, CauseKind.PROTOCOL: 1}


def rude(first: bytes, later: Act) -> Act:
    async def act(actor: Actor) -> None:
        if actor.launch.generation > 2:
            await later(actor)
        actor.link.try_send(first)
        await trio.sleep_forever()

    return act


@pytest.mark.parametrize("params", [BROKEN_TEXT, DEEP[:500] + b"\xc0", b"\xc0"])
async def test_parameters_that_cannot_be_read_are_the_callers_failure(
    params: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    # `once_with` has them looked at when the service that was called dies.
    async with kernel() as k:
        k.acted.holds = True
        relay = k.acted.stage.actor("relay")
        await send(relay, message(3, 1, "test.put", params, 1000, ("",), 1, None, False))
        for speaker in ("speaker", "speaker-2"):
            k.acted.stage.actor(speaker).die(number=11)
        await k.ready(["speaker", "speaker-2"], after=1)
        (answer,) = k.acted.received[relay.pid]
        assert answer.id == 1
        assert k.report("relay").generation == 1


async def test_hostile_service_calls_nothing_that_does_not_name_it(autojump_clock: trio.testing.MockClock) -> None:
    async with kernel() as k:
        speaker = k.acted.stage.actor("speaker")
        await send(speaker, call(1, "test.secret", {"text": "x"}), call(2, "test.write", {"text": "x"}))
        failures = [frame.failure.kind for frame in k.acted.received[speaker.pid] if isinstance(frame, Fault)]
        assert failures == [Forbidden.kind] * 2


async def test_the_kernel_survives_a_random_stream_of_all_frames(autojump_clock: trio.testing.MockClock) -> None:
    deaths = await fuzz(2000, 15)
    assert deaths[CauseKind.PROTOCOL] > 5
    assert deaths.keys() <= {CauseKind.PROTOCOL, CauseKind.STOPPED}
