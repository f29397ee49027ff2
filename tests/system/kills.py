"""Kill a service again and again under load, and keep what became of every call.

`Workload` says what is called and what the right answer is; `assail` keeps 32 calls in flight, kills the service's
process each time it has answered a call that was sent after the kill, and measures from the kill to the next answer.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import trio

from tests.system.running import Answer, Connection, RunningKernel, connection

IN_FLIGHT = 32
NEARLY = 0.7


@dataclass(frozen=True)
class Workload:
    """`request(n)` is the operation's name and parameters; `is_right(n, result)` judges the answer."""

    service: str
    request: Callable[[int], tuple[str, dict[str, Any]]]
    is_right: Callable[[int, Any], bool]


@dataclass
class Outcome:
    """What `assail` saw; times in milliseconds."""

    service: str
    answered: int = 0
    wrong: list[str] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)
    to_next_answer_ms: list[float] = field(default_factory=list)
    generations: int = 0


async def assail(
    kernel: RunningKernel, workload: Workload, kills: int, *, number: int = signal.SIGKILL, rest_s: float = 0
) -> Outcome:
    """Kill the service `kills` times under load, `rest_s` after it has come back from the one before."""
    outcome = Outcome(workload.service)
    done = trio.Event()
    ids = iter(range(1_000_000))
    probe = _Probe()

    async def caller() -> None:
        async with connection(kernel.data_dir) as line:
            while not done.is_set():
                n = next(ids)
                name, params = workload.request(n)
                probe.record(_judge(outcome, workload, n, await line.call(name, params)))

    async with connection(kernel.data_dir) as control, trio.open_nursery() as nursery:
        for _ in range(IN_FLIGHT):
            nursery.start_soon(caller)
        await probe.answers(time.monotonic())
        before = now = await _service(control, workload.service)
        for _ in range(kills):
            # With none, the process that is to take over next may not be ready yet.
            await trio.sleep(rest_s)
            killed = time.monotonic()
            os.kill(now["pid"], number)
            await probe.answers(killed)
            last, now = now, await _service(control, workload.service)
            while now["generation"] == last["generation"] or now["state"] != "ready":
                # A call that was sent while the signal was under way was answered all the same.
                await trio.sleep(0.002)
                now = await _service(control, workload.service)
                await probe.more_answers()
            gaps = [(a - killed, b - killed) for a, b in itertools.pairwise(probe.arrivals)]
            # The kernel saw it dead for this time, so no much shorter gap can be the right one.  Some of
            # it may be gone by the time at which the last answers of before are read here.
            dead_s = NEARLY * now["recovery_ms"] / 1000
            # Where the answers of before were read so late that none is so long, it is the longest.
            longest = max(gaps, key=lambda gap: gap[1] - gap[0])
            _, ended = next((gap for gap in gaps if gap[1] - gap[0] >= dead_s), longest)
            outcome.to_next_answer_ms.append(ended * 1000)
        outcome.generations = now["generation"] - before["generation"]
        done.set()
    return outcome


class _Probe:
    """Keeps when answers arrived after a kill.

    Answers under way at the kill still arrive after it; then comes a gap, as long as the service is dead, and the next
    answer ends that gap.  Further gaps may follow, and be longer: calls that were repeated are answered in bursts, and
    the next standby is made beside them.
    """

    def __init__(self) -> None:
        self._since = float("inf")
        self.arrivals: list[float] = []
        self._found = trio.Event()

    def record(self, answer: Answer) -> None:
        self.arrivals.append(answer.returned)
        if answer.failure is None and answer.sent >= self._since:
            self._since = float("inf")
            self._found.set()

    async def answers(self, since: float) -> None:
        """Begin again with `since`; until a call that was sent after it has been answered."""
        self.arrivals = [since]
        await self._until_answered(since)

    async def more_answers(self) -> None:
        """Wait until a call sent from now on has been answered."""
        await self._until_answered(time.monotonic())

    async def _until_answered(self, since: float) -> None:
        self._found = trio.Event()
        self._since = since
        with trio.fail_after(120):
            await self._found.wait()


def _judge(outcome: Outcome, workload: Workload, n: int, answer: Answer) -> Answer:
    outcome.answered += 1
    if answer.failure is not None:
        outcome.failed.append(answer.failure)
    elif not workload.is_right(n, answer.result):
        outcome.wrong.append(json.dumps(answer.result)[:500])
    return answer


async def _service(control: Connection, name: str) -> dict[str, Any]:
    answer = await control.call("kernel_status", {})
    found: dict[str, Any] = next(s for s in answer.result["services"] if s["name"] == name)
    return found
