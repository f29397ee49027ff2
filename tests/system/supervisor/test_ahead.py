"""The first front loads beside the kernel: its process is started before there is anything to tell it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from linckia.kernel.supervisor.spawn import Ahead
from linckia.services.runtime.main import EXIT_KERNEL_GONE
from tests.system.running import REPOSITORY, running


@pytest.fixture
def ahead(tmp_path: Path) -> Iterator[Ahead]:
    started = Ahead(tmp_path)
    yield started
    for end in (*started.link, *started.handoff):
        end.close()
    for fd in started.log:
        os.close(fd)
    started.process.kill()
    started.process.wait()


def test_first_front_is_the_process_that_was_started_ahead_and_the_next_is_not(tmp_path: Path) -> None:
    with running(tmp_path, services=["echo"]) as kernel:
        assert kernel.log("front").count("started by ahead") == 1
        kernel.kill("front")
        kernel.wait_ready("front")
        assert kernel.log("front").count("started by ahead") == 1
        assert kernel.call("mcp.echo", {"message": "again"})


def test_process_that_was_never_told_what_it_is_ends_with_its_kernel(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys; from linckia.kernel.supervisor.spawn import Ahead\n"
        "ahead = Ahead(pathlib.Path(sys.argv[1])); print(ahead.process.pid, ahead.log[0], flush=True)\n"
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


def test_certificate_that_is_cut_off_makes_no_service(ahead: Ahead) -> None:
    assert ahead.give(b'{"service": "fr') is ahead.process
    assert ahead.process.wait(60) == EXIT_KERNEL_GONE


def test_one_that_has_died_is_not_there_to_be_anything(ahead: Ahead) -> None:
    ahead.process.kill()
    ahead.process.wait()
    assert ahead.give(b"{}") is None


def test_kernel_holds_its_directory_before_it_loads_what_takes_long() -> None:
    code = (
        "import sys, linckia.kernel.cli.serve; print(sorted({'trio', 'mcp', 'starlette', 'apsw'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
