"""`linckia stdio` as an MCP client meets it: a kernel that runs, none, two clients at once, and every way to end."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.cli.clients import (
    LINCKIA,
    TIMEOUT_S,
    data_directory,
    environment,
    kernel_pid,
    linckia,
    stdio_client,
    wait_until_ended,
)
from tests.system.running import HTTP, RunningKernel, running, wait_until


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "notes"
    root.mkdir()
    return root


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    with data_directory(tmp_path / "data") as path:
        yield path


@pytest.fixture
def kernel(data: Path, root: Path) -> Iterator[RunningKernel]:
    with running(data, [root], services=["echo", "yaml"]) as kernel:
        yield kernel


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    """A kernel whose state the tests do not change."""
    with running(tmp_path_factory.mktemp("data"), [tmp_path_factory.mktemp("notes")], services=["echo"]) as kernel:
        yield kernel


def test_it_joins_the_running_kernel(standing: RunningKernel) -> None:
    (root,) = standing.status()["roots"]
    with stdio_client(standing.data_dir, root) as client:
        assert client.initialize()["serverInfo"]["name"] == "linckia"
        assert client.call(1, "mcp.echo", message="hello")["structuredContent"] == {"message": "hello"}
        # The kernel sees a moment later that those of the test before have gone.
        wait_until(lambda: standing.status()["clients"] == 1)
        assert client.leave() == 0
    assert kernel_pid(standing.data_dir) == standing.process.pid


def test_other_roots_than_the_running_kernels_are_refused_naming_both(standing: RunningKernel, tmp_path: Path) -> None:
    done = linckia(standing.data_dir, "stdio", str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert standing.status()["roots"][0] in done.stderr
    assert f"not {tmp_path}:" in done.stderr


def test_an_unknown_surface_is_refused_with_the_known_ones(standing: RunningKernel) -> None:
    done = linckia(standing.data_dir, "stdio", "--surface", "yml")
    assert (done.returncode, done.stdout) == (2, "")
    assert "yaml" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_client_with_exit_code_0_and_leaves_the_kernel(
    standing: RunningKernel, number: signal.Signals
) -> None:
    with stdio_client(standing.data_dir) as client:
        client.initialize()
        client.process.send_signal(number)
        assert client.process.wait(TIMEOUT_S) == 0
    assert standing.process.poll() is None


def test_a_kernel_that_is_ended_in_order_ends_the_session(kernel: RunningKernel, data: Path) -> None:
    with stdio_client(data) as client:
        client.initialize()
        assert linckia(data, "stop").returncode == 0
        assert client.process.wait(TIMEOUT_S) == 0
        assert "the kernel was stopped" in client.stderr()


def test_a_session_survives_the_deaths_of_its_kernels(data: Path, root: Path) -> None:
    (root / "settings.yaml").write_text("retries: 3\n")
    chance = random.Random(1)
    with stdio_client(data, str(root)) as client:
        client.initialize()
        for number in range(1, 4):
            pid = kernel_pid(data)
            # Some are answered, some are with a service, some are still in the pipe.
            for call in range(20):
                arguments = {"file": str(root / "settings.yaml"), "path": "retries"}
                params = {"name": "yaml_get", "arguments": arguments}
                message = {"jsonrpc": "2.0", "id": 100 * number + call, "method": "tools/call", "params": params}
                client.send(message)
            time.sleep(chance.uniform(0, 0.03))
            os.kill(pid, signal.SIGKILL)
            wait_until_ended(data, pid)
            answers = client.receive(20)
            assert sorted(answers) == [100 * number + call for call in range(20)]
            assert {answer["result"]["structuredContent"]["text"] for answer in answers.values()} == {"3"}
            # Whichever kernel answered those, the next one is there now.
            assert client.call(1000 * number, "mcp.echo", message="here")["isError"] is False
        assert client.leave() == 0
        assert client.stderr().count("continues the session") == 3


def test_the_clients_of_a_kernel_that_died_start_one_kernel(data: Path) -> None:
    with stdio_client(data) as first, stdio_client(data) as second, stdio_client(data) as third:
        clients = [first, second, third]
        for client in clients:
            client.initialize()
            client.may_repeat(0)
        pid = kernel_pid(data)
        log = data / "logs" / "kernel.log"
        refused = log.read_text().count("held by another kernel")
        os.kill(pid, signal.SIGKILL)
        wait_until_ended(data, pid)
        for number, client in enumerate(clients):
            assert client.call(10 + number, "mcp.echo", message="here")["isError"] is False
        assert log.read_text().count("held by another kernel") == refused


def test_a_kernel_under_a_service_manager_is_waited_for(kernel: RunningKernel, data: Path, root: Path) -> None:
    with stdio_client(data) as client:
        client.initialize()
        # A front may answer before the client's process knows that it has joined this kernel.
        for number in range(2, 12):
            client.call(number, "mcp.echo", message="here")
        kernel.process.kill()
        kernel.process.wait()
        with running(data, [root], services=["echo", "yaml"]) as second:
            assert client.call(1, "mcp.echo", message="back")["isError"] is False
            assert kernel_pid(data) == second.process.pid
            assert client.leave() == 0


def test_serve_takes_over_from_a_client_s_kernel_and_the_session_continues(data: Path, root: Path) -> None:
    (root / "settings.yaml").write_text("retries: 3\n")
    arguments = {"file": str(root / "settings.yaml"), "path": "retries"}
    params = {"name": "yaml_get", "arguments": arguments}
    with stdio_client(data, str(root)) as client:
        client.initialize()
        first = kernel_pid(data)
        # A service that has not started yet when its kernel ends refuses its calls.
        assert client.call(2, "yaml_get", **arguments)["isError"] is False
        for call in range(20):
            client.send({"jsonrpc": "2.0", "id": 100 + call, "method": "tools/call", "params": params})
        # That one serves no HTTP, so the URL is the new one's.
        with running(data, [root], options=HTTP, services=["echo", "yaml"]) as second:
            answers = client.receive(20)
            assert sorted(answers) == [100 + call for call in range(20)]
            assert {answer["result"]["structuredContent"]["text"] for answer in answers.values()} == {"3"}
            assert client.call(1, "mcp.echo", message="here")["isError"] is False
            assert first != kernel_pid(data) == second.process.pid
            assert client.leave() == 0
            assert "takes over" in client.stderr()
            assert second.process.poll() is None


def test_sessions_outlive_a_restart_by_the_service_manager(data: Path, root: Path, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        told = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        with running(data, [root], services=["echo"], environment=told) as first, stdio_client(data) as client:
            client.initialize()
            first.process.terminate()
            assert first.process.wait(60) == 0
            with running(data, [root], services=["echo"], environment=told) as second:
                assert client.call(1, "mcp.echo", message="here")["isError"] is False
                assert kernel_pid(data) == second.process.pid
                # The operator's own command means the sessions as well.
                assert linckia(data, "stop").returncode == 0
                assert client.leave() == 0
                assert "which ends the session" in client.stderr()


def test_serve_with_other_settings_than_the_kernel_of_a_client_changes_nothing(
    data: Path, root: Path, tmp_path: Path
) -> None:
    with stdio_client(data, str(root)) as client:
        client.initialize()
        first = kernel_pid(data)
        for arguments in ((str(tmp_path),), (str(root), "--read-only")):
            done = linckia(data, "serve", "--no-http", *arguments)
            assert done.returncode == 3
            assert f"process {first}" in done.stderr
            assert f"serving the roots {root}" in done.stderr
        assert client.call(1, "mcp.echo", message="here")["isError"] is False
        assert kernel_pid(data) == first
        assert client.leave() == 0


def test_its_descriptors_are_left_as_they_were_even_by_a_kernel_that_dies(kernel: RunningKernel, data: Path) -> None:
    in_read, in_write = os.pipe()
    out_read, out_write = os.pipe()
    with (
        os.fdopen(in_read, "rb") as stdin,
        os.fdopen(in_write, "wb", 0) as to_stdin,
        os.fdopen(out_read, "rb") as from_stdout,
        os.fdopen(out_write, "wb") as stdout,
    ):
        client = subprocess.Popen(
            [*LINCKIA, "stdio"], env=environment(data), stdin=stdin, stdout=stdout, stderr=subprocess.PIPE
        )
        to_stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
        from_stdout.readline()
        assert not os.get_blocking(stdin.fileno())
        kernel.process.kill()
        kernel.process.wait()
        client.terminate()
        client.communicate(timeout=TIMEOUT_S)
        assert os.get_blocking(stdin.fileno())
        assert os.get_blocking(stdout.fileno())


def test_stdin_may_be_a_file(standing: RunningKernel, tmp_path: Path) -> None:
    (tmp_path / "requests").write_text('{"jsonrpc": "2.0", "id": 7, "method": "ping"}\n')
    with (tmp_path / "requests").open("rb") as requests:
        done = subprocess.run(
            [*LINCKIA, "stdio"],
            env=environment(standing.data_dir),
            stdin=requests,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert done.returncode == 0
    assert b'"id":7' in done.stdout.replace(b" ", b"")


def test_without_a_kernel_one_is_started_and_ends_after_its_last_client(data: Path, root: Path) -> None:
    with stdio_client(data, str(root)) as first, stdio_client(data, str(root)) as second:
        # Both at once: one kernel serves them.
        assert first.initialize()["serverInfo"] == second.initialize()["serverInfo"]
        assert first.call(1, "mcp.echo", message="a")["isError"] is False
        pid = kernel_pid(data)
        assert first.leave() == 0
        assert second.call(1, "mcp.echo", message="b")["structuredContent"] == {"message": "b"}
        assert second.leave() == 0
    wait_until_ended(data, pid)


def test_a_kernel_that_it_started_outlives_the_client_that_started_it(data: Path) -> None:
    with stdio_client(data) as first:
        first.initialize()
        pid = kernel_pid(data)
        with stdio_client(data) as second:
            second.initialize()
            first.process.kill()
            first.process.wait()
            assert second.call(1, "mcp.echo", message="still here")["isError"] is False
            assert kernel_pid(data) == pid


def test_if_the_kernel_cannot_start_its_error_is_shown(data: Path) -> None:
    data.mkdir()
    (data / "linckia.toml").write_text("rots = []\n")
    done = linckia(data, "stdio")
    assert (done.returncode, done.stdout) == (1, "")
    assert "rots is not a setting; did you mean roots?" in done.stderr


def test_a_kernel_that_was_killed_without_a_client_is_replaced(data: Path) -> None:
    with stdio_client(data) as first:
        first.initialize()
        # It is held while its kernel is killed: it would start another, and a kernel without a client ends by itself.
        first.process.send_signal(signal.SIGSTOP)
        os.kill(int((data / "kernel.lock").read_text()), signal.SIGKILL)
        first.process.kill()
    with stdio_client(data) as second:
        second.initialize()
        assert second.call(1, "mcp.echo", message="back")["isError"] is False


@pytest.mark.parametrize("closed", ["<&-", ">&-"])
def test_without_stdin_or_stdout_it_says_so(data: Path, closed: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f'exec "$@" {closed}', "bash", *LINCKIA, "stdio"],
        env=environment(data),
        stderr=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 2
    assert "stdin or stdout is closed" in done.stderr
    assert not data.exists()
