"""The system under test: a kernel kept running by a service manager, on its own disk that can be filled."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import trio

from kernel.cli.carry.export import items, set_names
from proto.control.client import Client, ControlError
from services.memory.manifest import MANIFESTS as MEMORY
from tests.chaos.clock import Clock
from tests.chaos.links import LINKS
from tests.system.running import REPOSITORY

DISK_BYTES = 1 << 30


@contextlib.contextmanager
def small_disk(at: Path) -> Iterator[bool]:
    """Mount a file system in memory if root may do that; yields whether it did."""
    at.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0700", "tmpfs", str(at)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode != 0:
        yield False
        return
    try:
        yield True
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)


@dataclass
class System:
    """One data directory, and the kernel that currently holds it."""

    data: Path
    root: Path
    port: int
    starts: int = 0
    seen: dict[int, float] = field(default_factory=dict)
    """Every process ever seen below a kernel, with its start time; one that remains at the end is an orphan."""
    process: subprocess.Popen[bytes] | None = None
    clock: Clock | None = None
    linckia: tuple[str, ...] = ("-P", "-m", "kernel.cli")
    """Arguments of Python that run `linckia`."""

    @property
    def environment(self) -> dict[str, str]:
        """The environment of every kernel, including those started by stdio clients."""
        clock = self.clock.environment if self.clock is not None else {}
        return {**os.environ, "LINCKIA_TOKEN": "off", **LINKS, **clock}

    def start(self) -> None:
        command = [sys.executable, *self.linckia, "serve", str(self.root), "--data", str(self.data)]
        self.process = subprocess.Popen(
            [*command, "--http", f"127.0.0.1:{self.port}"],
            cwd=REPOSITORY,
            stderr=subprocess.DEVNULL,
            env=self.environment,
        )
        self.starts += 1

    async def keep(self, stop: trio.Event) -> None:
        """Restart the kernel whenever it is gone, as a service manager does, and record its processes."""
        while not stop.is_set():
            assert self.process is not None
            if self.process.poll() is not None:
                self.start()
            self.look()
            await trio.sleep(0.2)

    def look(self) -> None:
        """Record the processes below the kernel."""
        for pid in self.children():
            with contextlib.suppress(psutil.Error):
                self.seen[pid] = psutil.Process(pid).create_time()

    def children(self) -> list[int]:
        """Return the processes below the kernel."""
        assert self.process is not None
        with contextlib.suppress(psutil.Error):
            return [child.pid for child in psutil.Process(self.process.pid).children(recursive=True)]
        return []

    def orphans(self) -> list[str]:
        """Return the processes that outlived their kernel."""
        left = []
        for pid, born in self.seen.items():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                if process.create_time() == born and process.status() != psutil.STATUS_ZOMBIE:
                    left.append(f"{pid}: {' '.join(process.cmdline())[:120]}")
        return left

    async def status(self) -> dict[str, Any] | None:
        """Return the status; None if no kernel answers in time."""

        def ask() -> dict[str, Any] | None:
            try:
                with Client(self.data) as client:
                    answer: dict[str, Any] = client.call_named("kernel_status", {}, timeout_s=5)
                    return answer
            except (ControlError, OSError):
                return None

        with trio.move_on_after(10):
            return await trio.to_thread.run_sync(ask, abandon_on_cancel=True)
        return None

    async def service(self, name: str) -> dict[str, Any] | None:
        status = await self.status()
        return next((s for s in status["services"] if s["name"] == name), None) if status is not None else None

    async def wait_ready(self, *, within_s: float) -> float | None:
        """Return how long it takes until every service is ready or resting; None after the time limit."""
        began = trio.current_time()
        while trio.current_time() - began < within_s:
            status = await self.status()
            if status is not None and all(s["state"] in ("ready", "resting", "stopped") for s in status["services"]):
                return trio.current_time() - began
            await trio.sleep(0.05)
        return None

    async def indexed(self, *, within_s: float) -> float | None:
        """Return how long it takes until every note is indexed in its current version; None after the time limit."""

        def waiting() -> bool:
            try:
                with Client(self.data) as client:
                    found = client.call_named("notes_status", {}, timeout_s=10)
                    return bool(found["pending"] or found["scanning"])
            except (ControlError, OSError):
                return True

        began = trio.current_time()
        while trio.current_time() - began < within_s:
            if not await trio.to_thread.run_sync(waiting):
                return trio.current_time() - began
            await trio.sleep(0.1)
        return None

    def kept(self) -> set[str]:
        """Return the names of all resource sets, and all memories."""
        with Client(self.data) as client:
            return kept_by(client)

    def measures(self) -> str:
        """Return the kernel's memory, descriptors and threads."""
        assert self.process is not None
        try:
            kernel = psutil.Process(self.process.pid)
            memory = kernel.memory_info().rss / 2**20
            return f"kernel: {memory:.0f} MiB, {kernel.num_fds()} descriptors, {kernel.num_threads()} threads"
        except psutil.Error as error:
            return f"kernel: {error}"

    async def end(self) -> int | None:
        """Stop the kernel in order. Returns its exit code, or None if it had to be killed."""
        assert self.process is not None
        self.look()
        self.process.terminate()
        try:
            return await trio.to_thread.run_sync(self.process.wait, 30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None


def kept_by(client: Client) -> set[str]:
    """Return the names of all resource sets, and all memories."""
    return {*set_names(client), *(one["text"] for one in items(client, MEMORY[0].exports[0]))}
