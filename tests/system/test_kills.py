"""Any service can be killed, stopped or lost in the middle of a write: every call is answered, and answered right."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from kernel.cli.care.data_format import program
from proto.control.client import CallFailed
from proto.manifest import Keep
from tests.chaos.comparison import turns_of
from tests.system.kills import assail
from tests.system.running import Connection, RunningKernel, connection, running, wait_until
from tests.system.support.rig import is_alive
from tests.system.support.workloads import WORKLOADS, make_folder, wait_for_folder


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    folder = tmp_path_factory.mktemp("folder")
    make_folder(folder)
    # None rests, so that a test which names a process finds it.
    never = {"LINCKIA_REST_AFTER_S": "0"}
    with running(tmp_path_factory.mktemp("data"), [folder], environment=never) as started:
        wait_for_folder(started)
        yield started


@pytest.mark.parametrize("service", WORKLOADS)
async def test_every_call_in_flight_gets_a_correct_answer_while_its_service_is_killed(
    kernel: RunningKernel, service: str
) -> None:
    outcome = await assail(kernel, WORKLOADS[service], 3)
    assert outcome.wrong == []
    assert outcome.failed == []
    assert outcome.generations == 3, f"deaths: {kernel.service(service)['deaths']}; {kernel.log(service)[-2000:]}"
    assert outcome.answered > 32


def test_turns_that_were_asked_again_after_a_death_are_kept_once(kernel: RunningKernel) -> None:
    """Those of the kills above."""
    there = Counter(turns_of(kernel.data_dir))
    assert set(there.values()) == {1}
    assert set(there) == {f"{said} {n}" for n in range(len(there) // 2) for said in ("question", "answer")}


def test_preparations_of_confined_standbys_succeed(kernel: RunningKernel) -> None:
    """They are made again after each of the kills above."""
    assert "waits for its turn" in kernel.log("yaml")
    assert [name for name in WORKLOADS if "cannot be prepared" in kernel.log(name)] == []


def test_workloads_cover_every_service(kernel: RunningKernel) -> None:
    assert set(kernel.services()) == set(WORKLOADS)


def test_a_death_does_not_affect_other_services(kernel: RunningKernel) -> None:
    before = {name: kernel.service(name)["pid"] for name in WORKLOADS if name != "yaml"}
    kernel.kill("yaml", signal.SIGSEGV)
    kernel.wait_ready("yaml")
    assert {name: kernel.service(name)["pid"] for name in before} == before
    assert "signal" in kernel.service("yaml")["deaths"]


def test_faults_are_injected_only_if_allowed_at_the_start(kernel: RunningKernel) -> None:
    with pytest.raises(CallFailed, match="unknown operation 'kernel_chaos'"):
        kernel.call("kernel_chaos", {"service": "yaml", "fault": "drop"})


def test_service_without_descriptors_is_replaced_and_its_call_answered(kernel: RunningKernel) -> None:
    before = kernel.service("yaml")
    soft, hard = resource.prlimit(before["pid"], resource.RLIMIT_NOFILE)
    resource.prlimit(before["pid"], resource.RLIMIT_NOFILE, (4, hard))
    name, params = WORKLOADS["yaml"].request(0)
    assert WORKLOADS["yaml"].is_right(0, kernel.call(name, params))
    kernel.wait_ready("yaml")
    now = kernel.service("yaml")
    assert now["generation"] > before["generation"]
    assert resource.prlimit(now["pid"], resource.RLIMIT_NOFILE)[0] == soft


async def test_hung_service_is_replaced_and_its_calls_are_answered(kernel: RunningKernel) -> None:
    name, params = WORKLOADS["yaml"].request(0)
    hangs = kernel.service("yaml")["deaths"].get("hang", 0)
    async with connection(kernel.data_dir) as line:
        kernel.kill("yaml", signal.SIGSTOP)
        with trio.fail_after(60):
            answer = await line.call(name, params)
        assert WORKLOADS["yaml"].is_right(0, answer.result)
    assert kernel.service("yaml")["deaths"]["hang"] == hangs + 1


async def test_a_write_in_flight_at_a_death_is_reported_as_maybe_executed(kernel: RunningKernel) -> None:
    folder = Path(kernel.status()["roots"][0])
    (folder / "list.yaml").write_text("items:\n- a\n")
    outcome: list[dict[str, Any] | None] = []

    async def append() -> None:
        async with connection(kernel.data_dir) as line:
            answer = await line.call("yaml_append", {"file": "list.yaml", "path": "items", "value": "b"})
            outcome.append(answer.failure)

    async with trio.open_nursery() as nursery, connection(kernel.data_dir) as control:
        pid = kernel.kill("yaml", signal.SIGSTOP)
        nursery.start_soon(append)
        with trio.fail_after(30):
            while not outcome and not await _in_flight(control, "yaml"):  # noqa: ASYNC110  another process's state has no event here
                await trio.sleep(0.01)
        # One that stands still is killed by the kernel as well, some time.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert outcome[0] is not None
    assert (outcome[0]["kind"], outcome[0]["executed"]) == ("maybe_executed", "maybe")
    assert (folder / "list.yaml").read_text() == "items:\n- a\n"


async def _in_flight(control: Connection, service: str) -> int:
    answer = await control.call("kernel_status", {})
    return int(next(s["in_flight"] for s in answer.result["services"] if s["name"] == service))


async def test_acknowledged_writes_are_on_disk_whatever_is_killed(kernel: RunningKernel) -> None:
    file = Path(kernel.status()["roots"][0]) / "counter.yaml"
    file.write_text("# counts\nn: 0  # so far\n")
    acknowledged = 0
    done = trio.Event()

    async def killer() -> None:
        for _ in range(8):
            await trio.sleep(random.uniform(0.0, 0.1))
            await trio.to_thread.run_sync(kernel.kill, "yaml")
            await trio.to_thread.run_sync(kernel.wait_ready, "yaml")
        done.set()

    async with trio.open_nursery() as nursery, connection(kernel.data_dir) as line:
        nursery.start_soon(killer)
        while not done.is_set():
            answer = await line.call("yaml_set", {"file": "counter.yaml", "path": "n", "value": str(acknowledged + 1)})
            assert answer.failure is None
            acknowledged += 1
            assert file.read_text() == f"# counts\nn: {acknowledged}  # so far\n"
    assert acknowledged > 8


def test_every_file_of_a_data_directory_is_declared_to_backups(kernel: RunningKernel) -> None:
    found = [each for each in program().stores.walk(kernel.data_dir) if not each.is_dir]
    assert [each.path for each in found if each.keep is None] == []
    databases = {each.path for each in found if each.path.endswith(".db") and each.keep is Keep.SOURCE}
    stores = ("documents/packs.db", "transcripts/transcripts.db", "files/files.db")
    assert databases >= {f"services/{name}" for name in stores}


def test_no_process_outlives_a_killed_kernel(tmp_path: Path) -> None:
    # One process of each zygote except torch's, which is a process like the others.
    services = ("echo", "watch", "retrieve", "documents", "decode")
    with running(tmp_path / "data", [tmp_path], services=services) as doomed:
        status = doomed.status()
        pids = [service["pid"] for service in status["services"]] + [zygote["pid"] for zygote in status["zygotes"]]
        doomed.process.kill()
        doomed.process.wait()
        wait_until(lambda: not any(map(is_alive, pids)), said=lambda: list(filter(is_alive, pids)))
