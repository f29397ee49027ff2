"""Where a generation runs: the seam between supervision and the making of processes.

`local.LocalPlacement` makes processes of this machine; tests have a placement without any process.
"""

from __future__ import annotations

import signal
import socket
from typing import Protocol

import msgspec
import trio

from linckia.kernel.ports import Cause, CauseKind
from linckia.kernel.supervisor.processes import Activity
from linckia.kernel.supervisor.spec import ServiceSpec
from linckia.proto.birth import EXIT_OUT_OF_MEMORY, Birth
from linckia.proto.link import Link


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How a process ended: by `code` or by `signal`, neither where that cannot be known."""

    code: int | None = None
    signal: int | None = None
    oom: bool = False
    """Killed for want of memory."""
    last_words: str = ""
    """The end of what it wrote to its log."""


def cause_of(ended: Exit, asked: Cause | None) -> Cause:
    """Why a generation ended: what it was `asked` to end for, or else what the operating system says."""
    how = "an unknown end" if ended.code is None else f"exit code {ended.code}"
    if ended.signal is not None:
        known = ended.signal in set(signal.Signals)
        how = signal.Signals(ended.signal).name if known else f"signal {ended.signal}"
    if asked is not None:
        code = ended.signal if ended.signal is not None else ended.code
        return Cause(asked.kind, code if asked.code is None else asked.code, f"{asked.text}; ended with {how}")
    if ended.oom:
        return Cause(CauseKind.OOM, ended.signal, "killed by the operating system, which was out of memory")
    if ended.signal is not None:
        return Cause(CauseKind.SIGNAL, ended.signal, f"killed by {how}")
    text = f"{how}: {ended.last_words}" if ended.last_words and ended.code else how
    return Cause(CauseKind.MEMORY if ended.code == EXIT_OUT_OF_MEMORY else CauseKind.EXIT, ended.code, text)


class Running(Protocol):
    """One process that was started."""

    @property
    def pid(self) -> int: ...

    @property
    def how(self) -> str:
        """`zygote`, `exec`, …: for status and logs."""

    @property
    def link(self) -> Link: ...

    @property
    def handoff(self) -> socket.socket | None:
        """The kernel's end of the socket that takes descriptors to it, where its spec says that it has one."""

    async def wait(self) -> Exit:
        """Until it is gone, with all that it spawned in its process group; may be awaited again after cancellation."""

    def became_ready(self) -> None:
        """It is READY: what makes the start of the next generation quick is done from now on."""

    def signal(self, number: int) -> None:
        """Send a signal to the process itself; nothing where it is gone.  A stopped process is continued to get it."""

    def kill(self) -> None:
        """SIGKILL to the process and what it spawned; nothing where they are gone."""

    def is_stopped(self) -> bool:
        """Whether it was stopped by a signal, and does nothing until it is let go on."""

    def activity(self) -> Activity | None:
        """What its threads are at.  None where unknown."""

    def memory_bytes(self) -> int | None:
        """Memory of its own: anonymous and shared, swapped out included, file-backed not.  None where unknown."""

    async def tend(self, used: bool) -> None:
        """Housekeeping, with each ping (the size of its log, say); `used`: clients have called it since the last."""

    def close(self) -> None:
        """Give back what was held for it; after `wait`."""


class Placement(Protocol):
    """A way to start generations."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """What runs beside the generations (zygotes, say), until cancelled."""

    async def start(self, spec: ServiceSpec, birth: Birth) -> Running:
        """Start a generation.  Cancellation leaves no process behind.  Raises SpawnError."""

    def dismiss(self, service: str) -> None:
        """No generation will follow soon: what was made ready for one is given up."""

    def hurry(self, service: str) -> None:
        """Somebody waits for its first generation."""

    def standby_pid(self, service: str) -> int | None:
        """The process that waits to be the next generation, if there is one."""
