"""Any service can be killed under load: every call is answered, and answered right."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel.control.client import CallFailed
from tests.system.kills import assail
from tests.system.running import RunningKernel, running
from tests.system.workloads import NOTES, WORKLOADS, make_folder


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    folder = tmp_path_factory.mktemp("folder")
    make_folder(folder)
    with running(tmp_path_factory.mktemp("data"), [folder]) as started:
        give_up = time.monotonic() + 60
        while started.call("knowledge_status")["notes"] < NOTES:
            assert time.monotonic() < give_up
            time.sleep(0.05)
        yield started


@pytest.mark.parametrize("service", WORKLOADS)
async def test_every_call_in_flight_is_answered_right_while_its_service_is_killed(
    kernel: RunningKernel, service: str
) -> None:
    outcome = await assail(kernel, WORKLOADS[service], 3)
    assert outcome.wrong == []
    assert outcome.failed == []
    assert outcome.generations == 3
    assert outcome.answered > 32


def test_workloads_cover_every_service(kernel: RunningKernel) -> None:
    assert set(kernel.services()) == set(WORKLOADS)


def test_others_are_not_touched_by_a_death(kernel: RunningKernel) -> None:
    before = {name: kernel.service(name)["pid"] for name in WORKLOADS if name != "yaml"}
    kernel.kill("yaml", signal.SIGSEGV)
    kernel.wait_ready("yaml")
    assert {name: kernel.service(name)["pid"] for name in before} == before
    assert "signal" in kernel.service("yaml")["deaths"]


def test_service_stopped_by_hand_stays_stopped_and_says_so(kernel: RunningKernel) -> None:
    kernel.call("kernel_stop", {"service": "echo"})
    try:
        with pytest.raises(CallFailed, match="stopped"):
            kernel.call("mcp.echo", {"message": "x"})
        assert kernel.service("echo")["state"] == "stopped"
    finally:
        kernel.call("kernel_start", {"service": "echo"})
    assert kernel.call("mcp.echo", {"message": "x"}) == {"message": "x"}


def test_no_process_outlives_a_killed_kernel(tmp_path: Path) -> None:
    with running(tmp_path / "data", [tmp_path]) as doomed:
        status = doomed.status()
        pids = [service["pid"] for service in status["services"]] + [zygote["pid"] for zygote in status["zygotes"]]
        doomed.process.kill()
        doomed.process.wait()
        give_up = time.monotonic() + 1.0
        while alive := [pid for pid in pids if _runs(pid)]:
            assert time.monotonic() < give_up, f"still there after a second: {alive}"
            time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
