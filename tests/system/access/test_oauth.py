"""A running system that takes the tokens of an issuer, which runs beside it: the whole way of a client, and attacks."""

from __future__ import annotations

import functools
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from mcp.client import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from kernel.chronicle.audit import AuditEntry, entries, files_of
from tests.issuer import AUDIENCE, Issuer
from tests.system.answers import message_of
from tests.system.cli.clients import command, data_directory
from tests.system.running import HTTP, RunningKernel, running, wait_until

SETTINGS = """
[http]
rate = "60/min burst 40"
[http.oauth]
issuer = "{issuer}"
audience = "{audience}"
[http.oauth.scopes.edit]
surfaces = ["yaml"]
[http.oauth.scopes.look]
surfaces = ["yaml"]
read_only = true
[http.oauth.scopes.all]
"""

WEB = httpx2.Client(timeout=30, trust_env=False)
"""One, since each would load the machine's certificates."""

WELL_KNOWN = "/.well-known/oauth-protected-resource"


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    made.add("first")
    with made.in_a_thread():
        yield made


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[RunningKernel]:
    folder = tmp_path_factory.mktemp("oauth")
    (folder / "root").mkdir()
    (folder / "root" / "a.yaml").write_text("retries: 3\n")
    with data_directory(folder / "data") as data:
        data.mkdir(exist_ok=True)
        (data / "linckia.toml").write_text(SETTINGS.format(issuer=issuer.url, audience=AUDIENCE))
        with running(data, [folder / "root"], options=HTTP, services=["yaml", "echo", "fetch"], token=True) as kernel:
            yield kernel


def restart_front(kernel: RunningKernel) -> None:
    before = kernel.service("front")["generation"]
    kernel.call("kernel_restart", {"service": "front"})
    wait_until(lambda: kernel.service("front")["generation"] > before)
    kernel.wait_ready("front")


@functools.cache
def base(kernel: RunningKernel) -> str:
    url: str = kernel.status()["http_url"]
    return url.removesuffix("/mcp")


def ask(kernel: RunningKernel, token: str | None, at: str = "/mcp/yaml", **arguments: Any) -> httpx2.Response:
    """A tool call as a client of 2026-07-28 makes it."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "0"},
    }
    name = "yaml_set" if "value" in arguments else "yaml_get"
    call = {"name": name, "arguments": arguments, "_meta": meta}
    headers = {
        "accept": "application/json, text/event-stream", "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call", "mcp-name": name, **({"authorization": f"Bearer {token}"} if token else {}),
    }  # fmt: skip
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    return WEB.post(base(kernel) + at, json=body, headers=headers)


def is_done(answer: httpx2.Response) -> bool:
    return answer.status_code == 200 and message_of(answer.text).get("result", {}).get("isError") is False


@pytest.fixture
def file(kernel: RunningKernel) -> dict[str, str]:
    return {"file": str(Path(kernel.status()["roots"][0]) / "a.yaml"), "path": "retries"}


def refusals(kernel: RunningKernel, **wanted: str) -> list[AuditEntry]:
    found = [entry for path in files_of(kernel.data_dir) for entry in entries(path.read_bytes().splitlines())]
    return [entry for entry in found if all(getattr(entry, name) == value for name, value in wanted.items())]


def test_a_scope_gives_what_the_settings_say_and_the_audit_log_names_the_subject(
    kernel: RunningKernel, issuer: Issuer, file: dict[str, str]
) -> None:
    assert is_done(ask(kernel, issuer.token("first", scope="edit", sub="ann"), **file, value="4"))
    looking = issuer.token("first", scope="look", sub="bob")
    assert is_done(ask(kernel, looking, **file))
    refused = ask(kernel, looking, **file, value="5")
    assert "may only read" in refused.text
    wait_until(lambda: refusals(kernel, who="oauth:bob", outcome="forbidden"), said=lambda: refusals(kernel))
    wait_until(lambda: refusals(kernel, who="oauth:ann", outcome="ok"), said=lambda: refusals(kernel))


def test_a_client_without_a_token_is_led_to_the_issuer(kernel: RunningKernel, issuer: Issuer) -> None:
    for path in ("/mcp", "/mcp/yaml"):
        answer = ask(kernel, None, path)
        assert answer.status_code == 401
        challenge = answer.headers["www-authenticate"]
        assert f'resource_metadata="{base(kernel)}{WELL_KNOWN}{path}"' in challenge
        assert "error=" not in challenge
        metadata = WEB.get(base(kernel) + WELL_KNOWN + path)
        assert metadata.status_code == 200
        assert metadata.json()["resource"] == base(kernel) + path
        assert metadata.json()["authorization_servers"] == [issuer.url]
        assert metadata.json()["scopes_supported"] == ["edit", "look", "all"]
    assert WEB.get(base(kernel) + WELL_KNOWN).json()["resource"] == base(kernel)
    assert WEB.get(base(kernel) + WELL_KNOWN + "/nowhere").status_code == 404


def test_a_forged_token_is_refused_with_the_reason(kernel: RunningKernel, issuer: Issuer) -> None:
    mallory = Issuer(issuer.url)
    mallory.add("first")
    now = time.time()
    for token, why in (
        (mallory.token("first", scope="edit"), "signature is wrong"),
        (issuer.token("first", scope="edit", aud="https://other.example"), "for another server"),
        (issuer.token("first", scope="edit", exp=now - 100), "has expired"),
        (issuer.token("first", scope="edit", nbf=now + 100), "not valid yet"),
        ("a.b.c", "not a JSON Web Token"),
        ("none-of-this-kernels", ""),
    ):
        answer = ask(kernel, token)
        assert answer.status_code == 401, token
        assert 'error="invalid_token"' in answer.headers["www-authenticate"]
        assert why in answer.headers["www-authenticate"]
    lacking = ask(kernel, issuer.token("first", scope="other"))
    assert lacking.status_code == 403
    assert 'error="insufficient_scope"' in lacking.headers["www-authenticate"]


def test_a_forbidden_call_is_refused_with_the_required_scopes(kernel: RunningKernel, issuer: Issuer) -> None:
    token = issuer.token("first", scope="edit")
    for path, scopes in (("/mcp", "all"), ("/mcp/files", "all")):
        refused = ask(kernel, token, path)
        assert (refused.status_code, "does not allow the surface" in refused.text) == (403, True)
        challenge = refused.headers["www-authenticate"]
        assert challenge.startswith(f'Bearer resource_metadata="{base(kernel)}{WELL_KNOWN}{path}"')
        assert 'error="insufficient_scope"' in challenge
        assert f'scope="{scopes}"' in challenge
    refused = WEB.get(base(kernel) + "/status", headers={"authorization": f"Bearer {token}"})
    assert refused.status_code == 403
    assert 'error="insufficient_scope"' in refused.headers["www-authenticate"]


def test_a_new_key_is_found_and_unknown_ones_do_not_reach_the_issuer(
    kernel: RunningKernel, issuer: Issuer, file: dict[str, str]
) -> None:
    """With a front that has not read the keys in the last minute: a new one."""
    issuer.add("second", "RS256")
    restart_front(kernel)
    assert is_done(ask(kernel, issuer.token("second", scope="look"), **file))
    before = issuer.read
    for number in range(30):
        assert ask(kernel, issuer.token("second", {"kid": f"none-{number}"})).status_code == 401
    assert issuer.read == before
    wait_until(lambda: refusals(kernel, outcome="invalid_token"))
    assert len(refusals(kernel, outcome="invalid_token")) < 10


def test_a_front_that_does_not_know_the_keys_says_to_come_again_while_the_issuer_is_away(
    kernel: RunningKernel, issuer: Issuer, file: dict[str, str]
) -> None:
    issuer.down = True
    restart_front(kernel)
    answer = ask(kernel, issuer.token("first", scope="look"), **file)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    issuer.down = False
    wait_until(lambda: is_done(ask(kernel, issuer.token("first", scope="look"), **file)))


class Storage:
    """A client's storage: its knowledge of the issuer."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


def test_the_sdks_client_finds_the_issuer_gets_a_token_and_calls(
    kernel: RunningKernel, issuer: Issuer, file: dict[str, str]
) -> None:
    url = f"{base(kernel)}/mcp/yaml"
    back: dict[str, str] = {}

    async def agree(address: str) -> None:
        async with httpx2.AsyncClient() as browser:
            answer = await browser.get(address)
        back.update(urllib.parse.parse_qsl(urllib.parse.urlsplit(answer.headers["location"]).query))

    async def agreed() -> AuthorizationCodeResult:
        return AuthorizationCodeResult(code=back["code"], state=back["state"])

    async def talk() -> None:
        metadata = OAuthClientMetadata(client_name="test", redirect_uris=[AnyUrl("http://127.0.0.1:1/back")])
        storage = Storage()
        auth = OAuthClientProvider(url, metadata, storage, agree, agreed)
        async with (
            httpx2.AsyncClient(auth=auth, timeout=30) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            result = await client.call_tool("yaml_get", file)
            assert result.is_error is False
        assert storage.tokens is not None

    trio.run(talk)
    assert issuer.asked[-1]["resource"] == url
    assert issuer.asked[-1]["scope"] == "edit look all"


def test_the_flood_of_one_subject_does_not_affect_another(
    kernel: RunningKernel, issuer: Issuer, file: dict[str, str]
) -> None:
    greedy, modest = (issuer.token("first", scope="look", sub=name) for name in ("greedy", "modest"))
    outcomes: dict[str, int] = {"done": 0, "overloaded": 0, "refused": 0}
    while not outcomes["refused"]:
        answer = ask(kernel, greedy, **file)
        if answer.status_code == 429:
            assert int(answer.headers["retry-after"]) > 0
            outcomes["refused"] += 1
        elif is_done(answer):
            outcomes["done"] += 1
        else:
            assert "oauth:greedy may make 60 calls a minute" in answer.text
            outcomes["overloaded"] += 1
        assert sum(outcomes.values()) < 1000
    assert outcomes["overloaded"] > 0
    assert is_done(ask(kernel, modest, **file))
    assert WEB.get(base(kernel) + "/health").status_code == 200
    wait_until(
        lambda: {entry.outcome for entry in refusals(kernel, who="oauth:greedy")} == {"overloaded", "rate_limited"},
        said=lambda: refusals(kernel, who="oauth:greedy"),
    )


def test_a_token_has_a_rate_of_its_own_and_the_kernels_own_has_none(
    kernel: RunningKernel, file: dict[str, str]
) -> None:
    made = command(kernel.data_dir, "token", "create", "slow", "--surface", "yaml", "--rate", "1/h burst 2")
    assert made.returncode == 0, made.stderr
    slow = made.stdout.strip()
    assert [is_done(ask(kernel, slow, **file)) for _ in range(4)] == [True, True, False, False]
    assert "slow may make" in ask(kernel, slow, **file).text
    own = kernel.status()["token"]
    assert all(is_done(ask(kernel, own, **file)) for _ in range(60))
    for options, why in ((["--rate", "often"], "600/min"), (["--rate", "0/s"], "600/min")):
        refused = command(kernel.data_dir, "token", "create", "other", *options)
        assert (refused.returncode, why in refused.stderr) == (2, True)
    taken = command(kernel.data_dir, "token", "create", "operator")
    assert (taken.returncode, "audit log" in taken.stderr) == (2, True)
    assert '"rate": "1/h burst 2"' in command(kernel.data_dir, "token", "list", "--json").stdout
