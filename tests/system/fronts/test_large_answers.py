"""After answers of many megabytes, no process keeps their memory, although small calls go on."""

from __future__ import annotations

import contextlib
import http.client
import json
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.system.answers import message_of
from tests.system.mounts.mounting import mounted, small
from tests.system.running import HTTP, RunningKernel, polls, wait_until

LARGE_BYTES = 30_000_000
CALLS = 4
TOOLS = (("mcp_echo", "message"), ("one_echo", "text"))
"""A tool of Linckia's own and one of a mounted server, each with the argument that it returns."""

KEPT_BYTES = 50 << 20
BACK_S = 40.0
"""Memory is looked at every five seconds, and each process returns it on its own."""


class Client:
    """A session over HTTP."""

    def __init__(self, kernel: RunningKernel) -> None:
        address = urllib.parse.urlsplit(kernel.status()["http_url"])
        self._connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=120)
        self._headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        info = {"name": "test", "version": "1"}
        self._post("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info})

    def _post(self, method: str, params: dict[str, Any]) -> Any:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        self._connection.request("POST", "/mcp", json.dumps(message), self._headers)
        answer = self._connection.getresponse()
        if (session := answer.headers["mcp-session-id"]) is not None:
            self._headers["mcp-session-id"] = session
        return message_of(answer.read().decode())

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def call(self, tool: str, **arguments: object) -> Any:
        return self._post("tools/call", {"name": tool, "arguments": arguments})

    def works(self, tool: str, name: str) -> bool:
        return "result" in self.call(tool, **{name: "small"})


def memory(kernel: RunningKernel) -> dict[str, int]:
    """Return the resident bytes of the kernel and of each service."""
    pids = {each["name"]: each["pid"] for each in kernel.status()["services"] if each["pid"]}
    return {name: resident(pid) for name, pid in {"kernel": kernel.process.pid, **pids}.items()}


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0]) << 10


@pytest.mark.timeout(240)
def test_memory_of_large_answers_is_returned_while_small_calls_continue(tmp_path: Path) -> None:
    services = ("front", "echo", "mounts")
    with (
        mounted(tmp_path / "data", {"one": small()}, services=services, options=HTTP) as kernel,
        contextlib.ExitStack() as opened,
    ):
        clients = [opened.enter_context(Client(kernel)) for _ in range(CALLS)]
        text = "x" * LARGE_BYTES

        def ask(number: int) -> None:
            tool, name = TOOLS[number % len(TOOLS)]
            assert text in json.dumps(clients[number].call(tool, **{name: text}))

        for tool, name in TOOLS:
            wait_until(partial(clients[0].works, tool, name))
        before = memory(kernel)
        with ThreadPoolExecutor(CALLS) as callers:
            list(callers.map(ask, range(CALLS)))
        for _ in polls(BACK_S):
            for _ in range(200):
                clients[0].call("mcp_echo", message="small")
            after = memory(kernel)
            kept = {name: size - before[name] for name, size in after.items() if size - before[name] > KEPT_BYTES}
            if not kept:
                return
        pytest.fail(f"kept: {kept}")
