"""Where a generation runs: the interface between supervision and process creation.

`local.LocalPlacement` creates processes on this machine; tests use a placement without processes.
"""

from __future__ import annotations

import signal
import socket
from typing import Protocol

import msgspec
import trio

from kernel.configure.spec import ServiceSpec
from kernel.router.ports import Cause, CauseKind
from kernel.supervisor.processes import Activity
from kernel.supervisor.zygote import ZygoteReport
from proto.ops.kernel import ClusterStatus
from proto.wire.channel import Link
from proto.wire.launch import EXIT_OUT_OF_MEMORY, EXIT_PROGRAM_KILLED, LaunchConfig


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How a process ended: by `code` or by `signal`. Both are None if that is unknown."""

    code: int | None = None
    signal: int | None = None
    oom: bool = False
    """Whether the kernel's OOM killer ended it."""
    last_words: str = ""
    """End of its log output."""
    lost: str = ""
    """Why the machine it ran on cannot be reached; "" if that is not what ended it."""


def cause_of(ended: Exit, asked: Cause | None) -> Cause:
    """Return why a generation ended: the reason it was `asked` to end, or what the operating system reports."""
    unknown = ended.lost or "an unknown end"
    how = unknown if ended.code is None else f"exit code {ended.code}"
    if ended.signal is not None:
        known = ended.signal in set(signal.Signals)
        how = signal.Signals(ended.signal).name if known else f"signal {ended.signal}"
    if asked is not None:
        code = ended.signal if ended.signal is not None else ended.code
        return Cause(asked.kind, code if asked.code is None else asked.code, f"{asked.text}; ended with {how}")
    if ended.lost:
        # Like a kill from outside, it says nothing against the calls in flight.
        return Cause(CauseKind.SIGNAL, signal.SIGKILL, ended.lost)
    if ended.oom:
        return Cause(CauseKind.OOM, ended.signal, "killed by the operating system, which was out of memory")
    if ended.signal is not None:
        return Cause(CauseKind.SIGNAL, ended.signal, f"killed by {how}")
    if ended.code == EXIT_PROGRAM_KILLED:
        return Cause(CauseKind.SIGNAL, signal.SIGKILL, ended.last_words or "its program was killed")
    text = f"{how}: {ended.last_words}" if ended.last_words and ended.code else how
    return Cause(CauseKind.MEMORY if ended.code == EXIT_OUT_OF_MEMORY else CauseKind.EXIT, ended.code, text)


class Running(Protocol):
    """A started process. What has a body is what is known of one on another machine."""

    pid: int
    how: str
    """How it was started (`zygote`, `exec`, …), for status and logs."""
    node: str
    """Node of the cluster that it runs on, where `pid` is valid; "" if it runs on this machine."""
    link: Link
    handoff: socket.socket | None
    """The kernel's end of the socket that passes descriptors to it, if its spec has one."""

    async def wait(self) -> Exit:
        """Wait until it and its process group are gone. May be awaited again after cancellation."""

    def became_ready(self) -> None:
        """Note that it is READY; preparations for a fast start of the next generation begin."""

    def said_bye(self) -> None:
        """Note that it ends in order, so that the end of its link is no loss."""

    def signal(self, number: int) -> None:
        """Send a signal to the process itself, if it still exists. A stopped process is continued to handle it."""

    def kill(self) -> None:
        """Send SIGKILL to the process and everything it spawned, if they still exist."""

    def is_stopped(self) -> bool:
        """Return whether a signal has stopped it, so that it does nothing until continued."""
        return False

    def activity(self) -> Activity | None:
        """Return what its threads are doing; None if unknown."""
        return None

    def memory_bytes(self) -> int | None:
        """Return its own memory: anonymous and shared, including swap, excluding file-backed. None if unknown."""
        return None

    async def tend(self, used: bool) -> None:
        """Do housekeeping at each ping, such as checking the log size. `used`: clients called it since the last one."""
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """Release its resources. Call it after `wait`."""


class Placement(Protocol):
    """A way to start generations."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run helper processes such as zygotes, until cancelled."""

    async def start(self, spec: ServiceSpec, launch: LaunchConfig) -> Running:
        """Start a generation. Cancellation leaves no process behind. Raises SpawnError."""

    def zygote_reports(self) -> tuple[ZygoteReport, ...]:
        """Return the state of this machine's zygotes, in the order in which they load."""

    def status(self) -> ClusterStatus | None:
        """Return the state of the cluster, if there is one."""

    def dismiss(self, service: str) -> None:
        """Release what was prepared for the next generation, since none will start soon."""

    def forget(self, service: str) -> None:
        """Release everything that belongs to a service that was removed."""

    def renew_log(self, service: str) -> None:
        """Begin a new log if somebody has moved the file: it belongs to a service that was removed."""

    def prioritize(self, service: str) -> None:
        """Give priority to this service's first generation, since somebody waits for it."""

    def standby_pid(self, service: str) -> int | None:
        """Return the pid of the process waiting to become the next generation, if there is one."""
