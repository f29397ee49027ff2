"""A front that dies, hangs or is ended: its clients notice a pause and lose nothing."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.system.cli.clients import StdioClient, data_directory, stdio_client
from tests.system.running import HTTP, RunningKernel, running, wait_until


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    folder = tmp_path_factory.mktemp("fronts")
    (folder / "root").mkdir()
    (folder / "root" / "settings.yaml").write_text("retries: 3\n")
    services = ("front", "echo", "yaml")
    with (
        data_directory(folder / "data") as data,
        running(data, [folder / "root"], options=HTTP, services=services, all_ready=False) as kernel,
    ):
        yield kernel


def root_of(kernel: RunningKernel) -> Path:
    return Path(kernel.status()["roots"][0])


def send_reads(client: StdioClient, file: Path, numbers: range) -> None:
    for number in numbers:
        params = {"name": "yaml_get", "arguments": {"file": str(file), "path": "retries"}}
        client.send({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})


def test_local_sessions_survive_the_deaths_of_fronts(kernel: RunningKernel) -> None:
    chance = random.Random(2)
    deaths = kernel.service("front")["deaths"].get("signal", 0)
    file = root_of(kernel) / "settings.yaml"
    with stdio_client(kernel.data_dir) as one, stdio_client(kernel.data_dir) as other:
        for client in (one, other):
            client.initialize()
        for turn in range(1, 9):
            numbers = range(100 * turn, 100 * turn + 20)
            for client in (one, other):
                send_reads(client, file, numbers)
            time.sleep(chance.uniform(0, 0.03))
            kernel.wait_ready("front")
            kernel.kill("front")
            for client in (one, other):
                answers = client.receive(20)
                assert sorted(answers) == list(numbers)
                assert {answer["result"]["structuredContent"]["text"] for answer in answers.values()} == {"3"}
        # The kernel sees a moment later that those of the test before have gone.
        wait_until(lambda: kernel.status()["clients"] == 2)
        assert one.leave() == 0
        assert other.leave() == 0
    assert kernel.service("front")["deaths"]["signal"] == deaths + 8


def test_a_front_that_stands_still_is_replaced(kernel: RunningKernel) -> None:
    file = root_of(kernel) / "settings.yaml"
    with stdio_client(kernel.data_dir) as client:
        client.initialize()
        before = kernel.service("front")
        os.kill(before["pid"], signal.SIGSTOP)
        send_reads(client, file, range(1, 6))
        answers = client.receive(5)
        if 0 in answers:
            # The front was stopped before it had recorded that it answered `initialize`, so the next one answers again.
            answers |= client.receive(1)
            del answers[0]
        assert sorted(answers) == [1, 2, 3, 4, 5]
        after = kernel.service("front")
        hangs = before["deaths"].get("hang", 0)
        assert (after["generation"], after["deaths"]["hang"]) == (before["generation"] + 1, hangs + 1)


def test_a_front_that_is_restarted_in_order_answers_its_calls_in_flight(kernel: RunningKernel) -> None:
    file = root_of(kernel) / "settings.yaml"
    with stdio_client(kernel.data_dir) as client:
        client.initialize()
        for turn in range(3):
            send_reads(client, file, range(10 * turn, 10 * turn + 10))
            kernel.call("kernel_restart", {"service": "front"})
            answers = client.receive(10)
            assert not any(answer["result"]["isError"] for answer in answers.values())


def test_http_clients_find_the_same_port_open(kernel: RunningKernel) -> None:
    where = urlsplit(kernel.status()["http_url"]).netloc

    def get() -> bytes:
        with contextlib.closing(http.client.HTTPConnection(where, timeout=20)) as connection:
            connection.request("GET", "/ping")
            return connection.getresponse().read()

    for _ in range(5):
        assert get() == b'"pong"'
        kernel.kill("front")
        # Not refused: the kernel holds the socket, and it waits there for the next front.
        assert get() == b'"pong"'


def test_a_kept_alive_http_connection_continues_at_the_next_front(kernel: RunningKernel) -> None:
    """The very same one: a client need not even notice that it was closed."""
    where = urlsplit(kernel.status()["http_url"]).netloc
    with contextlib.closing(http.client.HTTPConnection(where, timeout=20)) as connection:
        connection.connect()
        name = connection.sock.getsockname()
        for _ in range(3):
            connection.request("GET", "/ping")
            assert connection.getresponse().read() == b'"pong"'
            assert connection.sock.getsockname() == name
            kernel.call("kernel_restart", {"service": "front"})


def test_the_front_may_speak_for_clients_and_for_nobody_else(kernel: RunningKernel) -> None:
    """What only the operator may do is refused to a client, whichever way it asks."""
    where = urlsplit(kernel.status()["http_url"]).netloc
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "kernel_stop", "arguments": {}}}
    with contextlib.closing(http.client.HTTPConnection(where, timeout=20)) as connection:
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        connection.request("POST", "/v1/mcp", json.dumps(call), headers)
        assert b"Unknown tool" in connection.getresponse().read()
        page = {"origin": f"http://{where}", "linckia-key": "x"}
        connection.request("POST", "/operator/kernel_stop", b'{"service": "echo"}', page)
        assert connection.getresponse().status == 403
