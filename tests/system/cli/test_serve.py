"""`linckia serve` and the commands that speak to it."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.system.cli.clients import LINCKIA, SUBSET, TIMEOUT_S, command, data_directory, environment, linckia
from tests.system.running import RunningKernel, running, wait_until


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with data_directory(tmp_path_factory.mktemp("serve") / "data") as path:
        yield path


@pytest.fixture(scope="module")
def kernel(data: Path) -> Iterator[RunningKernel]:
    with running(data, services=["echo", "yaml"]) as kernel:
        yield kernel


def test_call_prints_the_result_as_json(kernel: RunningKernel, data: Path) -> None:
    done = linckia(data, "call", "mcp.echo", '{"message": "häl\\nlo"}')
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"message": "häl\nlo"}


def test_call_reads_its_parameters_from_stdin(kernel: RunningKernel, data: Path) -> None:
    done = command(data, "call", "mcp.echo", "-", stdin='{"message": "piped"}')
    assert json.loads(done.stdout) == {"message": "piped"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("mcp.ecko",), "did you mean mcp_echo?"),
        (("mcp.echo",), "message"),
        (("mcp.echo", '{"mesage": "x"}'), "mesage"),
        (("mcp.echo", '{"message": 3}'), "message"),
        (("kernel_restart", '{"service": "nothing"}'), "nothing"),
    ],
)
def test_a_call_that_fails_says_why_on_stderr_and_exits_with_1(
    kernel: RunningKernel, data: Path, arguments: tuple[str, ...], words: str
) -> None:
    done = command(data, "call", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_status_shows_every_service(kernel: RunningKernel, data: Path) -> None:
    done = command(data, "status")
    assert done.returncode == 0
    names = [service["name"] for service in json.loads(command(data, "status", "--json").stdout)["services"]]
    assert "echo" in names
    assert all(any(line.startswith(name) for line in done.stdout.splitlines()) for name in names)


def test_status_shows_deaths_and_growth_per_day(kernel: RunningKernel, data: Path) -> None:
    lines = command(data, "status", "--trends").stdout.split("\n\n")[1].splitlines()
    assert lines[0].split() == ["SERVICE", "DEATHS/DAY", "STORE", "GROWTH/DAY", "DAYS"]
    assert any(line.split()[:2] == ["yaml", "0.0"] for line in lines)
    told = json.loads(command(data, "status", "--json").stdout)["trends"]
    assert {one["name"] for one in told} >= {"echo", "yaml"}


def test_a_service_is_restarted_stopped_and_started_by_hand(kernel: RunningKernel, data: Path) -> None:
    before = kernel.service("echo")["generation"]
    assert command(data, "restart", "echo").returncode == 0
    assert kernel.service("echo")["generation"] == before + 1
    assert command(data, "stop", "echo").returncode == 0
    assert kernel.service("echo")["state"] == "stopped"
    done = command(data, "call", "mcp.echo", '{"message": "x"}')
    assert done.returncode == 1
    assert "echo is stopped" in done.stderr
    assert "linckia status" in done.stderr
    assert command(data, "start", "echo").returncode == 0
    assert command(data, "call", "mcp.echo", '{"message": "x"}').returncode == 0


def test_a_second_kernel_of_the_same_data_directory_is_refused(kernel: RunningKernel, data: Path) -> None:
    done = linckia(data, "serve", "--no-http")
    assert done.returncode == 3
    assert str(kernel.process.pid) in done.stderr


def test_the_kernels_log_is_one_json_object_a_line(kernel: RunningKernel, data: Path) -> None:
    done = command(data, "logs", "-n", "3")
    entries = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(entries) == 3
    assert all({"time", "level", "logger", "message"} <= set(entry) for entry in entries)


@contextlib.contextmanager
def following(data: Path, *command: str) -> Iterator[IO[str]]:
    """Run a command that never ends; yield its output as a pipe."""
    process = subprocess.Popen([*LINCKIA, *command], env=environment(data), stdout=subprocess.PIPE, text=True)
    patience = threading.Timer(TIMEOUT_S, process.kill)
    patience.start()
    try:
        assert process.stdout is not None
        yield process.stdout
    finally:
        patience.cancel()
        process.kill()
        process.communicate()


def test_new_lines_of_a_followed_log_are_shown(kernel: RunningKernel, data: Path) -> None:
    with following(data, "logs", "-n", "1", "-f") as shown:
        # The last line is seen before anything more is written.
        assert "message" in json.loads(shown.readline())
        assert command(data, "restart", "echo").returncode == 0
        while "echo" not in json.loads(shown.readline())["message"]:
            pass


def test_new_lines_of_a_followed_audit_log_are_shown(kernel: RunningKernel, data: Path) -> None:
    restarts = ("audit", "--operation", "kernel_restart", "--json")
    assert command(data, "restart", "echo").returncode == 0
    wait_until(lambda: command(data, *restarts).stdout)
    with following(data, *restarts, "-n", "1", "-f") as shown:
        assert json.loads(shown.readline())["target"] == "service=echo"
        assert command(data, "restart", "yaml").returncode == 0
        assert json.loads(shown.readline())["target"] == "service=yaml"


def test_doctor_finds_the_running_kernel(kernel: RunningKernel, data: Path) -> None:
    findings = {finding["what"]: finding for finding in json.loads(command(data, "doctor", "--json").stdout)}
    assert str(kernel.process.pid) in findings["kernel"]["found"]
    assert findings["torch"]["verdict"] == "ok"


@pytest.mark.parametrize("end", ["stop", "SIGTERM", "SIGINT"])
def test_it_ends_in_order_with_exit_code_0_and_leaves_no_process(tmp_path: Path, end: str) -> None:
    # One process of each zygote except torch's.
    services = ("echo", "watch", "retrieve", "decode")
    with running(tmp_path / "data", services=services, all_ready=False) as kernel:
        pids = [service["pid"] for service in kernel.status()["services"] if service["pid"]]
        if end == "stop":
            assert command(tmp_path / "data", "stop").returncode == 0
        else:
            kernel.process.send_signal(signal.Signals[end])
        assert kernel.process.wait(TIMEOUT_S) == 0
        assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
        assert not (tmp_path / "data" / "kernel.sock").exists()


def test_a_kernel_in_the_background_is_not_ended_by_ctrl_c_or_the_end_of_the_terminal(tmp_path: Path) -> None:
    # As `nohup linckia serve &` in a script.
    start = ("bash", "-c", "trap '' INT HUP; exec \"$@\"", "bash", *SUBSET, "echo", "serve")
    with running(tmp_path / "data", command=start) as kernel:
        kernel.process.send_signal(signal.SIGINT)
        kernel.process.send_signal(signal.SIGHUP)
        found = re.search(r"^SigIgn:\s*(\w+)$", Path(f"/proc/{kernel.process.pid}/status").read_text(), re.MULTILINE)
        assert found is not None
        ignored = int(found[1], 16)
        assert all(ignored >> number - 1 & 1 for number in (signal.SIGINT, signal.SIGHUP))
        assert kernel.status()["pid"] == kernel.process.pid
        kernel.process.terminate()
        assert kernel.process.wait(TIMEOUT_S) == 0


def test_a_service_manager_is_notified_of_readiness_health_and_end(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(TIMEOUT_S)
        told = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"}
        with running(tmp_path / "data", services=["echo"], environment=told) as kernel:
            heard: set[bytes] = set()
            while not heard >= {b"READY=1", b"WATCHDOG=1"}:
                heard.add(manager.recv(100))
            assert len(heard) == 2
            kernel.process.terminate()
            while (last := manager.recv(100)) != b"STOPPING=1":
                assert last == b"WATCHDOG=1"
            assert kernel.process.wait(TIMEOUT_S) == 0


def test_a_port_that_is_taken_is_named_with_what_to_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = linckia(tmp_path / "data", "serve", "--http", address)
    assert done.returncode == 2
    assert address in done.stderr
    assert "--no-http" in done.stderr
    assert "Traceback" not in done.stderr


def test_too_few_descriptors_are_one_sentence_with_the_remedy(tmp_path: Path) -> None:
    command = ("bash", "-c", 'ulimit -n 128; exec "$@"', "bash", *LINCKIA, "serve", "--no-http")
    done = subprocess.run(
        [*command, "--data", str(tmp_path / "data")], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 1
    assert "allows a process 128 open files" in done.stderr
    assert "ulimit -n" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_data_directory_that_cannot_be_written_is_one_sentence_with_the_remedy(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "kernel.lock").symlink_to("/dev/full")
    done = linckia(data, "serve", "--no-http")
    assert done.returncode == 1
    assert f"cannot write to {data / 'kernel.lock'}" in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_unknown_service_in_the_settings_is_named(tmp_path: Path) -> None:
    done = linckia(tmp_path / "data", "serve", "--no-http", LINCKIA_SERVICES__EMBDE__MODEL="x")
    assert done.returncode == 2
    assert "embde" in done.stderr
