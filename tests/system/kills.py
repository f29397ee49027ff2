"""Kill a service again and again under load, and keep what became of every call.

`Workload` says what is called and what the right answer is; `assail` keeps 32 calls in flight, kills the service's
process each time it has answered again, and measures from the kill to the answer of the first call that was sent
after it.
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


async def assail(kernel: RunningKernel, workload: Workload, kills: int, *, number: int = signal.SIGKILL) -> Outcome:
    """Kill the service `kills` times under load."""
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
        await probe.next_answer(time.monotonic())
        before = await _service(control, workload.service)
        for _ in range(kills):
            pid = (await _service(control, workload.service))["pid"]
            killed = time.monotonic()
            os.kill(pid, number)
            returned = await probe.next_answer(killed)
            outcome.to_next_answer_ms.append((returned - killed) * 1000)
        outcome.generations = (await _service(control, workload.service))["generation"] - before["generation"]
        done.set()
    return outcome


class _Probe:
    """Finds the first answer after a kill that cannot be from before it.

    Answers under way at the kill still arrive after it; then comes a gap, as long as the service is dead, and what
    ends that gap is the next answer.
    """

    def __init__(self) -> None:
        self._since = float("inf")
        self._arrivals: list[float] = []
        self._found = trio.Event()

    def record(self, answer: Answer) -> None:
        self._arrivals.append(answer.returned)
        if answer.failure is None and answer.sent >= self._since:
            self._since = float("inf")
            self._found.set()

    async def next_answer(self, since: float) -> float:
        """When it arrived; returns only once a call that was sent after `since` has been answered."""
        self._found = trio.Event()
        self._arrivals = [since]
        self._since = since
        with trio.fail_after(120):
            await self._found.wait()
        _gap, end = max((b - a, b) for a, b in itertools.pairwise(self._arrivals))
        return end


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
