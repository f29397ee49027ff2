"""The longest turn of an event loop is known, in processor time too."""

from __future__ import annotations

import time

import trio
import trio.lowlevel

from kernel.control.operations import LATE_S, SAMPLE_S, Lateness


async def test_a_computing_turn_of_the_loop_is_late_and_a_waiting_one_is_not() -> None:
    lateness = Lateness()
    trio.lowlevel.add_instrument(lateness)
    try:
        await trio.sleep(0.05)
        assert lateness.late == 0
        until = time.thread_time() + 2 * LATE_S
        while time.thread_time() < until:
            pass
        await trio.lowlevel.checkpoint()
        await trio.sleep(0.001)
        assert lateness.late == 1
        assert lateness.worst_s >= 2 * LATE_S
        assert lateness.worst_cpu_s >= 2 * LATE_S
        before = lateness.worst_cpu_s
        await trio.sleep(SAMPLE_S)
        # Blocked, and not computing.
        time.sleep(before + LATE_S)  # noqa: ASYNC251  # what is measured
        await trio.sleep(0.001)
        assert lateness.late == 1
        assert lateness.worst_cpu_s == before
        assert lateness.worst_s >= before + LATE_S
    finally:
        trio.lowlevel.remove_instrument(lateness)
