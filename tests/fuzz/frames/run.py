"""`python -m tests.fuzz.frames.run COUNT SEED`: so many messages of a hostile service, to a kernel that must stand.

A router and a supervisor in one process, with memory links: a generation that is ended is followed by the next at once.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

import trio
import trio.testing

from kernel.router.generation import ServiceState
from proto.operation import operation_of
from proto.origin import Origin
from proto.wire.channel import LinkClosed
from tests.fuzz.frames.hostile import Hostile
from tests.fuzz.frames.memory import POOL, Defects, Kernel, kernel
from tests.unit.router.ops import Relay, Say

VIOLATIONS = 0.005
"""Share of messages that are meant to end their sender; more would leave none that gets far."""

SERVICES = ("relay", *POOL)

AT_ONCE = 20
"""Messages sent before the kernel gets its turn."""


async def fuzz(count: int, seed: int) -> Mapping[str, int]:
    """Send the messages; how its generations ended.  Raises AssertionError where the kernel gave in."""
    stream = Hostile(seed).stream(count, VIOLATIONS)
    async with kernel() as k:
        with Defects() as defects:
            async with trio.open_nursery() as nursery:
                k.acted.holds = True
                for number, each in enumerate(stream):
                    actor = k.acted.stage.actor("relay")
                    try:
                        actor.link.try_send(each)
                    except LinkClosed:
                        await k.supervisor.wait_for(
                            "relay", {ServiceState.READY}, after_generation=actor.launch.generation
                        )
                    if number % AT_ONCE == 0:
                        nursery.start_soon(_ask, k, number)
                        await trio.testing.wait_all_tasks_blocked()
                        del k.acted.stage.actors[:-8], k.acted.stage.processes[:-8]
                    if defects.found:
                        raise AssertionError(defects.found[0])
                nursery.cancel_scope.cancel()
            k.acted.holds = False
            # What the hostile service had called is still in the hands of the others.
            for name in SERVICES:
                before = k.supervisor.generation(name)
                k.supervisor.restart(name)
                await k.ready([name], after=before)
            await k.router.call(operation_of(Say), Say(text="still there?"), origin=Origin("client"))
        assert defects.found == []
        assert all(k.report(name).deaths.keys() == {"stopped"} for name in POOL)
        return k.report("relay").deaths


async def _ask(k: Kernel, number: int) -> None:
    """A client's call that the hostile service keeps in flight for a while."""
    with trio.move_on_after(1):
        try:
            await k.router.call(operation_of(Relay), Relay(text=f"{number}"), origin=Origin("client"), timeout_s=0.5)
        except Exception as error:  # noqa: BLE001
            del error


if __name__ == "__main__":
    begun = time.perf_counter()
    ended = trio.run(fuzz, int(sys.argv[1]), int(sys.argv[2]), clock=trio.testing.MockClock(autojump_threshold=0))
    print(f"{sys.argv[1]} messages in {time.perf_counter() - begun:.0f} s; generations ended: {dict(ended)}")
