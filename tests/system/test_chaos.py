"""`linckia chaos` on a real kernel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from linckia.kernel.cli.__main__ import main
from linckia.kernel.control.client import CallFailed
from tests.chaos.clock import Clock
from tests.system.running import RunningKernel, running, wait_until


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Clock:
    return Clock(tmp_path_factory.mktemp("clock"))


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory, clock: Clock) -> Iterator[RunningKernel]:
    folder = tmp_path_factory.mktemp("data")
    with running(folder, services=["echo"], environment={"LINCKIA_CHAOS": "true", **clock.environment}) as started:
        yield started


def chaos(kernel: RunningKernel, *arguments: str) -> int:
    return main(["chaos", *arguments, "--data", str(kernel.data_dir)])


def test_answer_that_is_lost_is_a_time_out_of_that_call_alone(kernel: RunningKernel) -> None:
    assert chaos(kernel, "drop", "from", "echo", "--frame", "return") == 0
    with pytest.raises(CallFailed, match="no answer") as failed:
        kernel.call("mcp.echo", {"message": "lost"}, timeout_s=0.5)
    assert failed.value.failure["kind"] == "timeout"
    assert kernel.call("mcp.echo", {"message": "here"}) == {"message": "here"}


def test_call_that_comes_late_is_answered_once(kernel: RunningKernel) -> None:
    assert chaos(kernel, "delay", "to", "echo", "--count", "3", "--frame", "call", "--delay-ms", "50") == 0
    for n in range(4):
        assert kernel.call("mcp.echo", {"message": str(n)}) == {"message": str(n)}


def test_service_whose_pongs_are_lost_is_replaced_as_one_that_hangs(kernel: RunningKernel) -> None:
    before = kernel.service("echo")
    assert chaos(kernel, "drop", "from", "echo", "--frame", "pong", "--count", "1000") == 0
    wait_until(lambda: kernel.service("echo")["deaths"].get("hang", 0) > before["deaths"].get("hang", 0))
    assert chaos(kernel, "clear", "from", "echo") == 0
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


def test_service_that_is_not_there_is_named(kernel: RunningKernel, capsys: pytest.CaptureFixture[str]) -> None:
    assert chaos(kernel, "drop", "from", "ecko") == 1
    assert "there is no service 'ecko'" in capsys.readouterr().err
