"""Which request is refused after deaths of its service: the one that it dies of, and no innocent beside it."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from kernel.router import quarantine
from kernel.router.generation import RoutedCall
from kernel.router.lane import ALONE_S
from kernel.router.ports import Cause
from kernel.router.quarantine import QUARANTINE_S
from proto.errors import (
    Executed,
    Kind,
    LinckiaError,
    Quarantined,
)
from proto.operation import Operation, operation_of
from proto.origin import Origin
from tests.unit.router.ops import Say
from tests.unit.router.rig import CRASHED, KILLED, STOPPED, call, rig


async def test_suspect_is_not_convicted_of_what_another_call_did(autojump_clock: trio.testing.MockClock) -> None:
    async with rig() as r, trio.open_nursery() as nursery:
        r.hold = trio.Event()
        outcomes: list[object] = []

        async def ask(text: str) -> None:
            try:
                outcomes.append((await call(r, Say(text=text)))["text"])
            except LinckiaError as error:
                outcomes.append(error.kind)

        nursery.start_soon(ask, "innocent")
        await r.until(lambda: "innocent" in r.seen)
        r.down(CRASHED)
        r.seen.clear()
        await r.up()
        await r.until(lambda: "innocent" in r.seen)
        nursery.start_soon(ask, "poison")
        await trio.testing.wait_all_tasks_blocked()
        # The suspect has the process for itself, but not for ever.
        assert r.seen == ["innocent"]
        await r.until(lambda: "poison" in r.seen)
        r.down(CRASHED)
        r.hold.set()
        await r.up()
        await trio.testing.wait_all_tasks_blocked()
        assert outcomes == [Kind.UNAVAILABLE, "poison"]
        assert (await call(r, Say(text="innocent")))["text"] == "innocent"


async def test_nothing_is_convicted_while_the_service_also_dies_without_calls_in_flight() -> None:
    async with rig() as r, trio.open_nursery() as nursery:
        r.down(CRASHED)
        await r.up()
        r.hold = trio.Event()
        outcomes: list[object] = []

        async def ask() -> None:
            try:
                outcomes.append(await call(r, Say(text="innocent")))
            except LinckiaError as error:
                outcomes.append(error.kind)

        nursery.start_soon(ask)
        for _ in range(2):
            await r.until(lambda: "innocent" in r.seen)
            r.down(CRASHED)
            r.seen.clear()
            await r.up()
        await trio.testing.wait_all_tasks_blocked()
        assert outcomes == [Kind.UNAVAILABLE]
        r.hold.set()
        assert (await call(r, Say(text="innocent")))["text"] == "innocent"


async def test_request_that_crashes_two_generations_is_refused_and_its_neighbours_are_answered() -> None:
    async with rig() as r, trio.open_nursery() as nursery:
        r.hold = trio.Event()
        outcomes: dict[str, str] = {}

        async def ask(text: str) -> None:
            try:
                outcomes[text] = (await call(r, Say(text=text)))["text"]
            except Quarantined:
                outcomes[text] = "quarantined"

        for text in ("poison", "innocent", "bystander"):
            nursery.start_soon(ask, text)
            await r.until(lambda text=text: text in r.seen)  # type: ignore[misc]  # mypy cannot type a default in a lambda
        r.down(CRASHED)
        r.seen.clear()
        await r.up()
        await r.until(lambda: len(r.seen) >= 1)
        # Suspects are tried one at a time; whichever is alone at the second crash is convicted, alone.
        assert len(r.seen) == 1
        first = r.seen[0]
        r.down(CRASHED)
        r.hold.set()
        await r.up()
        await trio.testing.wait_all_tasks_blocked()
        assert outcomes == {
            text: ("quarantined" if text == first else text) for text in ("poison", "innocent", "bystander")
        }
        with pytest.raises(Quarantined) as caught:
            await call(r, Say(text=first))
        assert caught.value.failure.executed is Executed.NO


@pytest.mark.parametrize("size", [10, 1024 * 1024])
async def test_only_equal_requests_are_refused_and_only_for_a_while(
    size: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with rig() as r, trio.open_nursery() as nursery:
        r.hold = trio.Event()

        async def refused() -> None:
            with pytest.raises(Quarantined):
                await call(r, Say(text="x" * size + "1"))

        nursery.start_soon(refused)
        for _ in range(2):
            await r.until(lambda: len(r.seen) == 1)
            r.seen.clear()
            r.down(CRASHED)
            await r.up()
        r.hold.set()
        with pytest.raises(Quarantined) as caught:
            await call(r, Say(text="x" * size + "1"))
        assert caught.value.failure.executed is Executed.NO
        for text in ("x" * size + "2", "x" * size + "33"):
            assert (await call(r, Say(text=text)))["text"] == text
        await trio.sleep(QUARANTINE_S)
        assert (await call(r, Say(text="x" * size + "1")))["text"].endswith("1")


def test_convictions_are_bounded_by_number_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "ENTRIES", 3)
    monkeypatch.setattr(quarantine, "MAX_BYTES", 10)
    monkeypatch.setattr(trio, "current_time", lambda: 0.0)

    def asking(params: bytes) -> RoutedCall:
        op: Operation[Any] = operation_of(Say)
        return RoutedCall(
            op=op, params=params, origin=Origin("client"), deadline=0, limit_s=0, done=lambda outcome: None
        )

    kept = quarantine.Quarantine()
    for params in (b"a", b"b", b"c", b"d", b"more than ten bytes"):
        kept.convict(asking(params))
    asked = (b"a", b"b", b"c", b"d", b"more than ten bytes", b"x")
    assert [bool(kept.left_s(asking(params))) for params in asked] == [False, True, True, True, False, False]


@pytest.mark.parametrize("cause", [KILLED, STOPPED])
async def test_kills_from_outside_convict_nobody(autojump_clock: trio.testing.MockClock, cause: Cause) -> None:
    async with rig() as r, trio.open_nursery() as nursery:
        r.hold = trio.Event()
        answers: list[Any] = []

        async def ask(text: str) -> None:
            answers.append(await call(r, Say(text=text)))

        for text in "abcdefgh":
            nursery.start_soon(ask, text)
        for _ in range(3):
            await trio.testing.wait_all_tasks_blocked()
            r.seen.clear()
            r.down(cause)
            await r.up()
            # All of them at once: none waits for another to have had the process for itself.
            before = trio.current_time()
            await r.until(lambda: sorted(r.seen) == [*"abcdefgh"])
            assert trio.current_time() - before < ALONE_S
        await trio.testing.wait_all_tasks_blocked()
        r.hold.set()
        await trio.testing.wait_all_tasks_blocked()
        assert [a["generation"] for a in answers] == [4] * 8
        assert (await call(r, Say(text="a")))["text"] == "a"
