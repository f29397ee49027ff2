"""MCP clients that survive what happens to their server, and report the outcome of every call.

They use plain JSON-RPC: the server is under test, and a client library would hide half of its output.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import httpx2 as httpx
import trio

from proto.mcp import KEY

HUNG_S = 90.0
"""Longer than any deadline of the called operations: a call not answered by then never will be."""

AWAY_S = 15.0
"""How long an HTTP client retries a closed port, since nothing listens while a kernel starts."""

_HANDSHAKE = {
    "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "chaos", "version": "1"}
}  # fmt: skip


@dataclass(frozen=True)
class CallOutcome:
    """The outcome of one call.

    `kind` is `ok`, a kind of failure (`proto.errors.Kind`), `http N` for a status, `lost` if the connection broke, or
    `hung`; `executed` is `no`, `maybe` or `yes`.
    """

    kind: str
    result: Any = None
    executed: str = "yes"
    text: str = ""

    @property
    def ok(self) -> bool:
        return self.kind == "ok"

    @property
    def not_done_for_sure(self) -> bool:
        return not self.ok and self.executed == "no"


class Client(Protocol):
    name: str

    async def call(
        self, tool: str, arguments: Mapping[str, Any], *, repeatable: bool = True, key: str = ""
    ) -> CallOutcome:
        """Call a tool, with an idempotency `key` if one is given.

        A `repeatable` call may be sent again if the connection breaks, as any HTTP client does.
        """


def _call(tool: str, arguments: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the parameters of `tools/call`."""
    return {"name": tool, "arguments": arguments} | ({"_meta": {KEY: key}} if key else {})


def _read(message: Mapping[str, Any]) -> CallOutcome:
    """Convert an answer of `tools/call` to an outcome."""
    if (error := message.get("error")) is not None:
        data = error.get("data") or {}
        return CallOutcome(
            str(data.get("kind", error.get("code"))), None, data.get("executed", "maybe"), error["message"]
        )
    result = message["result"]
    text = "".join(part.get("text", "") for part in result.get("content", ()))
    if result.get("isError"):
        # For several operations in one call, each outcome is only stated in words.
        unsaid = {"kind": "error", "executed": "no" if "nothing was done" in text.lower() else "maybe"}
        failure = result.get("_meta", {}).get("linckia/failure", unsaid)
        return CallOutcome(failure["kind"], None, failure["executed"], text)
    return CallOutcome("ok", result.get("structuredContent", text))


class StdioClient:
    """A `linckia stdio` client: many calls in flight on one pipe."""

    def __init__(self, name: str, process: trio.Process) -> None:
        self.name = name
        self._process = process
        self._ids = itertools.count(1)
        self._waiting: dict[int, trio.Event] = {}
        self._answers: dict[int, Mapping[str, Any]] = {}
        self._sending = trio.Lock()
        self.unexpected: list[str] = []
        """Unexpected input: answers that no call waits for, lines that are not JSON, and the end of the session."""

    @classmethod
    async def start(
        cls,
        nursery: trio.Nursery,
        name: str,
        data: Path,
        roots: Sequence[Path],
        environment: Mapping[str, str],
        *options: str,
        linckia: Sequence[str] = ("-P", "-m", "kernel.cli"),
    ) -> StdioClient:
        command = [sys.executable, *linckia, "stdio", "--data", str(data), *options]
        command += map(str, roots)
        process = await trio.lowlevel.open_process(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
        self = cls(name, process)
        nursery.start_soon(self._receive)
        await self._request("initialize", _HANDSHAKE)
        await self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self

    async def call(
        self, tool: str, arguments: Mapping[str, Any], *, repeatable: bool = True, key: str = ""
    ) -> CallOutcome:
        with trio.move_on_after(HUNG_S):
            answer = await self._request("tools/call", _call(tool, arguments, key))
            return CallOutcome("lost", executed="maybe") if answer is None else _read(answer)
        return CallOutcome("hung", executed="maybe")

    @property
    def pid(self) -> int:
        return self._process.pid

    async def leave(self) -> int | None:
        """Disconnect as a client does. Returns the exit code, or None if the process had to be killed."""
        assert self._process.stdin is not None
        await self._process.stdin.aclose()
        with trio.move_on_after(20):
            return await self._process.wait()
        self._process.kill()
        await self._process.wait()
        return None

    async def _request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any] | None:
        number = next(self._ids)
        event = self._waiting[number] = trio.Event()
        try:
            await self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
            await event.wait()
            return self._answers.pop(number, None)
        except trio.BrokenResourceError:
            return None
        finally:
            del self._waiting[number]

    async def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        async with self._sending:
            await self._process.stdin.send_all(json.dumps(message).encode() + b"\n")

    async def _receive(self) -> None:
        assert self._process.stdout is not None
        rest = b""
        async for data in self._process.stdout:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._accept(line)
        self.unexpected.append(f"{self.name}: the session ended")
        for event in self._waiting.values():
            event.set()

    def _accept(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            self.unexpected.append(f"{self.name}: no JSON: {line[:200]!r}")
            return
        if "id" not in message or "method" in message:
            return
        if (event := self._waiting.get(message["id"])) is None:
            self.unexpected.append(f"{self.name}: answered twice or unasked: {line[:200]!r}")
            return
        self._answers[message["id"]] = message
        event.set()


def _as_a_whole(said: CallOutcome, *, unsure: bool) -> CallOutcome:
    """Return the overall outcome of a retried call: if the last attempt did nothing, an earlier one still may have
    run."""
    return replace(said, executed="maybe") if unsure and not said.ok else said


class HttpClient:
    """A session over Streamable HTTP."""

    def __init__(self, name: str, url: str, token: str | None) -> None:
        self.name = name
        self._url = url
        headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-06-18"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=16)
        self._http = httpx.AsyncClient(headers=headers, timeout=HUNG_S, limits=limits)
        self._session: str | None = None
        self._opening = trio.Lock()
        self._ids = itertools.count(1)
        self.sessions = 0
        """How many sessions were opened."""
        self.broken = 0
        """Connections that broke during a call, which was then sent again."""

    async def call(
        self, tool: str, arguments: Mapping[str, Any], *, repeatable: bool = True, key: str = ""
    ) -> CallOutcome:
        unsure = False
        with trio.move_on_after(HUNG_S):
            while True:
                said = await self._once(tool, arguments, key)
                if said.kind == "http 404":
                    self._session = None
                elif said.kind == "lost" and repeatable:
                    self.broken += 1
                    unsure = True
                else:
                    return _as_a_whole(said, unsure=unsure)
        return CallOutcome("hung", executed="maybe")

    async def post(self, path: str, body: bytes) -> CallOutcome:
        """Send a request that is not MCP and may be sent again."""
        unsure = False
        with trio.move_on_after(HUNG_S):
            while (said := await self._exchange(self._url.removesuffix("/mcp") + path, body, {})).kind == "lost":
                self.broken += 1
                unsure = True
            return _as_a_whole(said, unsure=unsure)
        return CallOutcome("hung", executed="maybe")

    async def leave(self) -> None:
        await self._http.aclose()

    async def _once(self, tool: str, arguments: Mapping[str, Any], key: str) -> CallOutcome:
        async with self._opening:
            if self._session is None and (failure := await self._open()) is not None:
                return failure
        return await self._message("tools/call", _call(tool, arguments, key), {"Mcp-Session-Id": self._session or ""})

    async def _open(self) -> CallOutcome | None:
        said = await self._message("initialize", _HANDSHAKE, {})
        if not said.ok:
            return CallOutcome(said.kind, executed="no", text=said.text)
        self.sessions += 1
        return None

    async def _message(self, method: str, params: Mapping[str, Any], headers: Mapping[str, str]) -> CallOutcome:
        body = json.dumps({"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}).encode()
        return await self._exchange(self._url, body, headers)

    async def _exchange(self, url: str, body: bytes, headers: Mapping[str, str]) -> CallOutcome:
        away = trio.current_time() + AWAY_S
        headers = {"Content-Type": "application/json", **headers}
        while True:
            try:
                response = await self._http.post(url, content=body, headers=headers)
                break
            except httpx.ConnectError as error:
                if trio.current_time() > away:
                    return CallOutcome("away", executed="no", text=repr(error))
                await trio.sleep(0.05)
            except httpx.HTTPError as error:
                return CallOutcome("lost", executed="maybe", text=repr(error))
        if (session := response.headers.get("mcp-session-id")) is not None:
            self._session = session
        if response.status_code == 503:
            return CallOutcome("unavailable", executed="no" if "safe" in response.text else "maybe", text=response.text)
        if response.status_code not in (200, 202):
            return CallOutcome(f"http {response.status_code}", executed="maybe", text=response.text[:300])
        if url == self._url:
            return read_answer(response.text)
        return CallOutcome("ok", response.json())


def read_answer(text: str) -> CallOutcome:
    """Return the answer from a JSON body or an event stream."""
    if not text.startswith("{"):
        lines = [line[5:].strip() for line in text.splitlines() if line.startswith("data:") and '"id"' in line]
        if not lines:
            return CallOutcome("lost", executed="maybe", text="the stream ended without the answer")
        text = lines[-1]
    message = json.loads(text)
    if "protocolVersion" in message.get("result", {}):
        return CallOutcome("ok", message["result"])
    return _read(message)
