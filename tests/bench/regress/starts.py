"""Starts, and kills: how long a client waits for its first answer, and for the next one after a process has died."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.bench.parts.wire import ECHO, Stdio, call_body, checked
from tests.bench.regress.checkouts import Checkout
from tests.bench.regress.figures import Subject
from tests.bench.regress.kernels import Failed, Kernel, proportional_mb, running_kernel, settle
from tests.bench.start import first_answers, peer, wait_for_its_end

ANSWER_TIMEOUT_S = 30.0
SERVICE_KILLS = 3
"""Kills of a service in a block."""
AT_REST_S = 40.0
"""How long a kernel may take to settle before its memory is measured."""


class ColdStarts:
    """`linckia stdio` on a new data directory, and the peer before it."""

    def __init__(self, checkouts: Mapping[Subject, Checkout]) -> None:
        self._checkouts = checkouts
        self.peer_ms: list[float] = []

    def measure(self, subject: Subject) -> tuple[list[float], list[float]]:
        """Return the milliseconds to the answers of `initialize` and of `tools/list`."""
        self.peer_ms.append(peer() * 1000)
        with tempfile.TemporaryDirectory(prefix="linckia-regress-") as fresh:
            opened, listed, _ = first_answers(Path(fresh), self._checkouts[subject].command())
            wait_for_its_end(Path(fresh))
        return [opened * 1000], [listed * 1000]


def join(kernel: Kernel) -> tuple[list[float], list[float]]:
    """Return the milliseconds of two clients that join a running kernel, to `initialize` and to `tools/list`."""
    taken = [first_answers(kernel.data, kernel.checkout.command()) for _ in range(2)]
    return [opened * 1000 for opened, _, _ in taken], [listed * 1000 for _, listed, _ in taken]


def kill_service(kernel: Kernel, service: str, tool: str, arguments: Mapping[str, Any]) -> list[float]:
    """Return the milliseconds from each kill of a service to the answer of a call sent after it. Raises Failed."""
    kernel.reconnect()
    taken: list[float] = []
    while len(taken) < SERVICE_KILLS:
        settle(kernel.pid)
        before = _ready(kernel, service)
        body = kernel.body(tool, arguments)
        kernel.http.ask(body)
        start = time.perf_counter()
        os.kill(before["pid"], signal.SIGKILL)
        answer = kernel.http.ask(body)
        took = (time.perf_counter() - start) * 1000
        if b'"isError":false' not in answer:
            raise Failed(f"after the kill: {answer[:200]!r}")
        if _ready(kernel, service)["generation"] == before["generation"]:
            raise Failed(f"{service} was not replaced")
        taken.append(took)
    return taken


def _ready(kernel: Kernel, service: str) -> dict[str, Any]:
    give_up = time.monotonic() + ANSWER_TIMEOUT_S
    while (found := kernel.services()[service])["state"] != "ready" or not found["pid"]:
        if time.monotonic() > give_up:
            raise Failed(f"{service} is {found['state']}")
        time.sleep(0.01)
    return found


class KernelKills:
    """A `linckia stdio` client whose kernel, started for it, is killed again and again."""

    def __init__(self, checkout: Checkout) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="linckia-regress-")
        self._data = Path(self._folder.name)
        self._client = Stdio(checkout.command("stdio", "--data", str(self._data)), quiet=True)
        self._number = 0

    def measure(self) -> list[float]:
        """Return the milliseconds from a kill of the kernel to the client's next answer. Raises Failed."""
        self._ask()
        pid = self._kernel()
        settle(pid)
        start = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        self._ask()
        took = (time.perf_counter() - start) * 1000
        if self._kernel() == pid:
            raise Failed("the kernel was not replaced")
        return [took]

    def _kernel(self) -> int:
        return int((self._data / "kernel.lock").read_text())

    def _ask(self) -> None:
        self._number += 1
        watchdog = threading.Timer(ANSWER_TIMEOUT_S, self._client.kill)
        watchdog.start()
        try:
            answer = self._client.exchange(call_body(self._number, ECHO))
            while answer and b'"id":%d,' % self._number not in answer:
                # A new kernel also announces that its lists may have changed.
                answer = self._client.receive()
            checked(answer)
        except (AssertionError, OSError) as error:
            raise Failed(f"no answer within {ANSWER_TIMEOUT_S:.0f} s, or a wrong one: {error}") from None
        finally:
            watchdog.cancel()

    def close(self) -> None:
        try:
            self._client.close()
            wait_for_its_end(self._data)
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            print(f"scripts/bench regress: {error}", file=sys.stderr)
        self._folder.cleanup()


def memory_at_rest(checkout: Checkout) -> list[float]:
    """Return the megabytes of a new kernel's tree after it has settled."""
    with (
        tempfile.TemporaryDirectory(prefix="linckia-regress-") as folder,
        running_kernel(checkout, Path(folder)) as kernel,
    ):
        kernel.prepare()
        settle(kernel.pid, timeout_s=AT_REST_S, windows=10)
        return [proportional_mb(kernel.pid)]
