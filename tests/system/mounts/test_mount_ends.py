"""No process of a mounted server outlives it: whatever dies, and whatever sessions its processes made."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proto.control.client import CallFailed
from tests.system.mounts.mounting import SERVER, call, mounted, write
from tests.system.running import RunningKernel, wait_until

MARK = "600.125"
"""Argument of the sleeping processes; the test adds its own digits."""


def sleepers(mark: str) -> list[int]:
    """Return the processes of this test that sleep."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if command[:2] == [b"sleep", mark.encode()]:
                found.append(int(folder.name))
    return found


@pytest.fixture
def mark() -> str:
    return f"{MARK}{os.getpid()}"


@pytest.fixture
def kernel(tmp_path: Path, mark: str) -> Iterator[RunningKernel]:
    """A kernel with a server that has a child, and one with its own session."""
    line = f"sleep {mark} & setsid sleep {mark} & exec {sys.executable} {SERVER}"
    with mounted(tmp_path / "data", {"one": {"command": "sh", "args": ["-c", line]}}) as k:
        assert call(k, "one", "echo", text="hello") == "hello"
        wait_until(lambda: len(sleepers(mark)) == 2)
        yield k


def adapter_dies(kernel: RunningKernel) -> None:
    kernel.call("kernel_stop", {"service": "mcp_one"})


def adapter_is_killed(kernel: RunningKernel) -> None:
    # It is not started again meanwhile.
    write(kernel.data_dir, {})
    pid = kernel.service("mcp_one")["pid"]
    os.kill(pid, signal.SIGSTOP)
    kernel.call("kernel_reload_mounts")
    # The kernel replaces a service that stands still, on a busy machine before this.
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def it_is_removed(kernel: RunningKernel) -> None:
    write(kernel.data_dir, {})
    kernel.call("kernel_reload_mounts")


def kernel_ends(kernel: RunningKernel) -> None:
    kernel.process.terminate()


def kernel_is_killed(kernel: RunningKernel) -> None:
    kernel.process.kill()


@pytest.mark.parametrize("happens", [adapter_dies, adapter_is_killed, it_is_removed, kernel_ends, kernel_is_killed])
def test_no_process_is_left(kernel: RunningKernel, mark: str, happens: Callable[[RunningKernel], None]) -> None:
    happens(kernel)
    wait_until(lambda: not sleepers(mark), said=lambda: sleepers(mark))


def test_a_call_in_flight_of_a_server_that_dies_is_not_repeated(kernel: RunningKernel) -> None:
    with pytest.raises(CallFailed) as caught:
        call(kernel, "one", "die", "change")
    assert caught.value.failure["executed"] == "maybe"
    assert "the server was ended by SIGKILL" in str(caught.value)
    assert call(kernel, "one", "echo", text="hello") == "hello"


def test_a_repeatedly_killed_server_is_not_treated_as_a_crash_loop(kernel: RunningKernel) -> None:
    pids = set()
    for _ in range(12):
        pid = int(call(kernel, "one", "pid"))
        pids.add(pid)
        os.kill(pid, signal.SIGKILL)
    assert call(kernel, "one", "echo", text="hello") == "hello"
    assert len(pids) == 12
    found = kernel.service("mcp_one")
    assert (set(found["deaths"]), found["last_death"]) == ({"signal"}, "the server was ended by SIGKILL")
