"""Two kernels whose source data are on one server, behind a proxy, and a client that writes through it."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import httpx2
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from tests.postgres import PostgresServer
from tests.system.running import RunningKernel, free_port, running, wait_until

SERVICES = ("memory", "documents", "transcripts", "retrieve", "graph")

MISSING_PROXY = "" if shutil.which("haproxy") else "haproxy is not installed"

_PROXY = """
global
    maxconn 256
defaults
    mode http
    timeout connect 1s
    timeout client 60s
    timeout server 60s
    retries 2
    option redispatch
frontend clients
    bind 127.0.0.1:{port}
    default_backend kernels
backend kernels
    option httpchk
    http-check send meth GET uri /readyz ver HTTP/1.1 hdr Host localhost
    default-server inter 200ms fall 1 rise 1 on-marked-down shutdown-sessions
{servers}
"""


class Pair:
    """Two kernels, `a` and `b`, which can be killed and started again on their data directories."""

    def __init__(self, folder: Path, server: PostgresServer, schema: str, services: Sequence[str] = SERVICES) -> None:
        self._folder, self._server, self._schema, self._services = folder, server, schema, services
        self.ports = {"a": free_port(), "b": free_port()}
        self.kernels: dict[str, RunningKernel] = {}
        self._open: dict[str, contextlib.ExitStack] = {}

    def start(self, name: str) -> RunningKernel:
        folder = self._folder / name
        if not folder.exists():
            folder.mkdir(parents=True)
            text = f'[sources]\nstore = "postgres"\nschema = "{self._schema}"\nmachine = "{name}"\n'
            (folder / "linckia.toml").write_text(text)
        stack = self._open[name] = contextlib.ExitStack()
        self.kernels[name] = stack.enter_context(
            running(
                folder,
                options=("--http", f"127.0.0.1:{self.ports[name]}"),
                environment={"DATABASE_URL": self._server.dsn},
                services=self._services,
                all_ready=False,
            )
        )
        return self.kernels[name]

    def kill(self, name: str) -> None:
        """Kill a kernel; its services end with it."""
        self.kernels.pop(name).process.kill()
        self._open.pop(name).close()

    def is_ready(self, name: str) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[name]}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def active(self) -> str:
        """Wait until one kernel is ready, and return its name."""
        return wait_until(lambda: next((name for name in self.kernels if self.is_ready(name)), None), 60)

    def wait_standing_by(self, name: str) -> None:
        def stands_by() -> bool:
            kernel = self.kernels[name]
            found = {each["name"]: each for each in kernel.status()["services"]}
            return all("is held by" in found[of]["info"].get("stands_by", "") for of in ("memory", "documents"))

        wait_until(stands_by, 60)

    def close(self) -> None:
        for stack in self._open.values():
            stack.close()


@contextlib.contextmanager
def proxy(folder: Path, pair: Pair) -> Iterator[int]:
    """Run haproxy before the kernels, and return its port."""
    port = free_port()
    servers = "\n".join(f"    server {name} 127.0.0.1:{at} check" for name, at in pair.ports.items())
    file = folder / "haproxy.cfg"
    file.write_text(_PROXY.format(port=port, servers=servers))
    process = subprocess.Popen(["haproxy", "-db", "-f", file], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield port
    finally:
        process.kill()
        process.wait()


def turn(number: int) -> dict[str, Any]:
    """Return an exchange with a provider."""
    said = {"role": "user", "content": f"question {number:04} of the client"}
    reply = {
        "id": f"msg_{number}", "type": "message", "role": "assistant", "model": "model",
        "content": [{"type": "text", "text": f"answer {number:04}"}], "stop_reason": "end_turn",
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }  # fmt: skip
    request = {"model": "model", "max_tokens": 10, "messages": [said]}
    return {"provider": "anthropic", "agent_name": "tester", "request": request, "response": reply}


class Client:
    """An MCP client of the SDK that goes on in a new session when its kernel is lost."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"
        self.acknowledged: list[int] = []
        self.sessions = 0
        self.failures: set[str] = set()
        self.longest_s = 0.0
        self.grown = anyio.Event()

    async def run(self, done: anyio.Event) -> None:
        """Write until told to end. Each write is repeated until it is acknowledged, then looked for at once."""
        number = 0
        since = time.monotonic()
        while not done.is_set():
            try:
                async with (
                    httpx2.AsyncClient(timeout=30) as http,
                    streamable_http_client(f"{self._base}/mcp/all", http_client=http) as (read, write),
                    ClientSession(read, write, read_timeout_seconds=30) as session,
                ):
                    await session.initialize()
                    self.sessions += 1
                    while not done.is_set():
                        await self._write(session, http, number)
                        self.longest_s = max(self.longest_s, time.monotonic() - since)
                        since = time.monotonic()
                        self.acknowledged.append(number)
                        self.grown.set()
                        self.grown = anyio.Event()
                        number += 1
            except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001  # the kernel is gone: again
                for each in _leaves(error):
                    if isinstance(each, AssertionError):
                        raise each from None
                    self.failures.add(f"{type(each).__name__}: {each}"[:200])
                await anyio.sleep(0.05)

    async def _write(self, session: ClientSession, http: httpx2.AsyncClient, number: int) -> None:
        await _called(session, "memory_add", {"text": f"The client remembers number {number:04}"})
        added = {"content": f"text {number:04}", "name": f"document-{number:04}.txt"}
        answer = await _called(session, "ops_execute", {"operations": [{"op": "documents_add", "params": added}]})
        if answer["failed"]:
            raise Refused(f"{answer}")
        stored = await http.post(f"{self._base}/v1/ingest", json=turn(number))
        if stored.status_code // 100 != 2:
            raise Refused(stored.text)
        found = await _called(session, "memory_list", {"limit": 1})
        assert found["total"] == number + 1, (number, found)
        assert found["memories"][0]["text"].endswith(f"{number:04}")
        listing = {"op": "documents_list", "params": {"paths_only": True}}
        listed = await _called(session, "ops_query", {"steps": [listing]})
        assert listed["total"] == number + 1, (number, listed)


class Refused(Exception):
    """A call failed."""


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


async def _called(session: ClientSession, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    result = await session.call_tool(name, arguments)
    if result.is_error:
        raise Refused(f"{name}: {result.content}")
    found: dict[str, Any] = result.structured_content or json.loads(result.content[0].text)  # type: ignore[union-attr]
    return found
