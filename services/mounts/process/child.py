"""A server's process: started below a guardian, watched, and ended with everything it started.

`start_child` returns once the server runs. Its end is `Child.ended`, with the cause in `Child.cause`. The guardian's
own death counts as the server's: this process then kills what it inherited.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence

import trio

from services.mounts.process import guardian, processes

LINE_BYTES = 16 * 1024
"""Longest line of the server's stderr in the log; the rest of a longer one is dropped."""

PATIENCE_S = 2.0
"""Time for a server to end by itself after its stdin is closed, and again after SIGTERM."""

LAST_OUTPUT_S = 0.25
"""Time for reading what a dead server has written; processes that it left may still hold its pipes."""

_PIPE_BYTES = 1024 * 1024
_ATOMIC_BYTES = 4096
"""PIPE_BUF of Linux: a writable pipe takes so much without blocking."""

_log = logging.getLogger("linckia.mount")

_logging = trio.Lock()
"""Held while somebody writes to the log: only one task may wait for a descriptor, and lines must not mix."""

_guardians: set[int] = set()
_starting = trio.Lock()
"""Held while guardians start and while orphans are killed, so that a new guardian is not taken for an orphan."""


class NotStarted(Exception):
    """The server's command cannot be started; the message is the cause."""


class Child:
    """A running server.

    Attributes:
        pid: of the server, which leads a process group and session of its own.
        guardian_pid: of the guardian; all processes below it are the server's.
        heard_at: when the server last wrote anything to its stderr, on trio's clock.
        ended: set once the server has ended, or its guardian has.
        cause: how it ended; empty while it runs.
        code: its exit code as `subprocess` has it, once it has ended; a guardian that was killed counts as SIGKILL.
    """

    def __init__(self, process: subprocess.Popen[bytes], life: int, status: int, pipes: tuple[int, int, int]) -> None:
        self.pid = 0
        self.guardian_pid = process.pid
        self.cause = ""
        self.code = -int(signal.SIGKILL)
        self.heard_at = 0.0
        self.ended = trio.Event()
        self.stdin = trio.lowlevel.FdStream(pipes[0])
        self.stdout = trio.lowlevel.FdStream(pipes[1])
        self.stderr = trio.lowlevel.FdStream(pipes[2])
        self.last_line = ""
        self._guardian = process
        self._has_guardian = True
        self._life = life
        self._status = trio.lowlevel.FdStream(status)
        self._stderr_done = trio.Event()

    async def begin(self) -> None:
        """Wait until the guardian has started the server. Raises NotStarted."""
        line = await self._line()
        if line.startswith("pid "):
            self.pid = int(line[4:])
        else:
            await self._kill()
            raise NotStarted(line.removeprefix("error ") or "the guardian of the server ended before it had started it")

    async def watch(self, redact: Callable[[str], str], log: Callable[[str], Awaitable[None]] | None = None) -> None:
        """Log stderr and wait for the end; runs as long as the server."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._log_stderr, redact, log or write_log)
            word, _, text = (await self._line()).partition(" ")
            with trio.move_on_after(LAST_OUTPUT_S):
                await self._stderr_done.wait()
            nursery.cancel_scope.cancel()
        causes = {
            "exit": f"the server ended with exit code {text}",
            "signal": f"the server was ended by {_signal_name(text)}",
            "error": f"the server cannot be started: {text}",
        }
        if word in ("exit", "signal"):
            self.code = int(text) if word == "exit" else -int(text)
        cause = causes.get(word, "the guardian of the server was killed")
        self.cause = f"{cause}: {self.last_line}" if self.last_line and word != "error" else cause
        self.ended.set()

    async def _line(self) -> str:
        text = b""
        while not text.endswith(b"\n") and (more := await self._status.receive_some(1)):
            text += more
        return text.decode("utf-8", "replace").strip()

    async def _log_stderr(self, redact: Callable[[str], str], log: Callable[[str], Awaitable[None]]) -> None:
        rest = b""
        try:
            while data := await self.stderr.receive_some(65_536):
                self.heard_at = trio.current_time()
                *lines, rest = (rest + data).split(b"\n")
                rest = rest[:LINE_BYTES]
                for line in lines:
                    await self._log_line(redact(line[:LINE_BYTES].decode("utf-8", "replace")), log)
            if rest:
                await self._log_line(redact(rest.decode("utf-8", "replace")), log)
        finally:
            self._stderr_done.set()

    async def _log_line(self, line: str, log: Callable[[str], Awaitable[None]]) -> None:
        if stripped := line.strip():
            self.last_line = stripped[:300]
        await log(f"{line.rstrip()}\n")

    async def close(self) -> None:
        """End the server in steps: stdin closes, SIGTERM, SIGKILL to everything below the guardian."""
        with trio.CancelScope(shield=True):
            await self.stdin.aclose()
            if self.pid and not await self._ends_within(PATIENCE_S):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGTERM)
                await self._ends_within(PATIENCE_S)
            await self._kill()

    async def _ends_within(self, limit_s: float) -> bool:
        """Wait for the guardian, which ends after everything below it."""
        with trio.move_on_after(limit_s):
            # A confined process cannot open a pidfd. The pipe has an error once its only reader, the guardian, is gone.
            await trio.lowlevel.wait_readable(self._life)
            return True
        return False

    async def kill(self) -> None:
        """End everything at once."""
        with trio.CancelScope(shield=True):
            await self._kill()

    async def _kill(self) -> None:
        if self._life >= 0:
            os.close(self._life)
            self._life = -1
        if not self._has_guardian:
            return
        with contextlib.suppress(ProcessLookupError):
            # A stopped one would never notice.
            self._guardian.send_signal(signal.SIGCONT)
        await trio.to_thread.run_sync(self._guardian.wait)
        self._has_guardian = False
        _guardians.discard(self._guardian.pid)
        async with _starting:
            await trio.to_thread.run_sync(processes.kill_orphans, set(_guardians))
        for stream in (self.stdin, self.stdout, self.stderr, self._status):
            await stream.aclose()


async def start_child(
    command: Sequence[str], *, cwd: str, environment: Mapping[str, str], confined: bool = False
) -> Child:
    """Start a command below a guardian, which it cannot signal if it is `confined`. Raises NotStarted."""
    guardian.become_subreaper()
    ours: list[int] = []
    theirs: list[int] = []
    try:
        for is_read_by_us in (False, True, True, False, True):
            read, write = os.pipe()
            ours.append(read if is_read_by_us else write)
            theirs.append(write if is_read_by_us else read)
        for fd in ours[:2]:
            # Fewer wake-ups for large messages; the system may refuse it.
            with contextlib.suppress(OSError):
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        stdin, stdout, stderr, life, status = theirs
        async with _starting:
            process = await trio.to_thread.run_sync(
                lambda: subprocess.Popen(
                    [sys.executable, "-I", "-S", guardian.__file__, *map(str, (life, status, int(confined))), *command],
                    stdin=stdin, stdout=stdout, stderr=stderr, pass_fds=(life, status),
                    cwd=cwd, env=dict(environment), start_new_session=True,
                )
            )  # fmt: skip
            _guardians.add(process.pid)
    except OSError as error:
        for fd in ours:
            os.close(fd)
        what = f"`cwd` {cwd}" if error.filename == cwd else "the guardian"
        raise NotStarted(f"{what}: {error.strerror}") from None
    finally:
        for fd in theirs:
            os.close(fd)
    child = Child(process, ours[3], ours[4], (ours[0], ours[1], ours[2]))
    try:
        await child.begin()
    except trio.Cancelled:
        await child.kill()
        raise
    return child


async def write_log(text: str) -> None:
    """Write to this process's stderr without blocking the event loop if the log is read slowly. Tasks take turns."""
    data = text.encode("utf-8", "replace")
    async with _logging:
        while data:
            with contextlib.suppress(OSError):
                await trio.lowlevel.wait_writable(2)
            data = data[os.write(2, data[:_ATOMIC_BYTES]) :]


def _signal_name(number: str) -> str:
    try:
        return signal.Signals(int(number)).name
    except ValueError:
        return f"signal {number}"
