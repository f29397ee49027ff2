"""What is done to the system: each fault is a coroutine, drawn by weight; a line in `FAULTS` adds one.

A fault says what it struck; then `storm` waits until that answers again and notes how long it took.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import psutil
import trio

from kernel.control.client import Client, ControlError
from tests.chaos.record import Fault, Record
from tests.chaos.system import System
from tests.system.workloads import WORKLOADS

KERNEL = "kernel"
RECOVERS_S = 60.0
"""For how long an answer is waited for after a fault."""

FULL_S = 2.0
LIMITED_S = 1.5
BURST = 500


@dataclass
class Storm:
    """Draws faults and does them, one after the other."""

    system: System
    record: Record
    chance: random.Random
    own_disk: bool
    """Whether the data directory is on a disk that may be filled."""
    struck_at: float = 0.0
    """From when on recovery counts: for a fault that lasts, its end."""

    async def run(self, stop: trio.Event, every_s: float) -> None:
        faults = [fault for fault in FAULTS if self.own_disk or not fault.fills_disk]
        while not stop.is_set():
            fault = self.chance.choices(faults, [one.weight for one in faults])[0]
            noted = Fault(fault.kind, "", self.record.at_s)
            self.struck_at = trio.current_time()
            noted.target = await fault.do(self) or ""
            if noted.target:
                self.record.faults.append(noted)
                if await self.answers(noted.target):
                    noted.recovery_s = trio.current_time() - self.struck_at
            await trio.sleep(self.chance.uniform(0.2, 1.8) * every_s)

    async def answers(self, target: str) -> bool:
        """Wait until what was struck has answered a call made from now on."""
        name, params = _probe(target)
        with trio.move_on_after(RECOVERS_S):
            await trio.to_thread.run_sync(self._until_answered, name, params, abandon_on_cancel=True)
            return True
        return False

    def _until_answered(self, name: str, params: dict[str, Any]) -> None:
        give_up = time.monotonic() + RECOVERS_S
        while time.monotonic() < give_up:
            try:
                with Client(self.system.data) as client:
                    client.call(name, params, timeout_s=10)
                    return
            except (ControlError, OSError):
                time.sleep(0.01)

    async def processes(self) -> dict[str, int]:
        """The living services' processes."""
        status = await self.system.status()
        return {s["name"]: s["pid"] for s in status["services"] if s["pid"]} if status is not None else {}

    async def signal_one(self, number: signal.Signals) -> str | None:
        living = await self.processes()
        if not living:
            return None
        name = self.chance.choice(sorted(living))
        _send(living[name], number)
        return name


def _probe(target: str) -> tuple[str, dict[str, Any]]:
    if target == KERNEL:
        return "mcp.echo", {"message": "back"}
    name, params = WORKLOADS[target].request(1)
    # That one's files are not those of this load.
    return ("noyalib_get", {"file": "worker-0.yaml", "path": "value"}) if target == "yaml" else (name, params)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


async def _kill(storm: Storm) -> str | None:
    return await storm.signal_one(signal.SIGKILL)


async def _stop(storm: Storm) -> str | None:
    return await storm.signal_one(signal.SIGSTOP)


async def _terminate(storm: Storm) -> str | None:
    return await storm.signal_one(signal.SIGTERM)


async def _several(storm: Storm) -> str | None:
    living = await storm.processes()
    struck = storm.chance.sample(sorted(living), min(len(living), 4))
    for name in struck:
        _send(living[name], signal.SIGKILL)
    return storm.chance.choice(struck) if struck else None


async def _in_start_up(storm: Storm) -> str | None:
    """Killed, and its next generation as well, as soon as it is there."""
    name = await storm.signal_one(signal.SIGKILL)
    if name is None:
        return None
    for _ in range(200):
        service = await storm.system.service(name)
        if service is not None and service["pid"]:
            _send(service["pid"], signal.SIGKILL)
            return name
        await trio.sleep(0.005)
    return name


async def _helper(storm: Storm, number: signal.Signals) -> str | None:
    """A process of the kernel's that is no service: a zygote, or a standby."""
    kernel = storm.system.process
    if kernel is None or kernel.poll() is not None:
        return None
    services = set((await storm.processes()).values())
    with contextlib.suppress(psutil.Error):
        others = [
            child.pid for child in psutil.Process(kernel.pid).children(recursive=True) if child.pid not in services
        ]
        if others:
            _send(storm.chance.choice(others), number)
            return KERNEL
    return None


async def _kill_helper(storm: Storm) -> str | None:
    return await _helper(storm, signal.SIGKILL)


async def _stop_helper(storm: Storm) -> str | None:
    return await _helper(storm, signal.SIGSTOP)


async def _kill_kernel(storm: Storm) -> str | None:
    kernel = storm.system.process
    if kernel is None or kernel.poll() is not None:
        return None
    storm.system.look()
    _send(kernel.pid, signal.SIGKILL)
    await trio.to_thread.run_sync(kernel.wait)
    return KERNEL


async def _full_disk(storm: Storm) -> str | None:
    """No byte is left for a while; then there is room again."""
    filler = storm.system.data.parent / "filler"
    with storm.record.disk_is_full():
        try:
            with filler.open("wb") as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(1 << 20))
                    file.flush()
        except OSError:
            # At the close, which writes the rest.
            pass
        await trio.sleep(FULL_S)
        filler.unlink()
        storm.struck_at = trio.current_time()
    return "documents"


async def _limit(storm: Storm, kind: int, low: int) -> str | None:
    """A resource taken away from a living process, and given back if it still lives."""
    living = await storm.processes()
    name = storm.chance.choice(sorted(living)) if living else None
    if name is None:
        return None
    with contextlib.suppress(ProcessLookupError, PermissionError):
        before = resource.prlimit(living[name], kind)
        resource.prlimit(living[name], kind, (low, before[1]))
        await trio.sleep(LIMITED_S)
        resource.prlimit(living[name], kind, before)
    storm.struck_at = trio.current_time()
    return name


async def _few_descriptors(storm: Storm) -> str | None:
    return await _limit(storm, resource.RLIMIT_NOFILE, 8)


async def _no_memory(storm: Storm) -> str | None:
    return await _limit(storm, resource.RLIMIT_AS, 64 << 20)


async def _damage_derived(storm: Storm) -> str | None:
    """A page of an index that can be made again is overwritten, and its owner killed, so that it is read anew."""
    owner, pattern = storm.chance.choice(_DERIVED)
    found = sorted(storm.system.data.glob(pattern))
    service = await storm.system.service(owner)
    if not found or service is None or not service["pid"]:
        return None
    path = storm.chance.choice(found)
    _send(service["pid"], signal.SIGSTOP)
    size = path.stat().st_size
    if size > 8192:
        with path.open("r+b") as file:
            file.seek(storm.chance.randrange(1, size // 4096) * 4096)
            file.write(storm.chance.randbytes(4096))
    _send(service["pid"], signal.SIGKILL)
    return owner


_DERIVED = (
    ("watch", "services/watch/watch.db"), ("documents", "services/documents/index.db"),
    ("retrieve", "services/retrieve/*.db"),
)  # fmt: skip


async def _burst(storm: Storm) -> str | None:
    """Many calls at once, on connections of their own."""
    body = json.dumps(
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": "mcp.echo", "arguments": {"message": "b"}},
        }
    ).encode()

    async def one() -> None:
        with contextlib.suppress(OSError, trio.BrokenResourceError), trio.move_on_after(10):
            async with await trio.open_tcp_stream("127.0.0.1", storm.system.port) as stream:
                await stream.send_all(_request(body))
                await stream.receive_some()

    async with trio.open_nursery() as nursery:
        for _ in range(BURST):
            nursery.start_soon(one)
    return KERNEL


async def _does_not_read(storm: Storm) -> str | None:
    """Clients that ask for much and read nothing, until they go."""
    call = {"name": "query", "arguments": {"steps": [{"op": "list", "params": {}}]}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).encode()
    streams = []
    with contextlib.suppress(OSError, trio.BrokenResourceError):
        for _ in range(20):
            stream = await trio.open_tcp_stream("127.0.0.1", storm.system.port)
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            streams.append(stream)
            await stream.send_all(_request(body) * 5)
    await trio.sleep(1)
    for stream in streams:
        await trio.aclose_forcefully(stream)
    storm.struck_at = trio.current_time()
    return KERNEL


async def _huge(storm: Storm) -> str | None:
    """A body of many mebibytes, which nobody can do anything with."""
    message = "x" * storm.chance.choice((4 << 20, 24 << 20))
    call = {"name": "mcp.echo", "arguments": {"message": [message]}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}).encode()
    with contextlib.suppress(OSError, trio.BrokenResourceError), trio.move_on_after(20):
        async with await trio.open_tcp_stream("127.0.0.1", storm.system.port) as stream:
            await stream.send_all(_request(body))
            await stream.receive_some()
    return KERNEL


async def _half(storm: Storm) -> str | None:
    """Clients that go in the middle of a request."""
    with contextlib.suppress(OSError, trio.BrokenResourceError):
        for _ in range(30):
            stream = await trio.open_tcp_stream("127.0.0.1", storm.system.port)
            await stream.send_all(_request(b"{" * 300)[: storm.chance.randrange(10, 400)])
            await trio.aclose_forcefully(stream)
    return KERNEL


def _request(body: bytes) -> bytes:
    head = (
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2025-06-18\r\n"
    )
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body


@dataclass(frozen=True)
class Kind:
    kind: str
    weight: float
    do: Callable[[Storm], Awaitable[str | None]]
    """Answers what it struck; None where there was nothing to strike."""
    fills_disk: bool = False


FAULTS: tuple[Kind, ...] = (
    Kind("SIGKILL", 12, _kill),
    Kind("SIGSTOP", 3, _stop),
    Kind("SIGTERM", 3, _terminate),
    Kind("four SIGKILLs at once", 3, _several),
    Kind("SIGKILL in start-up", 3, _in_start_up),
    Kind("SIGKILL of a helper", 3, _kill_helper),
    Kind("SIGSTOP of a helper", 1, _stop_helper),
    Kind("SIGKILL of the kernel", 2, _kill_kernel),
    Kind("full disk", 2, _full_disk, fills_disk=True),
    Kind("no descriptors", 2, _few_descriptors),
    Kind("no memory", 2, _no_memory),
    Kind("bad page in an index", 2, _damage_derived),
    Kind("burst of 500", 2, _burst),
    Kind("readers that do not read", 1, _does_not_read),
    Kind("huge request", 1, _huge),
    Kind("half requests", 1, _half),
)
