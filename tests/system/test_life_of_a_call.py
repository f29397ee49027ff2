"""ARCHITECTURE.md lists the files that one call goes through; here a call is traced through the real processes."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.system.running import HTTP, REPOSITORY, RunningKernel, polls, running

TRACING = Path(__file__).parent / "support" / "tracing"
CALLS = 8
QUIET_S = 0.1
MAX_FILES = 25


class Traced:
    """A client over HTTP, whose calls are traced through all processes."""

    def __init__(self, kernel: RunningKernel, trace: Path) -> None:
        self._trace = trace
        address = urlsplit(kernel.status()["http_url"])
        self.connection = http.client.HTTPConnection(address.hostname or "", address.port)
        self._headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        session = self._send({"id": 0, "method": "initialize", "params": client}).getheader("mcp-session-id")
        self._headers |= {"mcp-session-id": session or "", "mcp-protocol-version": "2025-11-25"}
        self._send({"method": "notifications/initialized"})

    def _send(self, message: dict[str, Any]) -> http.client.HTTPResponse:
        self.connection.request("POST", "/mcp", json.dumps({"jsonrpc": "2.0", **message}), self._headers)
        response = self.connection.getresponse()
        body = response.read()
        assert response.status in (200, 202)
        assert b'"isError":true' not in body
        assert b'"error":' not in body
        return response

    def _settle(self) -> None:
        """Wait until the processes have done what follows an answer."""
        for _ in polls(10):
            size = self._trace.stat().st_size
            time.sleep(QUIET_S)
            if size == self._trace.stat().st_size:
                return

    def entered(self) -> list[str]:
        """Make a call; return the files that it entered, in order, perhaps among some that the processes entered for
        other reasons."""
        self._settle()
        began = time.monotonic_ns()
        call = {"name": "mcp_echo", "arguments": {"message": "hello"}}
        self._send({"id": 1, "method": "tools/call", "params": call})
        ended = time.monotonic_ns()
        lines = (line.split(" ") for line in self._trace.read_text().splitlines())
        return list(dict.fromkeys(file for at, _process, file, _function in lines if began <= int(at) <= ended))


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[Traced]:
    trace = tmp_path / "trace"
    trace.touch()
    # Services may run as other users.
    trace.chmod(0o666)
    environment = {"PYTHONTRACEFILE": str(trace), "PYTHONPATH": str(TRACING)}
    with running(tmp_path / "data", options=HTTP, environment=environment, services=["echo"]) as kernel:
        client = Traced(kernel, trace)
        yield client
        client.connection.close()


def listed() -> list[str]:
    """The files in the list."""
    text = (REPOSITORY / "ARCHITECTURE.md").read_text()
    section = text.partition("\n## The life of a call\n")[2].partition("\n### ")[0]
    return re.findall(r"^\d+\. `([^`]+\.py)`", section, re.MULTILINE)


def test_a_call_over_http_goes_through_the_listed_files_in_their_order(traced: Traced) -> None:
    # The first call starts the service, and fills caches.
    traced.entered()
    found = [traced.entered() for _ in range(CALLS)]
    always = set(found[0]).intersection(*found)
    # Some may have been entered for another reason before the call got there.
    ((order, _),) = Counter(tuple(file for file in each if file in always) for each in found).most_common(1)
    assert set(order) == set(listed())
    assert list(order) == listed()
    assert len(order) <= MAX_FILES
