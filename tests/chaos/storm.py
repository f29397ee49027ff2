"""Draws faults, applies them one after the other, and waits for their targets to recover."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio

from proto.control.client import Client, ControlError
from proto.mounts import READ, REGISTRY, service_of
from tests.chaos.load import MOUNTED
from tests.chaos.record import Fault, Record
from tests.chaos.system import System
from tests.system.support.workloads import WORKLOADS

if TYPE_CHECKING:
    from tests.chaos.faults import Kind

KERNEL = "kernel"
RECOVERS_S = 60.0
"""How long to wait for an answer after a fault."""

WRITES: dict[str, tuple[str, dict[str, Any]]] = {
    "write of documents": ("documents_add", {"name": "probe", "content": "there is room"}),
    "write of transcripts": WORKLOADS["transcripts"].request(1),
    "write of yaml": ("yaml_set", {"file": "probe.yaml", "path": "value", "value": "there is room"}),
    "write of knowledge": ("notes_tag", {"file_path": "probe.md", "tags": ["room"]}),
}
"""The targets of a full disk: one repeatable write of each sort."""


@dataclass
class Storm:
    """The storm of one run."""

    system: System
    record: Record
    chance: random.Random
    struck_at: float = 0.0

    async def run(self, stop: trio.Event, kinds: Iterable[Kind], every_s: float) -> None:
        faults = list(kinds)
        while not stop.is_set():
            fault = self.chance.choices(faults, [one.weight for one in faults])[0]
            noted = Fault(fault.kind, (), self.record.at_s)
            self.struck_at = trio.current_time()
            noted.targets = await fault.do(self)
            if noted.targets:
                self.record.faults.append(noted)
                if await self.answers(noted.targets):
                    noted.recovery_s = trio.current_time() - self.struck_at
                else:
                    self.record.hung.append(f"{noted.at_s:.1f} s: no answer after {noted.kind} of {noted.targets}")
            await trio.sleep(self.chance.uniform(0.2, 1.8) * every_s)

    def ended(self) -> None:
        """Mark the end of a lasting fault; recovery is measured from now on."""
        self.struck_at = trio.current_time()

    async def answers(self, targets: Iterable[str]) -> bool:
        """Wait until each target has answered a call made from now on."""
        with trio.move_on_after(RECOVERS_S):
            async with trio.open_nursery() as nursery:
                for target in targets:
                    nursery.start_soon(self._until_answered, *_probe(target))
            return True
        return False

    async def _until_answered(self, name: str, params: dict[str, Any]) -> None:
        def ask() -> None:
            give_up = time.monotonic() + RECOVERS_S
            while time.monotonic() < give_up:
                try:
                    with Client(self.system.data) as client:
                        client.call_named(name, params, timeout_s=10)
                        return
                except (ControlError, OSError):
                    time.sleep(0.01)

        await trio.to_thread.run_sync(ask, abandon_on_cancel=True)

    async def processes(self) -> dict[str, int]:
        """Return the processes of the living services."""
        status = await self.system.status()
        return {s["name"]: s["pid"] for s in status["services"] if s["pid"]} if status is not None else {}


def _probe(target: str) -> tuple[str, dict[str, Any]]:
    if target == KERNEL:
        return "mcp.echo", {"message": "back"}
    if target in WRITES:
        return WRITES[target]
    if target == service_of(MOUNTED):
        return f"{target}.{READ}", {"method": "ping"}
    if target == REGISTRY:
        return "mounts_offered", {"mount": MOUNTED}
    if target == "yaml":
        # The workload's file is not part of this load.
        return "yaml_get", {"file": "probe.yaml", "path": "value"}
    return WORKLOADS[target].request(1)


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal if the process exists."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
