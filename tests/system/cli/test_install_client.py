"""The entry that `linckia install-client` writes works from any folder, over stdio and over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from mcp import StdioServerParameters, stdio_client
from mcp.client import Client

from tests.system.running import HTTP, REPOSITORY, RunningKernel, running


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[RunningKernel]:
    (tmp_path / "notes").mkdir()
    with running(tmp_path / "data", [tmp_path / "notes"], options=HTTP, services=["echo"], token=True) as found:
        yield found


def install(kernel: RunningKernel, client: str, *options: str) -> str:
    """Run the command in the home of a test. Returns the client's settings."""
    home = kernel.data_dir.parent
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LINCKIA_", "XDG_"))}
    subprocess.run(
        [sys.executable, "-m", "kernel.cli", "install-client", client, *options, "--yes"],
        cwd=REPOSITORY, env={**kept, "HOME": str(home), "LINCKIA_DATA": str(kernel.data_dir)}, check=True,
        capture_output=True,
    )  # fmt: skip
    path = home / ".cursor" / "mcp.json"
    return path.read_text() if path.exists() else ""


def test_the_entry_starts_a_session_with_the_same_data(kernel: RunningKernel) -> None:
    entry = json.loads(install(kernel, "cursor", str(kernel.data_dir.parent / "notes")))["mcpServers"]["linckia"]
    assert entry["args"][-2:] == ["--data", str(kernel.data_dir)]
    # The script would set up its own environment; the command it starts is the same.
    command, arguments = sys.executable, ["-m", "kernel.cli", *map(str, entry["args"])]
    assert Path(entry["command"]) == REPOSITORY / "scripts" / "linckia"

    async def ask() -> Any:
        server = StdioServerParameters(command=command, args=arguments, cwd=REPOSITORY)
        async with Client(stdio_client(server)) as client:
            return (await client.call_tool("mcp_echo", {"message": "hello"})).is_error

    assert trio.run(ask) is False


def test_over_http_the_client_gets_a_token_that_undo_revokes(kernel: RunningKernel) -> None:
    entry = json.loads(install(kernel, "cursor", "--http", "--surface", "all"))["mcpServers"]["linckia"]
    assert answer(entry) == 200
    assert install(kernel, "cursor", "--undo") == ""
    assert answer(entry) == 401


def answer(entry: dict[str, Any]) -> int:
    """The status of an `initialize` with the entry's address and headers."""
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).encode()
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    request = urllib.request.Request(entry["url"], body, headers | entry["headers"])
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
