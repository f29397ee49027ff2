"""Kills of a mounted server: the server, its child, its guardian, its adapter; killed, asked to end, or stopped."""

from __future__ import annotations

import base64
import json
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from proto.mounts import READ, service_of
from tests.chaos.mounted.load import Ledger, Outage
from tests.chaos.mounted.servers import Server
from tests.chaos.mounted.trees import Tree, tree
from tests.chaos.storm import send
from tests.system.running import Connection, connection

BACK_S = 90.0
WHOLE_S = 30.0
"""Time for leftovers to go, and for a tree to be whole again, after a server has answered."""
FOR_A_CHANGE_S = 1.0


@dataclass(frozen=True)
class Kind:
    name: str
    weight: float
    strike: Callable[[Tree, int], None]
    """Takes the server's processes and the adapter's."""
    is_quick: bool = True
    """Whether the time until the server is back says something about restarts: a hang has to be noticed first."""


def _to(part: str, number: signal.Signals) -> Callable[[Tree, int], None]:
    def strike(found: Tree, adapter: int) -> None:
        match part:
            case "server":
                pids = [each.pid for each in found.roots]
            case "child":
                pids = [each.pid for each in found.others if each.command[0].endswith("tee")]
            case "guardian":
                pids = [each.pid for each in found.guardians]
            case "adapter":
                pids = [adapter]
            case _:
                pids = [each.pid for each in (*found.roots, *found.others)]
        for pid in pids:
            send(pid, number)

    return strike


def _stopped_guardian(found: Tree, adapter: int) -> None:
    for guardian in found.guardians:
        send(guardian.pid, signal.SIGSTOP)
    _to("server", signal.SIGKILL)(found, adapter)


def _both(found: Tree, adapter: int) -> None:
    send(adapter, signal.SIGKILL)
    for guardian in found.guardians:
        send(guardian.pid, signal.SIGKILL)


KINDS = (
    Kind("SIGKILL of the server", 45, _to("server", signal.SIGKILL)),
    Kind("SIGTERM of the server", 12, _to("server", signal.SIGTERM)),
    Kind("SIGKILL of its child", 6, _to("child", signal.SIGKILL)),
    Kind("SIGKILL of the guardian", 10, _to("guardian", signal.SIGKILL)),
    Kind("SIGKILL of the adapter", 14, _to("adapter", signal.SIGKILL)),
    Kind("SIGKILL of adapter and guardian", 3, _both),
    Kind("SIGTERM of the adapter", 3, _to("adapter", signal.SIGTERM)),
    Kind("SIGSTOP of the server's tree", 2, _to("all", signal.SIGSTOP), is_quick=False),
    Kind("SIGSTOP of the adapter", 2, _to("adapter", signal.SIGSTOP), is_quick=False),
    Kind("SIGSTOP of the guardian, SIGKILL of the server", 3, _stopped_guardian, is_quick=False),
)


@dataclass
class Killer:
    """Kills one server after the other."""

    run: str
    data: Path
    chance: random.Random
    ledger: Ledger

    async def kill(self, server: Server) -> Outage | None:
        """Kill a server in one way, and wait until it answers again and nothing is left of the earlier process.

        Returns None if it did not run, which is recorded.
        """
        kind = self.chance.choices(KINDS, [each.weight for each in KINDS])[0]
        async with connection(self.data) as line:
            if (whole := await self._whole(line, server)) is None:
                self.ledger.unexpected.append(f"{server.name} does not run: {tree(self.run, server.name)}")
                return None
            adapter, before = whole
            if self.chance.random() < 0.5:
                with trio.move_on_after(FOR_A_CHANGE_S):
                    await self.ledger.began_to_change(server.name).wait()
                await trio.sleep(self.chance.uniform(0, 0.01))
            began = time.monotonic()
            kind.strike(before, adapter)
            ended = None
            with trio.move_on_after(BACK_S):
                await self._answered(line, server, before)
                ended = time.monotonic()
            outage = Outage(server.name, kind.name, began, ended)
            self.ledger.outages.append(outage)
            await self._gone(server, before, kind)
        return outage

    async def _answered(self, line: Connection, server: Server, before: Tree) -> None:
        """Wait for an answer of a new process: an old one may serve until its guardian's death is known."""
        old = {each.pid for each in before.roots}
        probe = server.calls[0]
        params = json.dumps({"name": probe.tool, "arguments": probe.arguments("probe")})
        while True:
            request = {"method": "tools/call", "params": _encoded(params)}
            answer = await line.call(f"{service_of(server.name)}.{READ}", request)
            if answer.failure is None:
                roots = {each.pid for each in tree(self.run, server.name).roots}
                if roots and roots.isdisjoint(old):
                    return
                continue
            self.ledger.unexpected.append(f"{server.name}: the probe failed: {answer.failure}")
            await trio.sleep(0.1)

    async def _whole(self, line: Connection, server: Server) -> tuple[int, Tree] | None:
        """Return the adapter and the processes of a server that runs; None if it does not."""
        with trio.move_on_after(BACK_S):
            while True:
                status: Any = (await line.call("kernel_status", {})).result
                name = service_of(server.name)
                service = next(each for each in status["services"] if each["name"] == name)
                found = tree(self.run, server.name)
                if service["state"] == "ready" and service["pid"] and found.is_whole and found.others:
                    return service["pid"], found
                await trio.sleep(0.05)
        return None

    async def _gone(self, server: Server, before: Tree, kind: Kind) -> None:
        with trio.move_on_after(WHOLE_S):
            while left := set(before.pids) & set(tree(self.run, server.name).pids):  # noqa: ASYNC110  # other processes
                await trio.sleep(0.02)
            return
        self.ledger.left_over.append(f"{server.name}: {sorted(left)} outlived {kind.name}")


def _encoded(params: str) -> str:
    return base64.b64encode(params.encode()).decode()
