"""An idempotency key has the same meaning in each way in which it is sent: MCP, HTTP, the command line."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from proto.mcp import KEY as META
from tests.system.answers import message_of
from tests.system.cli.clients import StdioClient, data_directory, stdio_client
from tests.system.running import HTTP, REPOSITORY, RunningKernel, running

SERVICES = ("front", "yaml", "echo")


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    folder = tmp_path_factory.mktemp("keys")
    (folder / "root").mkdir()
    with (
        data_directory(folder / "data") as data,
        running(data, [folder / "root"], options=HTTP, services=SERVICES, all_ready=False) as kernel,
    ):
        yield kernel


@pytest.fixture
def file(kernel: RunningKernel) -> Path:
    made = Path(kernel.status()["roots"][0], "list.yaml")
    made.write_text("a:\n  - x\n")
    return made


@pytest.fixture
def client(kernel: RunningKernel) -> Iterator[StdioClient]:
    with stdio_client(kernel.data_dir, services=",".join(SERVICES)) as client:
        client.initialize()
        yield client


def append(file: Path, value: str = "y") -> dict[str, Any]:
    return {"file": str(file), "path": "a", "value": value}


def test_a_key_in_the_meta_of_a_call(client: StdioClient, file: Path) -> None:
    def call(key: object, value: str = "y") -> dict[str, Any]:
        params = {"name": "yaml_append", "arguments": append(file, value), "_meta": {META: key}}
        return client.request(1, "tools/call", **params)

    first = call("meta")
    assert call("meta") == first
    assert file.read_text() == "a:\n  - x\n  - y\n"
    assert "other parameters" in call("meta", "z")["error"]["message"]
    wrong: object
    for wrong in ("", 5, "x" * 256, "a\nb", ["k"], {}):
        assert "idempotency key" in call(wrong)["error"]["message"]
    assert file.read_text() == "a:\n  - x\n  - y\n"
    # Like any optional parameter that is null, it is absent.
    assert all("result" in call(None) for _ in range(2))
    assert file.read_text() == "a:\n  - x\n  - y\n  - y\n  - y\n"


def test_each_operation_of_execute_has_its_own_key(client: StdioClient, file: Path) -> None:
    steps = [{"op": "yaml_append", "params": append(file)}] * 2

    def call() -> dict[str, Any]:
        return client.request(1, "tools/call", name="execute", arguments={"operations": steps}, _meta={META: "batch"})

    first = call()
    assert first["result"]["structuredContent"]["succeeded"] == 2
    assert call() == first
    assert file.read_text() == "a:\n  - x\n  - y\n  - y\n"


def test_a_key_in_a_header(kernel: RunningKernel, file: Path) -> None:
    def call(key: str, value: str = "y") -> dict[str, Any]:
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "keys", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        params = {"name": "yaml_append", "arguments": append(file, value), "_meta": meta}
        headers = {
            "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "yaml_append",
            "Idempotency-Key": key,
        }  # fmt: skip
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        connection = http.client.HTTPConnection(urlsplit(kernel.status()["http_url"]).netloc, timeout=30)
        connection.request("POST", "/mcp", body, headers)
        found: dict[str, Any] = message_of(connection.getresponse().read().decode())
        connection.close()
        return found

    first = call("header")
    # The draft standard writes the key as a quoted string.
    assert call('"header"') == first
    assert "other parameters" in call("header", "z")["error"]["message"]
    assert "idempotency key" in call("")["error"]["message"]
    assert file.read_text() == "a:\n  - x\n  - y\n"


def test_a_key_on_the_command_line(kernel: RunningKernel, file: Path) -> None:
    def call(key: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "kernel.cli", "call", "--data", str(kernel.data_dir)]
        command += ["yaml_append", json.dumps(append(file)), "--key", key]
        return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)

    first = call("command")
    assert (first.returncode, call("command").stdout) == (0, first.stdout)
    assert "idempotency key" in call("").stderr
    assert file.read_text() == "a:\n  - x\n  - y\n"
    assert call("another").returncode == 0
    assert file.read_text() == "a:\n  - x\n  - y\n  - y\n"
