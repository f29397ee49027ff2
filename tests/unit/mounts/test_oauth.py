"""Servers that require OAuth."""

from __future__ import annotations

import json
import logging
import urllib.request
from pathlib import Path

import pytest
import trio
import trio.testing

from services.mounts.link.oauth import Loopback
from tests.unit.mounts.kernel import LIMIT_S, adapter
from tests.unit.mounts.test_http import free_port, server, url


async def test_client_credentials_get_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIENT_SECRET", "hush-hush")
    oauth = {"flow": "client_credentials", "client_id": "me", "client_secret_from": "CLIENT_SECRET"}
    port = free_port()
    async with server("legacy", port, OAUTH="1"), adapter(tmp_path, url=url(port), oauth=oauth) as running:
        assert json.loads(await running.tool("grants")) == ["client_credentials"]
        kept = tmp_path / "mcp_test" / "oauth.json"
        assert kept.stat().st_mode & 0o777 == 0o600


async def test_an_authorization_is_asked_for_once_and_then_refreshed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    port = free_port()

    async def open_address() -> None:
        with trio.fail_after(LIMIT_S):
            # The log is where a person finds it.
            while not (said := [r.getMessage() for r in caplog.records if "open this address" in r.getMessage()]):  # noqa: ASYNC110
                await trio.sleep(0.02)
            address = said[0].rpartition(" ")[2]
            await trio.to_thread.run_sync(lambda: urllib.request.urlopen(address).close())

    async with server("legacy", port, OAUTH="1"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_address)
            async with adapter(tmp_path, url=url(port), oauth={}) as running:
                assert [bool(each.get("login")) for each in running.reported] == [True, False]
                assert json.loads(await running.tool("grants")) == ["authorization_code"]
        async with adapter(tmp_path, url=url(port), oauth={}) as running:
            assert json.loads(await running.tool("grants")) == ["authorization_code"]
        kept = tmp_path / "mcp_test" / "oauth.json"
        assert json.loads(kept.read_text())["client"]["application_type"] == "native"
        kept.write_text(json.dumps({**json.loads(kept.read_text()), "expires_at": 1.0}))
        async with adapter(tmp_path, url=url(port), oauth={}) as running:
            assert json.loads(await running.tool("grants")) == ["authorization_code", "refresh_token"]


async def _ask(port: int, target: str) -> bytes:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        return bytes(await stream.receive_some(4096))


async def test_only_the_answer_to_the_address_shown_ends_an_authorization() -> None:
    port = free_port()
    loopback = Loopback("test", port, lambda url: None)
    await loopback.show(f"https://issuer.example/authorize?client_id=me&state=s3cret&redirect_uri={port}")
    found = []

    async def wait() -> None:
        found.append(await loopback.wait())

    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            # Connections that say nothing, or end at once, as a browser's may.
            silent = await trio.open_tcp_stream("127.0.0.1", port)
            await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
            for target in (
                "/", "/favicon.ico", "/callback", "/callback?error=access_denied", "/callback?code=theirs",
                "/callback?code=theirs&state=guessed", "/other?code=theirs&state=s3cret",
            ):  # fmt: skip
                assert (await _ask(port, target)).startswith(b"HTTP/1.1 400")
            assert not found
            assert (await _ask(port, "/callback?code=right&state=s3cret")).startswith(b"HTTP/1.1 200")
        await silent.aclose()
    assert (found[0].code, found[0].state) == ("right", "s3cret")
