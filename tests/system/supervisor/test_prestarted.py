"""The first front loads in parallel with the kernel: its process starts before its configuration exists."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel.supervisor.spawn import Prestarted
from services.runtime.main import EXIT_KERNEL_GONE
from tests.system.running import REPOSITORY, running


@pytest.fixture
def prestarted(tmp_path: Path) -> Iterator[Prestarted]:
    started = Prestarted(tmp_path)
    yield started
    for end in (*started.link, *started.handoff):
        end.close()
    for fd in started.log:
        os.close(fd)
    started.process.kill()
    started.process.wait()


def test_first_front_is_the_process_that_was_prestarted_and_the_next_is_not(tmp_path: Path) -> None:
    with running(tmp_path, services=["echo"]) as kernel:
        assert kernel.log("front").count("started by prestart ") == 1
        kernel.kill("front")
        kernel.wait_ready("front")
        assert kernel.log("front").count("started by prestart ") == 1
        assert kernel.call("mcp.echo", {"message": "again"})


def test_process_that_was_never_configured_ends_with_its_kernel(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys; from kernel.supervisor.spawn import Prestarted\n"
        "started = Prestarted(pathlib.Path(sys.argv[1])); print(started.process.pid, started.log[0], flush=True)\n"
        "sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as kernel:
        assert kernel.stdin is not None
        assert kernel.stdout is not None
        pidfd = os.pidfd_open(int(kernel.stdout.readline().split()[0]))
        kernel.stdin.close()
    try:
        assert select.select([pidfd], [], [], 60)[0], "it is still there"
    finally:
        os.close(pidfd)


def test_truncated_configuration_starts_no_service(prestarted: Prestarted) -> None:
    assert prestarted.configure(b'{"service": "fr') is prestarted.process
    assert prestarted.process.wait(60) == EXIT_KERNEL_GONE


def test_dead_process_cannot_be_configured(prestarted: Prestarted) -> None:
    prestarted.process.kill()
    prestarted.process.wait()
    assert prestarted.configure(b"{}") is None


def test_the_kernel_locks_its_directory_before_slow_imports() -> None:
    code = "import sys, kernel.cli.serve; print(sorted({'trio', 'mcp', 'starlette', 'apsw'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
