"""HTTP sessions belong to their token's client: no other client reads, uses, resumes or ends them."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator

import h11
import pytest
import trio
import trio.testing

from proto.grants import Token
from proto.wire.front import Http
from services.front.transport.access import Tokens
from tests.unit.front.httpwire import HttpWire, served
from tests.unit.front.inprocess import InProcess

OPERATOR = "the-token-of-the-operator"
OTHERS = ("linckia_the-victims", "linckia_the-thiefs")

SSE = {"accept": "text/event-stream"}


def token(secret: str) -> Token:
    return Token(name=secret[8:], sha256=hashlib.sha256(secret.encode()).hexdigest(), created=0.0)


class Client(HttpWire):
    """A client that sends its token with every request."""

    def __init__(self, port: int, secret: str) -> None:
        super().__init__(port)
        self.authorization = {"authorization": f"Bearer {secret}"}

    async def start(
        self, stream: trio.SocketStream, connection: h11.Connection, method: str, path: str, body: bytes,
        headers: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        await super().start(stream, connection, method, path, body, {**(headers or {}), **self.authorization})


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[tuple[int, InProcess]]:
    tokens = Tokens()
    tokens.replace([token(secret) for secret in OTHERS])
    async with served(Http(token=OPERATOR), tokens=tokens) as (http, _, dispatcher, _):
        yield http.port, dispatcher


def altered(session_id: str) -> list[str]:
    """Return ids that somebody who has seen one might try."""
    text, _, signature = session_id.partition(".")
    claims = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    forged = []
    for at, value in ((0, "0" * 24), (-1, ""), (-1, "x"), (1, "yaml"), (3, 2**40)):
        other = list(claims)
        other[at] = value
        forged.append(base64.urlsafe_b64encode(json.dumps(other).encode()).rstrip(b"=").decode())
    return [
        *(f"{each}.{signature}" for each in forged), *(f"{each}." for each in forged),
        text, f"{text}.", f".{signature}", f"{text}.{'A' * len(signature)}", f"{text}=.{signature}",
        f"{session_id}A", f"{session_id}.{signature}", session_id.upper(), claims[0], "0", "*",
    ]  # fmt: skip


@pytest.mark.parametrize("owner", [OTHERS[0], OPERATOR], ids=["token", "operator"])
@pytest.mark.parametrize("thief", [OTHERS[1], OPERATOR], ids=["token", "operator"])
async def test_a_session_of_another_token_is_not_found(owner: str, thief: str) -> None:
    if owner == thief:
        pytest.skip("the operator's clients share one token and count as one")
    async with serving() as (port, dispatcher):
        victim, other = Client(port, owner), Client(port, thief)
        await victim.initialize()
        await other.initialize()
        stolen = {"mcp-session-id": victim.session["mcp-session-id"]}
        async with trio.open_nursery() as nursery:
            # The victim listens, and its events have guessable ids.
            news = await nursery.start(victim.listen)
            for event_id in ("0", "1", victim.session["mcp-session-id"], other.session["mcp-session-id"]):
                headers = {**stolen, **SSE, "last-event-id": event_id}
                assert (await other.request("GET", headers=headers)).status == 404
            call = {"name": "t_string", "arguments": {}}
            assert (await other.rpc("tools/call", call, headers=stolen)).status == 404
            assert (await other.rpc("notifications/cancelled", {"requestId": 1}, id=None, headers=stolen)).status == 404
            assert (await other.request("DELETE", headers=stolen)).status == 404
            assert dispatcher.calls == []
            # The session still works, and has received nothing.
            assert (await victim.rpc("tools/call", call)).status == 200
            assert news.statistics().current_buffer_used == 0
            nursery.cancel_scope.cancel()


async def test_guessed_and_altered_session_ids_are_invalid() -> None:
    async with serving() as (port, dispatcher):
        victim, other = (Client(port, secret) for secret in OTHERS)
        await victim.initialize()
        for client in (victim, other, Client(port, OPERATOR)):
            for guess in altered(victim.session["mcp-session-id"]):
                for method, sent in (("GET", SSE), ("DELETE", {})):
                    headers = {**sent, "mcp-session-id": guess, "last-event-id": "1"}
                    assert (await client.request(method, headers=headers)).status == 404, guess
        assert dispatcher.calls == []


async def test_event_id_of_another_session_brings_none_of_its_events() -> None:
    """This holds even with the same token: the session's own stream is opened, without events of the other session."""
    async with serving() as (port, _):
        victim, other = Client(port, OPERATOR), Client(port, OPERATOR)
        await victim.initialize()
        await other.initialize()
        params = {"name": "t_progress", "arguments": {"steps": 3}, "_meta": {"progressToken": "secret"}}
        said = (await victim.rpc("tools/call", params)).messages
        assert "secret" in json.dumps(said)
        for event_id in ("0", "1", "3", victim.session["mcp-session-id"]):
            stream, connection = await other.connect()
            async with stream:
                headers = {**other.session, **SSE, "last-event-id": event_id}
                await other.start(stream, connection, "GET", "/mcp", b"", headers)
                await trio.testing.wait_all_tasks_blocked(0.02)
                answer = bytes(await stream.receive_some(65536))
                assert answer.startswith(b"HTTP/1.1 200 ")
                assert b"secret" not in answer
                assert b"data:" not in answer
