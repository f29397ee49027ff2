"""Servers over HTTP: revisions, headers, lost sessions and connections."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from proto.errors import MaybeExecuted, Unavailable
from proto.mounts import READ
from tests.unit.mounts.kernel import LIMIT_S, adapter, cause_of

SERVER = Path(__file__).with_name("http_server.py")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def server(
    kind: str, port: int, *, script: Path = SERVER, **variables: str
) -> AsyncIterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(  # noqa: ASYNC220  # it starts in a millisecond
        [sys.executable, str(script), kind, str(port)], env={**os.environ, **variables}, stderr=subprocess.DEVNULL
    )
    try:
        with trio.fail_after(LIMIT_S):
            while True:
                try:
                    await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
                    break
                except OSError:
                    # Nothing says when another process listens.
                    await trio.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.wait()


def url(port: int, path: str = "mcp") -> str:
    return f"http://127.0.0.1:{port}/{path}"


async def test_a_legacy_server_with_sessions_is_served(tmp_path: Path) -> None:
    port = free_port()
    async with server("legacy", port), adapter(tmp_path, url=url(port)) as running:
        assert (running.info["protocol"], running.info["server"]) == ("2025-06-18", "http 1")
        result = await running.result("tools/call", {"name": "echo", "arguments": {"a": 1}})
        assert result == {"content": [{"type": "text", "text": '{"a": 1}'}], "odd": 1}
        assert len((await running.until_put(1)).tools) == 1
        assert json.loads(await running.tool("headers"))["mcp-protocol-version"] == "2025-06-18"


async def test_an_expired_session_is_renewed_for_every_call(tmp_path: Path) -> None:
    port = free_port()
    async with server("legacy", port), adapter(tmp_path, url=url(port)) as running:
        assert await running.tool("forget") == "forgotten"
        assert await running.tool("echo") == "{}"
        assert running.failure is None


async def test_a_restarted_server_is_connected_to_again(tmp_path: Path) -> None:
    port = free_port()
    async with server("legacy", port), adapter(tmp_path, url=url(port)) as running:
        first = await running.tool("pid")
        with pytest.raises(MaybeExecuted, match="lost the connection"):
            await running.tool("drop")
        with pytest.raises(MaybeExecuted, match="lost the connection"):
            await running.tool("drop", kind=READ)
        assert await running.tool("pid") == first
    async with server("legacy", port) as process, adapter(tmp_path, url=url(port)) as running:
        first = await running.tool("pid")
        process.kill()
        process.wait()
        with pytest.raises(Unavailable, match=r"cannot connect to 127\.0\.0\.1"):
            await running.tool("echo")
        async with server("legacy", port):
            assert await running.tool("pid") != first


async def test_a_server_that_cannot_be_reached_is_a_failed_start(tmp_path: Path) -> None:
    port = free_port()
    async with adapter(tmp_path, url=url(port), is_ready=False) as running:
        await running.ended.wait()
        assert running.failure is not None
        assert cause_of(running.failure).startswith(f"cannot connect to 127.0.0.1:{port}")


async def test_headers_come_from_the_settings_and_are_needed(tmp_path: Path) -> None:
    port = free_port()
    token = tmp_path / "token"
    token.write_text("Bearer hush-hush\n")
    async with server("legacy", port, EXPECTED="Bearer hush-hush"):
        options: dict[str, Any] = {"url": url(port), "headers": {"X-A": "1"}}
        async with adapter(tmp_path, headers_from={"Authorization": str(token)}, **options) as running:
            assert json.loads(await running.tool("headers"))["X-A"] == "1"
        async with adapter(tmp_path, is_ready=False, transport="http", **options) as running:
            await running.ended.wait()
            assert running.failure is not None
            assert "HTTP 401" in cause_of(running.failure)


# The SDK leaves the stream of a session to the garbage collector when its server dies.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("kind", "path"), [("sdk", "mcp"), ("sse", "sse")])
async def test_servers_of_the_sdk_are_served(tmp_path: Path, kind: str, path: str) -> None:
    port = free_port()
    async with server(kind, port) as process, adapter(tmp_path, url=url(port, path)) as running:
        assert running.info["protocol"] == "2026-07-28"
        assert await running.tool("add", {"a": 1, "b": 2}) == "3"
        await running.until_put(1)
        # Over Streamable HTTP, the server requires this argument in a header as well.
        assert await running.tool("place", {"region": "Süd"}) == "Süd"
        assert await running.tool("add", {"a": 3, "b": 4}, modern=True) == "7"
        first = await running.tool("pid")
        process.kill()
        process.wait()
        async with server(kind, port):
            assert await running.tool("pid", kind=READ) != first
