"""The load: every client calls every server all the time, and the ledger says which calls must have reached it."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import trio

from proto.mounts import CHANGE
from tests.chaos.clients import CallOutcome, Client
from tests.chaos.mounted.servers import Call, Server

EXAMPLES = 20


class Made(NamedTuple):
    """A call that was made. Times are on the monotonic clock."""

    server: str
    call: Call
    mark: str
    began: float
    ended: float
    outcome: CallOutcome


class Outage(NamedTuple):
    """A kill, and when the server answered again."""

    server: str
    kind: str
    began: float
    ended: float | None

    @property
    def lasted_s(self) -> float | None:
        return None if self.ended is None else self.ended - self.began


@dataclass
class Ledger:
    """Everything that happened in one run."""

    made: list[Made] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    changing: dict[str, trio.Event] = field(default_factory=dict)
    """Per server: set when the next call that changes something is made."""
    left_over: list[str] = field(default_factory=list)
    """Processes of earlier generations that were still there after a recovery, or at the end."""
    unexpected: list[str] = field(default_factory=list)

    def began_to_change(self, server: str) -> trio.Event:
        return self.changing.setdefault(server, trio.Event())


@dataclass
class Worker:
    """Calls one server for one client."""

    client: Client
    server: Server
    chance: random.Random
    ledger: Ledger
    is_first: bool
    """Whether it makes the calls that only one client makes."""
    pause_s: float
    number: int = 0

    async def run(self, stop: trio.Event) -> None:
        calls = [call for call in self.server.calls if self.is_first or not call.alone]
        while not stop.is_set():
            self.number += 1
            await self._call(self.chance.choice(calls))
            await trio.sleep(self.chance.uniform(0, 2 * self.pause_s))

    async def _call(self, call: Call) -> None:
        mark = f"{self.client.name}-{self.server.name}-{self.number}"
        began = time.monotonic()
        if call.kind == CHANGE:
            self.ledger.began_to_change(self.server.name).set()
            del self.ledger.changing[self.server.name]
        tool = f"{self.server.name}_{call.tool}"
        outcome = await self.client.call(tool, call.arguments(mark), repeatable=call.kind != CHANGE)
        self.ledger.made.append(Made(self.server.name, call, mark, began, time.monotonic(), outcome))


def check(ledger: Ledger, servers: Sequence[Server]) -> list[str]:
    """Compare the answers to clients with the requests that reached the servers. Returns the defects."""
    wrong = []
    counts = {server.name: _counted(server, ledger) for server in servers}
    for made in ledger.made:
        said, what = made.outcome, f"{made.server}: {made.call.tool} {made.mark}"
        if said.kind in ("hung", "lost"):
            wrong.append(f"{what} was {said.kind}")
        elif made.call.kind != CHANGE:
            if not said.ok:
                wrong.append(f"{what} could be repeated, but failed ({said.kind}): {said.text[:300]}")
            elif made.call.expected(made.mark) not in str(said.result):
                wrong.append(f"{what}: wrong answer {str(said.result)[:300]}")
        else:
            times = counts[made.server][made.mark]
            if times > 1 or (said.ok and times != 1) or (said.not_done_for_sure and times):
                told = "ok" if said.ok else f"{said.kind}, executed: {said.executed}"
                wrong.append(f"{what} reached the server {times} times, but the client was told: {told}")
        if not said.ok and not _was_killed(made, ledger.outages):
            wrong.append(f"{what} failed, although nobody killed its server: {said.kind}: {said.text[:300]}")
    return wrong


def _counted(server: Server, ledger: Ledger) -> Counter[str]:
    """Return how often each mark of a changing call reached the server."""
    marks = {made.mark for made in ledger.made if made.server == server.name and made.call.kind == CHANGE}
    found: Counter[str] = Counter()
    for line in server.received():
        for part in line.split('"'):
            # Marks end at quotes or, in texts of several lines, at an escaped line break.
            for word in part.split("\\n"):
                if word in marks:
                    found[word] += 1
    return found


def _was_killed(made: Made, outages: Sequence[Outage]) -> bool:
    return any(
        each.server == made.server and each.began <= made.ended and (each.ended is None or made.began <= each.ended)
        for each in outages
    )
