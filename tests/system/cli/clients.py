"""The command line in processes of its own, as users and MCP clients run it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernel.cli.__main__ import main
from proto.control.client import Client, ControlError, NoKernel
from tests.system.running import REPOSITORY

LINCKIA = (sys.executable, "-P", "-m", "kernel.cli")

SUBSET = (sys.executable, "-m", "tests.system.subset")

TIMEOUT_S = 60.0


def environment(data_dir: Path, **variables: str) -> dict[str, str]:
    return {**os.environ, "LINCKIA_DATA": str(data_dir), **variables}


def command(data_dir: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """As `linckia`, in this process: to start another takes longer than most commands do."""
    streams = [io.BytesIO(stdin.encode()), io.BytesIO(), io.BytesIO()]
    given, out, err = (io.TextIOWrapper(stream, encoding="utf-8", write_through=True) for stream in streams)
    before, sys.stdin = sys.stdin, given
    os.environ["LINCKIA_DATA"] = str(data_dir)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = main(arguments)
            except SystemExit as wrong_usage:
                code = int(wrong_usage.code or 0)
    finally:
        sys.stdin = before
        del os.environ["LINCKIA_DATA"]
    return subprocess.CompletedProcess(arguments, code, *(stream.getvalue().decode() for stream in streams[1:]))


def linckia(data_dir: Path, *arguments: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run(
        [*LINCKIA, *arguments],
        env=environment(data_dir, **variables),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


class StdioClient:
    """An MCP client on `linckia stdio`; requests and answers one at a time.

    A kernel that this starts has these services only.
    """

    def __init__(self, data_dir: Path, *arguments: str, services: str = "echo,yaml") -> None:
        self.process = subprocess.Popen(
            [*SUBSET, services, "stdio", *arguments],
            cwd=REPOSITORY,
            env=environment(data_dir),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._received: set[int] = set()

    def request(self, number: int, method: str, **params: Any) -> dict[str, Any]:
        """Raises EOFError where the server ends instead of answering."""
        self.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            message: dict[str, Any] = json.loads(line)
            if message.get("id") == number:
                return message
        raise EOFError(self.stderr())

    def may_repeat(self, number: int) -> None:
        """Let a front that is killed answer a request again that `request` has the answer of; see `receive`."""
        self._received.add(number)

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def receive(self, count: int) -> dict[int, dict[str, Any]]:
        """The next answers, by their ids; other messages are skipped.  Raises EOFError as `request`.

        A front that is killed between writing an answer and noting that leaves it to the next one, which answers once
        more: of what a front writes, that is one answer at most.
        """
        assert self.process.stdout is not None
        answers: dict[int, dict[str, Any]] = {}
        repeated: list[int] = []
        patience = threading.Timer(TIMEOUT_S, self.process.kill)
        patience.start()
        try:
            while len(answers) < count:
                line = self.process.stdout.readline()
                if not line:
                    raise EOFError(f"{sorted(answers)} are answered; {self.stderr()}")
                message: dict[str, Any] = json.loads(line)
                number = message.get("id")
                if number in self._received:
                    repeated.append(number)
                    assert len(repeated) == 1, f"answered twice: {repeated}, the last by {message}"
                elif number is not None:
                    answers[number] = message
                    self._received.add(number)
        finally:
            patience.cancel()
        return answers

    def initialize(self) -> dict[str, Any]:
        answer = self.request(
            0,
            "initialize",
            protocolVersion="2025-06-18",
            capabilities={},
            clientInfo={"name": "test", "version": "0"},
        )
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        result: dict[str, Any] = answer["result"]
        return result

    def call(self, number: int, name: str, **arguments: Any) -> dict[str, Any]:
        result: dict[str, Any] = self.request(number, "tools/call", name=name, arguments=arguments)["result"]
        return result

    def leave(self) -> int:
        """Close stdin, as an MCP client that shuts down cleanly does; return the exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(TIMEOUT_S)

    def stderr(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()


@contextlib.contextmanager
def stdio_client(data_dir: Path, *arguments: str, services: str = "echo,yaml") -> Iterator[StdioClient]:
    client = StdioClient(data_dir, *arguments, services=services)
    try:
        yield client
    finally:
        client.process.kill()
        client.process.wait()
        for stream in (client.process.stdin, client.process.stdout, client.process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def kernel_pid(data_dir: Path) -> int:
    with Client(data_dir) as client:
        pid: int = client.call_named("kernel_status", {})["pid"]
        return pid


def wait_until_ended(data_dir: Path, pid: int) -> None:
    """Wait until the kernel's process is gone."""
    give_up_at = time.monotonic() + TIMEOUT_S
    # It may go between the opening of that file and its reading.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while "State:\tZ" not in Path(f"/proc/{pid}/status").read_text():
            assert time.monotonic() < give_up_at, f"process {pid} is still there"
            time.sleep(0.01)


@contextlib.contextmanager
def data_directory(path: Path) -> Iterator[Path]:
    """Whatever kernel holds it at the end is ended, by the pid that it says."""
    try:
        yield path
    finally:
        with contextlib.suppress(NoKernel):
            try:
                pid = kernel_pid(path)
            except NoKernel:
                raise
            except ControlError:
                pid = int((path / "kernel.lock").read_text())
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            wait_until_ended(path, pid)
