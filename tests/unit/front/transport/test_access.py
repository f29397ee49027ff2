"""Requests are attributed to their token's owner, and their streams end with the token."""

from __future__ import annotations

import hashlib
import time

import pytest
import trio
import trio.testing
from starlette.types import Message, Receive, Scope, Send

from proto.grants import Grant, Token
from proto.wire.front import Http
from services.front.transport.access import ORIGIN, TOKEN_KEY, Guard, Tokens

OWN = "the-kernels-own-token"
SECRET = "linckia_secret"


def token(secret: str = SECRET, expires: float | None = None) -> Token:
    sha256 = hashlib.sha256(secret.encode()).hexdigest()
    return Token(name="ci", sha256=sha256, created=0.0, expires=expires, surfaces=("files",), read_only=True)


class Asked:
    """A guard over an application that notes whose request it serves, and then waits as `hold` says."""

    def __init__(self, *tokens: Token) -> None:
        self.tokens = Tokens()
        self.tokens.replace(tokens)
        self.guard = Guard(self._app, Http(token=OWN), self.tokens)
        self.served: list[tuple[Grant | None, str]] = []
        self.statuses: list[int] = []
        self.hold: trio.Event | None = None

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.served.append((scope[ORIGIN].grant, scope[TOKEN_KEY]))
        if self.hold is not None:
            await self.hold.wait()

    async def __call__(self, secret: str | None, path: str = "/mcp") -> None:
        async def receive() -> Message:
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.statuses.append(message["status"])

        headers = [(b"host", b"localhost")]
        if secret is not None:
            headers.append((b"authorization", f"Bearer {secret}".encode()))
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
        await self.guard(scope, receive, send)


async def test_request_is_served_for_the_grant_of_its_token() -> None:
    asked = Asked(token())
    await asked(SECRET)
    assert asked.served == [(Grant("ci", ("files",), (), True, token().id), token().sha256)]


async def test_grant_of_one_request_does_not_stay_for_the_next_of_its_connection() -> None:
    asked = Asked(token())
    for secret, path in ((SECRET, "/mcp"), (OWN, "/mcp"), (SECRET, "/mcp"), (None, "/health")):
        await asked(secret, path)
    assert [grant and grant.name for grant, _ in asked.served] == ["ci", None, "ci", None]


async def test_unknown_and_expired_tokens_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    asked = Asked(token(expires=1000.0))
    for secret in (SECRET, "another", "", None):
        await asked(secret)
    assert (asked.statuses, asked.served) == ([401] * 4, [])


async def test_streams_end_when_their_token_expires(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    asked = Asked(token(expires=1060.0))
    asked.hold = trio.Event()
    began = trio.current_time()
    await asked(SECRET)
    assert trio.current_time() - began == pytest.approx(60)


async def test_revocation_ends_its_token_s_streams_and_sessions_only() -> None:
    asked = Asked(token(), token("other"))
    asked.hold = trio.Event()
    ended = []

    async def ask(secret: str) -> None:
        await asked(secret)
        ended.append(secret)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, "other")
        nursery.start_soon(ask, OWN)
        nursery.start_soon(ask, SECRET)
        await trio.testing.wait_all_tasks_blocked()
        asked.tokens.replace([token("other")])
        await trio.testing.wait_all_tasks_blocked()
        assert ended == [SECRET]
        asked.hold.set()


async def test_without_an_issuer_there_is_no_protected_resource_metadata() -> None:
    asked = Asked(token())
    for path in ("/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp/all"):
        await asked(None, path)
    assert asked.statuses == [404, 404]
    assert asked.served == []
