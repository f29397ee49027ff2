"""Logins at a real authorization server (npm's `oidc-provider`) that registers no clients by itself."""

from __future__ import annotations

import contextlib
import http.cookiejar
import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.unit.mounts.kernel import LIMIT_S, Adapter, adapter, cause_of
from tests.unit.mounts.test_http import free_port, server, url

PACKAGE = "oidc-provider@9.13.3"
SCRIPT = Path(__file__).with_name("issuer.mjs")
DOCUMENT = "https://example.org/linckia.json"


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `node_modules` with the server."""
    if not shutil.which("npm"):
        pytest.skip("there is no npm to install an authorization server with")
    folder = tmp_path_factory.mktemp("npm")
    command = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts", PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    if done.returncode:
        pytest.skip(f"npm cannot install {PACKAGE}: {done.stderr[-300:]}")
    return folder / "node_modules"


@contextlib.asynccontextmanager
async def issuer(modules: Path, port: int, **variables: str) -> AsyncIterator[str]:
    environment = {**os.environ, "NODE_MODULES": str(modules), **variables}
    process = subprocess.Popen(  # noqa: ASYNC220  # it starts in a millisecond
        ["node", str(SCRIPT), str(port)], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
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
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _opened(address: str) -> None:
    cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
    with urllib.request.build_opener(cookies).open(address) as page:
        assert b"Linckia has the answer" in page.read()


def _got(address: str) -> Any:
    with urllib.request.urlopen(address) as answer:
        return json.load(answer)


@contextlib.asynccontextmanager
async def logged_in(folder: Path, port: int, *, logins: int = 1, **oauth: Any) -> AsyncIterator[Adapter]:
    """An adapter whose user logs in as often as it asks for that."""
    opened: list[str] = []

    async def person(running: Adapter) -> None:
        while True:
            for each in running.reported:
                if (address := each.get("login")) and address not in opened:
                    opened.append(address)
                    await trio.to_thread.run_sync(_opened, address)
            # The reports come in the adapter's own time.
            await trio.sleep(0.02)

    async with adapter(folder, url=url(port), oauth=oauth, meanwhile=person) as running:
        assert len(opened) == logins
        yield running


def _kept(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "mcp_test" / "oauth.json").read_text())
    return found


def _change(folder: Path, **members: object) -> None:
    (folder / "mcp_test" / "oauth.json").write_text(json.dumps({**_kept(folder), **members}))


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
async def test_a_registered_client_logs_in_and_refreshes(
    tmp_path: Path, modules: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setenv("OWN_SECRET", "hush-hush")
    client: dict[str, Any] = {"client_id": "registered", "client_secret_from": "OWN_SECRET"}
    port = free_port()
    async with issuer(modules, free_port(), METHOD=method) as where, server("legacy", port, OAUTH="1", ISSUER=where):
        async with logged_in(tmp_path, port, **client) as running:
            assert await running.tool("echo", {"a": 1}) == '{"a": 1}'
        before = _kept(tmp_path)
        _change(tmp_path, expires_at=1.0)
        async with logged_in(tmp_path, port, logins=0, **client) as running:
            assert await running.tool("echo", {"a": 2}) == '{"a": 2}'
        assert _kept(tmp_path)["tokens"]["access_token"] != before["tokens"]["access_token"]
        assert "hush-hush" not in json.dumps(before["metadata"])


async def test_a_client_that_describes_itself_logs_in(tmp_path: Path, modules: Path) -> None:
    port = free_port()
    async with (
        issuer(modules, free_port(), DOCUMENT=DOCUMENT) as where,
        server("legacy", port, OAUTH="1", ISSUER=where),
    ):
        async with logged_in(tmp_path, port, client_id=DOCUMENT) as running:
            assert await running.tool("echo", {"a": 1}) == '{"a": 1}'
        assert await trio.to_thread.run_sync(_got, f"{where}/fetched") == [DOCUMENT]
        assert _kept(tmp_path)["client"]["client_id"] == DOCUMENT


async def test_a_token_that_the_server_no_longer_accepts_leads_to_a_login(tmp_path: Path, modules: Path) -> None:
    port = free_port()
    async with (
        issuer(modules, free_port()) as where,
        server("legacy", port, OAUTH="1", ISSUER=where),
    ):
        async with logged_in(tmp_path, port, client_id="public"):
            pass
        _change(tmp_path, tokens={**_kept(tmp_path)["tokens"], "access_token": "expired"}, expires_at=1e11)
        back = free_port()
        async with logged_in(tmp_path, port, client_id="public", redirect_port=back) as running:
            assert await running.tool("echo", {"a": 1}) == '{"a": 1}'
        assert _kept(tmp_path)["port"] == back


@pytest.mark.parametrize(
    ("oauth", "said"),
    [
        ({}, "registers no clients by itself; so register one there"),
        ({"client_id": DOCUMENT}, "registers no clients by itself; and it reads no documents of clients"),
        ({"client_id": "public", "issuer": "https://other.example"}, "but oauth.issuer is 'https://other.example'"),
        ({"client_id": "https://example.org"}, "oauth.client_id: an address must be that of a document"),
    ],
)
async def test_what_is_missing_is_said(tmp_path: Path, modules: Path, oauth: dict[str, str], said: str) -> None:
    port = free_port()
    async with (
        issuer(modules, free_port()) as where,
        server("legacy", port, OAUTH="1", ISSUER=where),
        adapter(tmp_path, url=url(port), oauth=oauth, is_ready=False) as running,
    ):
        await running.ended.wait()
        assert running.failure is not None
        assert said in cause_of(running.failure)
        asked = await trio.to_thread.run_sync(_got, f"{where}/asked")
        assert {each for each in asked if "well-known" not in each} <= {"/token/introspection"}


async def test_another_issuer_does_not_get_what_belongs_to_the_first(
    tmp_path: Path, modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWN_SECRET", "hush-hush")
    client: dict[str, Any] = {"client_id": "registered", "client_secret_from": "OWN_SECRET"}
    port = free_port()
    async with (
        issuer(modules, free_port()) as first,
        server("legacy", port, OAUTH="1", ISSUER=first),
        logged_in(tmp_path, port, **client),
    ):
        pass
    async with issuer(modules, free_port()) as second, server("legacy", port, OAUTH="1", ISSUER=second):
        async with adapter(tmp_path, url=url(port), oauth=client, is_ready=False) as running:
            await running.ended.wait()
            assert running.failure is not None
            assert f"is not shown to others. If this is right, set oauth.issuer to '{second}" in cause_of(
                running.failure
            )
        asked = await trio.to_thread.run_sync(_got, f"{second}/asked")
        assert set(asked) <= {"/token/introspection"}
        # Somebody has checked it.
        async with logged_in(tmp_path, port, issuer=second, **client) as running:
            assert await running.tool("echo", {"a": 1}) == '{"a": 1}'


async def test_metadata_of_another_issuer_are_refused(tmp_path: Path, modules: Path) -> None:
    port = free_port()
    async with (
        issuer(modules, free_port(), ISSUER="http://127.0.0.1:9") as where,
        server("legacy", port, OAUTH="1", ISSUER=where),
        adapter(tmp_path, url=url(port), oauth={"client_id": "public"}, is_ready=False) as running,
    ):
        await running.ended.wait()
        assert running.failure is not None
        assert "issuer mismatch" in cause_of(running.failure)


async def test_another_server_does_not_get_the_token(tmp_path: Path, modules: Path) -> None:
    port, other = free_port(), free_port()
    async with (
        issuer(modules, free_port()) as where,
        server("legacy", port, OAUTH="1", ISSUER=where),
        logged_in(tmp_path, port, client_id="public"),
    ):
        pass
    async with server("legacy", other), adapter(tmp_path, url=url(other), oauth={"client_id": "public"}) as running:
        assert "Authorization" not in json.loads(await running.tool("headers"))
    assert "tokens" not in _kept(tmp_path)
