"""Services that nobody calls, with real processes: they end, and the next call finds them as if they had not."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.system.running import Answer, Connection, RunningKernel, connection, running, wait_until
from tests.system.support.rig import is_alive

PATIENCE_S = 30.0
RACES = 4
SERVICES = ("echo", "yaml", "llm", "rerank", "files", "watch", "knowledge", "documents", "retrieve")
QUICK = {"LINCKIA_REST_AFTER_S": "0.3"}


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    folder = tmp_path_factory.mktemp("rest")
    (folder / "root").mkdir()
    (folder / "root" / "a.yaml").write_text("b: 1\n")
    with running(folder / "data", [folder / "root"], environment=QUICK, services=SERVICES, all_ready=False) as kernel:
        yield kernel


def until_resting(kernel: RunningKernel, *names: str) -> dict[str, dict[str, Any]]:
    def status() -> dict[str, dict[str, Any]]:
        return {service["name"]: service for service in kernel.status()["services"]}

    wait_until(lambda: all(status()[name]["state"] == "resting" for name in names), PATIENCE_S, said=status)
    return status()


def test_services_without_calls_have_no_process_and_answer_all_the_same(kernel: RunningKernel) -> None:
    kernel.wait_ready("echo", "yaml")
    before = {name: kernel.service(name) for name in ("echo", "yaml")}
    pids = {kernel.service(name)["pid"] for name in ("echo", "yaml")}
    status = until_resting(kernel, "echo", "yaml")
    assert {status[name]["pid"] for name in ("echo", "yaml")} == {None}
    assert {status[name]["standby_pid"] for name in ("echo", "yaml")} == {None}
    assert "starts at the next call" in status["echo"]["reason"]
    assert not any(map(is_alive, pids - {None}))
    assert kernel.call("mcp.echo", {"message": "hello"}) == {"message": "hello"}
    file = str(kernel.data_dir.parent / "root" / "a.yaml")
    assert "1" in str(kernel.call("yaml_get", {"file": file, "path": "b"}))
    status = {service["name"]: service for service in kernel.status()["services"]}
    for name in ("echo", "yaml"):
        assert status[name]["generation"] > before[name]["generation"]
        assert [status[name][of] for of in ("deaths", "restarts")] == [
            before[name][of] for of in ("deaths", "restarts")
        ]


def test_a_reranker_that_has_no_model_rests_and_says_so_when_it_is_asked(kernel: RunningKernel) -> None:
    if kernel.call("rerank_model", timeout_s=PATIENCE_S)["available"]:
        pytest.skip("a reranking model is on this machine, so its service stays")
    status = until_resting(kernel, "rerank")
    assert status["rerank"]["pid"] is None
    answer = kernel.call("rerank_model", timeout_s=PATIENCE_S)
    assert not answer["available"]
    assert "no reranking model" in answer["reason"]


def test_services_with_background_work_do_not_rest(kernel: RunningKernel) -> None:
    kernel.wait_ready("files", "watch", "knowledge", "documents", "retrieve")
    until_resting(kernel, "echo", "llm")
    status = {service["name"]: service["state"] for service in kernel.status()["services"]}
    assert {status[name] for name in ("files", "watch", "knowledge", "documents", "retrieve")} == {"ready"}


def test_calls_that_race_with_the_end_are_all_answered(kernel: RunningKernel) -> None:
    chance = random.Random(7)
    first = kernel.service("echo")

    async def race() -> list[Answer]:
        answers: list[Answer] = []
        async with connection(kernel.data_dir) as asking, connection(kernel.data_dir) as looking:
            while await rests_since(looking) < RACES:
                # Around the moment at which it is found to be idle, and while it ends.
                await trio.sleep(chance.uniform(0.0, 2.0))
                answers.append(await asking.call("mcp.echo", {"message": "hello"}))
        return answers

    async def rests_since(looking: Connection) -> int:
        status = (await looking.call("kernel_status", {})).result
        echo = next(service for service in status["services"] if service["name"] == "echo")
        return int(echo["generation"]) - int(first["generation"])

    answers = trio.run(race)
    assert [answer.failure for answer in answers if answer.failure is not None] == []
    assert {answer.result["message"] for answer in answers} == {"hello"}
    assert kernel.service("echo")["deaths"] == first["deaths"]


def test_killed_while_it_wakes_it_answers_all_the_same(kernel: RunningKernel) -> None:
    for _ in range(3):
        before = until_resting(kernel, "echo")["echo"]["generation"]
        killed: list[int] = []

        async def kill_the_next(before: int = before, killed: list[int] = killed) -> None:
            async with connection(kernel.data_dir) as looking, trio.open_nursery() as nursery:
                answers: list[Answer] = []

                async def ask() -> None:
                    async with connection(kernel.data_dir) as asking:
                        answers.append(await asking.call("mcp.echo", {"message": "hello"}))

                nursery.start_soon(ask)
                while not killed:
                    status = (await looking.call("kernel_status", {})).result
                    echo = next(service for service in status["services"] if service["name"] == "echo")
                    if echo["generation"] > before and echo["pid"] is not None:
                        # One that has answered may rest again by now.
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(echo["pid"], signal.SIGKILL)
                            killed.append(echo["pid"])
            assert [answer.failure for answer in answers] == [None]

        trio.run(kill_the_next)
    # One that is killed in its next rest's first moment has rested all the same.
    assert set(kernel.service("echo")["deaths"]) <= {"signal"}


def test_the_system_ends_in_order_while_services_rest(tmp_path: Path) -> None:
    with running(tmp_path / "data", environment=QUICK, services=["echo", "llm", "fetch"]) as kernel:
        until_resting(kernel, "echo", "llm", "fetch")
        kernel.process.terminate()
        assert kernel.process.wait(PATIENCE_S) == 0


def test_a_resting_service_can_be_stopped_and_started_by_hand(kernel: RunningKernel) -> None:
    until_resting(kernel, "echo")
    kernel.call("kernel_stop", {"service": "echo"})
    assert kernel.service("echo")["state"] == "stopped"
    kernel.call("kernel_start", {"service": "echo"})
    assert kernel.call("mcp.echo", {"message": "back"}) == {"message": "back"}
    until_resting(kernel, "echo")
    assert "ready" in kernel.call("kernel_restart", {"service": "echo"})["message"]
