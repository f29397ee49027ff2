"""After the answer about a call, or the death of its front, nothing of the call happens any more."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proto.control.client import Client
from tests.system.cli.clients import StdioClient, data_directory
from tests.system.running import RunningKernel, running, wait_until

SERVICES = ("front", "documents", "tasks")


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    with data_directory(tmp_path / "data") as path:
        yield path


@pytest.fixture
def kernel(data: Path) -> Iterator[RunningKernel]:
    with running(data, options=("--no-http",), services=SERVICES) as made:
        yield made


@pytest.fixture
def client(kernel: RunningKernel, data: Path) -> Iterator[StdioClient]:
    found = StdioClient(data, services="documents,tasks")
    found.initialize()
    try:
        yield found
    finally:
        found.process.kill()
        found.process.communicate()


def adding(edition: int) -> dict[str, Any]:
    params = {"name": "plan", "content": f"edition {edition}"}
    return {"name": "execute", "arguments": {"operations": [{"op": "add", "params": params}]}}


def edition_of(client: StdioClient, number: int) -> str:
    step = {"op": "get", "params": {"name": "plan", "include_content": True}}
    return json.dumps(client.call(number, "query", steps=[step]))


def test_a_call_that_lost_its_front_has_no_effect_afterwards(kernel: RunningKernel, client: StdioClient) -> None:
    assert not client.request(2, "tools/call", **adding(1))["result"]["isError"]
    stopped = kernel.service("documents")["pid"]
    os.kill(stopped, signal.SIGSTOP)
    client.send({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": adding(2)})
    wait_until(lambda: kernel.service("documents")["in_flight"])
    kernel.kill("front")
    answer = client.receive(1)[3]
    assert "may have been done" in json.dumps(answer)
    # The kernel replaces a service that stands still, on a busy machine before this.
    with contextlib.suppress(ProcessLookupError):
        os.kill(stopped, signal.SIGCONT)
    assert not client.request(4, "tools/call", **adding(3))["result"]["isError"]
    assert "edition 3" in edition_of(client, 5)
    # The next generation recovers what its predecessor left.
    kernel.kill("documents")
    assert "edition 3" in edition_of(client, 6)


def test_a_stopped_service_is_reported_at_once_with_the_reason(
    kernel: RunningKernel, data: Path, client: StdioClient
) -> None:
    with Client(data) as control:
        control.call_named("kernel_stop", {"service": "documents"})
    failed = client.request(2, "tools/call", **adding(1))["result"]
    assert failed["isError"]
    assert "documents is stopped" in json.dumps(failed)
    # Nothing of it is made up for.
    with Client(data) as control:
        control.call_named("kernel_start", {"service": "documents"})
    kernel.wait_ready("documents")
    assert "edition 1" not in edition_of(client, 3)
    assert client.call(4, "tasks_list")["structuredContent"]["tasks"] == []
