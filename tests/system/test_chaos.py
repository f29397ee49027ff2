"""Faults that are injected into the links of a real kernel, through its hook for them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proto.control.client import CallFailed
from tests.chaos.clock import Clock
from tests.chaos.links import LINKS
from tests.system.running import RunningKernel, running, wait_until


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Clock:
    return Clock(tmp_path_factory.mktemp("clock"))


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory, clock: Clock) -> Iterator[RunningKernel]:
    folder = tmp_path_factory.mktemp("data")
    with running(folder, services=["echo"], environment={**LINKS, **clock.environment}) as started:
        yield started


def chaos(kernel: RunningKernel, fault: str, direction: str, **more: Any) -> None:
    kernel.call("kernel_chaos", {"service": "echo", "fault": fault, "direction": direction, **more})


def test_a_lost_answer_times_out_its_own_call_only(kernel: RunningKernel) -> None:
    chaos(kernel, "drop", "from", frame="return")
    with pytest.raises(CallFailed, match="no answer") as failed:
        kernel.call("mcp.echo", {"message": "lost"}, timeout_s=0.5)
    assert failed.value.failure["kind"] == "timeout"
    assert kernel.call("mcp.echo", {"message": "here"}) == {"message": "here"}


def test_call_that_comes_late_is_answered_once(kernel: RunningKernel) -> None:
    chaos(kernel, "delay", "to", count=3, frame="call", delay_ms=50)
    for n in range(4):
        assert kernel.call("mcp.echo", {"message": str(n)}) == {"message": str(n)}


def test_service_whose_pongs_are_lost_is_replaced_as_one_that_hangs(kernel: RunningKernel) -> None:
    before = kernel.service("echo")
    chaos(kernel, "drop", "from", frame="pong", count=1000)
    wait_until(lambda: kernel.service("echo")["deaths"].get("hang", 0) > before["deaths"].get("hang", 0))
    chaos(kernel, "clear", "from")
    kernel.wait_ready("echo")


def test_wall_clock_that_jumps_ends_nothing(kernel: RunningKernel, clock: Clock) -> None:
    before = kernel.status()
    for day in (1, -1):
        clock.jump_to(day * 86400)
        assert kernel.call("mcp.echo", {"message": "x"}) == {"message": "x"}
        now = kernel.status()
        assert [one["generation"] for one in now["services"]] == [one["generation"] for one in before["services"]]
        assert now["uptime_s"] < 3600
    clock.jump_to(0)


def test_an_unknown_service_is_named(kernel: RunningKernel) -> None:
    with pytest.raises(CallFailed, match="there is no service 'ecko'"):
        kernel.call("kernel_chaos", {"service": "ecko", "fault": "drop"})


@pytest.mark.parametrize(
    ("module", "why"),
    [("tests.chaos.lynx", "No module named"), ("tests.chaos.clock", "has no attribute 'Injector'")],
)
def test_module_that_injects_nothing_is_named(module: str, why: str, tmp_path: Path) -> None:
    environment = {**os.environ, **LINKS, "LINCKIA_CHAOS_MODULE": module}
    command = [sys.executable, "-m", "kernel.cli", "serve", "--data", str(tmp_path), "--no-http"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert f"chaos.module is '{module}'" in ended.stderr
    assert why in ended.stderr
