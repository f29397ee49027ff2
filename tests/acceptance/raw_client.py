"""A client that sends and receives raw JSON over the pipes of a process, in both eras of the protocol."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

LIMIT_S = 60.0

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
_PREFIX = "io.modelcontextprotocol/"
_INFO = {"name": "acceptance", "version": "1"}

CAPABILITIES: dict[str, Any] = {
    "roots": {"listChanged": True},
    "sampling": {"tools": {}, "context": {}},
    "elicitation": {"form": {}, "url": {}},
}
"""All that clients can have; some servers list more tools then. This one has no roots and declines the rest."""


class RawClient:
    """A client of a server that this starts; `version` is that of the protocol."""

    def __init__(
        self, command: Sequence[str], version: str, *, cwd: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=cwd,
            env={**os.environ, **(environment or {})},
        )
        self._version = version
        self._buffer = b""
        self._number = 0
        self.capabilities: dict[str, Any] = {}

    def __enter__(self) -> Self:
        if self._version == MODERN:
            self.greeting = self.ask("server/discover", {})["result"]
        else:
            hello = {"protocolVersion": self._version, "capabilities": CAPABILITIES, "clientInfo": _INFO}
            self.greeting = self.ask("initialize", hello)["result"]
            self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        self.capabilities = self.greeting["capabilities"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request; return its reply, which has `result` or `error`."""
        self._number += 1
        if self._version == MODERN:
            meta = {"protocolVersion": MODERN, "clientInfo": _INFO, "clientCapabilities": CAPABILITIES}
            params = {**params, "_meta": {_PREFIX + name: value for name, value in meta.items()}}
        self._send({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})
        deadline = time.monotonic() + LIMIT_S
        while True:
            message = json.loads(self._line(deadline, method))
            if message.get("id") == self._number and "method" not in message:
                result = message.get("result", {})
                if result.get("resultType") == "input_required":
                    return self.ask(method, {**params, **_answers(result)})
                del message["id"], message["jsonrpc"]
                return dict(message)
            if "method" in message and "id" in message:
                self._send({"jsonrpc": "2.0", "id": message["id"], "result": _answer(message["method"])})

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def _line(self, deadline: float, method: str) -> bytes:
        assert self._process.stdout is not None
        number = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([number], [], [], max(0, deadline - time.monotonic()))
            data = os.read(number, 65536) if ready else b""
            assert data, f"{method} was not answered"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


def _answer(method: str) -> dict[str, Any]:
    """Return the answer to a question: there are no roots, and everything else is declined."""
    return {"roots": []} if method == "roots/list" else {"action": "decline"}


def _answers(result: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters with which a call whose result asks for input is made again."""
    responses = {name: _answer(each["method"]) for name, each in result.get("inputRequests", {}).items()}
    state = {"requestState": result["requestState"]} if "requestState" in result else {}
    return {"inputResponses": responses, **state}


def plain(reply: dict[str, Any]) -> dict[str, Any]:
    """Return a reply without what only clients without a handshake get."""
    result = reply.get("result")
    if not isinstance(result, dict):
        return reply
    rest = {name: value for name, value in result.items() if name not in ("resultType", "ttlMs", "cacheScope")}
    meta = {name: value for name, value in rest.pop("_meta", {}).items() if not name.startswith(_PREFIX)}
    return {"result": {**rest, "_meta": meta} if meta else rest}
