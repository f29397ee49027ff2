"""A server's process: started as a client starts it, measured, stopped, killed, and what it leaves behind.

This process must be a subreaper (`guardian.become_subreaper`): what the server leaves behind becomes its child.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import trio

from services.mounts.process import guardian, processes

LAST_LINES = 5
"""So many of the last lines of stderr are kept."""

GRACE_S = 5.0
"""Time for processes to end by themselves once the server has ended."""

MAX_GRACE_S = 30.0
"""The same, while they become fewer."""

_TICKS = os.sysconf("SC_CLK_TCK")


class Use(NamedTuple):
    """What a server and everything below it use."""

    memory_bytes: int
    open_files: int


class Process:
    """A running server in a session of its own. `ended` is set once it has ended, and has been waited for."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
            env={**os.environ, **(environment or {})}, start_new_session=True,
        )  # fmt: skip
        self.pid = self._process.pid
        self.began = trio.current_time()
        self.ended = trio.Event()
        self.stdin, self.stdout, self._stderr = (
            trio.lowlevel.FdStream(os.dup(stream.fileno()))
            for stream in (self._process.stdin, self._process.stdout, self._process.stderr)
            if stream is not None
        )
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        self.last_lines: list[str] = []

    async def run(self) -> None:
        """Read stderr, and wait for the end."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read_stderr)
            pidfd = os.pidfd_open(self.pid)
            try:
                await trio.lowlevel.wait_readable(pidfd)
            finally:
                os.close(pidfd)
            self._process.wait()
            # What it has written at last; its children may hold the pipe open.
            nursery.cancel_scope.deadline = trio.current_time() + 0.3
            self.ended.set()

    async def _read_stderr(self) -> None:
        rest = b""
        with contextlib.suppress(trio.ClosedResourceError, OSError):
            while data := await self._stderr.receive_some(65_536):
                *lines, rest = (rest + data).split(b"\n")
                rest = rest[-4096:]
                said = [line.decode("utf-8", "replace").strip()[:300] for line in lines[-LAST_LINES:]]
                self.last_lines = [*self.last_lines, *filter(None, said)][-LAST_LINES:]

    @property
    def cause(self) -> str:
        """How it ended."""
        code = self._process.returncode
        if code is None:
            return "it runs"
        return f"exit code {code}" if code >= 0 else f"signal {-code}"

    def tree(self) -> list[int]:
        """Return its processes."""
        return [self.pid, *guardian.descendants(self.pid)]

    def send(self, number: signal.Signals, *, whole: bool) -> None:
        """Send a signal to the process that was started, or to all below it as well."""
        for pid in self.tree() if whole else [self.pid]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def kill(self) -> None:
        """Kill the process that was started, and wait for its end."""
        self._process.kill()
        self._process.wait()

    def use(self) -> Use:
        """Return what it uses now."""
        tree = self.tree()
        return Use(sum(map(processes.proportional_bytes, tree)), sum(map(_open_files, tree)))

    def processor_s(self) -> float:
        """Return the processor time of its processes that live."""
        return sum(map(_processor_s, self.tree()))

    async def gone(self, limit_s: float) -> bool:
        """Wait for the end of the process that was started; return whether it came."""
        with trio.move_on_after(limit_s):
            await self.ended.wait()
            return True
        return False

    async def close(self) -> None:
        """Close all pipes, as the death of a client does."""
        for stream in (self.stdin, self.stdout, self._stderr):
            await stream.aclose()


async def left_behind(grace_s: float = GRACE_S) -> list[str]:
    """Return the processes that a server left and that did not end in time, then kill them.

    To be called only when no server runs: every child of this process counts.
    """
    began = trio.current_time()
    fewest, ends_at = 1_000_000, began + grace_s
    while (left := _living_children()) and trio.current_time() < min(ends_at, began + MAX_GRACE_S):
        if len(left) < fewest:
            # They are ending, if slowly.
            fewest, ends_at = len(left), trio.current_time() + grace_s
        await trio.sleep(0.02)
    said = [f"{_command(pid)} (process {pid})" for pid in left]
    await trio.to_thread.run_sync(guardian.end_all)
    return said


def _living_children() -> list[int]:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return guardian.descendants(os.getpid())


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "?"
    return b" ".join(words).decode("utf-8", "replace").strip()[:200]


def _open_files(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def _processor_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS
    except (OSError, IndexError):
        return 0.0
