"""Streamable HTTP: what the specification's MUSTs say, for clients with a handshake and without."""

from __future__ import annotations

import gc
import json
import os
from http.client import HTTPConnection
from typing import Any

import pytest
import trio
import trio.testing
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from proto.wire.front import Http
from services.front.protocol.dispatch import FastPath
from services.front.transport import endpoint, exchange
from tests.unit.front.httpwire import HttpWire, served
from tests.unit.front.test_fast_path import requests_for
from tests.unit.front.wire import META, MODERN

TOKEN = "a-token-of-some-length"


async def test_an_ordinary_call_is_answered_with_json_and_the_session() -> None:
    async with served() as (http, *_):
        result = await http.initialize()
        assert result["serverInfo"]["name"] == "linckia"
        assert result["capabilities"]["tools"] == {"listChanged": True}
        reply = await http.rpc("tools/call", {"name": "t_pair", "arguments": {"text": "hello"}})
        assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
        assert reply.headers["mcp-session-id"] == http.session["mcp-session-id"]
        assert reply.message["result"]["structuredContent"]["text"] == "hello"


async def test_progress_and_log_lines_come_in_a_stream_before_the_result() -> None:
    for modern in (False, True):
        async with served() as (http, *_):
            meta: dict[str, Any] = {"progressToken": "p"}
            if modern:
                meta |= {**META, "io.modelcontextprotocol/logLevel": "info"}
            else:
                await http.initialize()
            params = {"name": "t_progress", "arguments": {"steps": 3}, "_meta": meta}
            reply = await http.rpc("tools/call", params, modern=modern)
            assert reply.headers["content-type"] == "text/event-stream"
            methods = [m.get("method") for m in reply.messages]
            assert methods == ["notifications/progress", "notifications/message"] * 3 + [None]
            assert [m["params"]["progress"] for m in reply.messages[:-1:2]] == [0, 1, 2]
            assert reply.message["result"]["structuredContent"] == {"result": "done"}


@pytest.mark.slow
@pytest.mark.parametrize("version", ["2025-06-18", "2026-07-28"])
async def test_both_paths_answer_the_same_over_http(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    modern = version == "2026-07-28"
    requests = [r for r in requests_for(version) if "params" in r]

    async def answers() -> list[Any]:
        async with served() as (http, *_):
            if not modern:
                await http.initialize(version)
            found = []
            for request in requests:
                params = request["params"]
                if modern and not isinstance(params.get("_meta"), dict):
                    continue
                reply = await http.rpc("tools/call", params, id=request["id"], modern=modern)
                found.append((request, reply.status, reply.messages))
            return found

    short = await answers()
    monkeypatch.setattr(FastPath, "recognise", lambda *args, **kwargs: None)
    for left, right in zip(short, await answers(), strict=True):
        assert left == right


@pytest.mark.parametrize("modern", [False, True])
async def test_a_client_that_goes_away_withdraws_its_call(modern: bool) -> None:
    async with served() as (http, _, dispatcher, _):
        headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": "t_wait"}
        if not modern:
            await http.initialize()
            headers = http.session
        meta = {"_meta": META} if modern else {}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "t_wait", **meta}}
        stream, connection = await http.connect()
        async with stream:
            await http.start(stream, connection, "POST", "/mcp", json.dumps(body).encode(), headers)
            with trio.fail_after(5):
                await dispatcher.started.wait()
        with trio.fail_after(5):
            await dispatcher.withdrawn.wait()
        assert dispatcher.cancelled == ["t_wait"]


async def test_a_withdrawn_call_is_answered_with_an_error_in_the_revisions_that_want_one() -> None:
    async with served() as (http, _, dispatcher, _):
        await http.initialize()
        replies = []

        async def call() -> None:
            replies.append(await http.rpc("tools/call", {"name": "t_wait"}, id=9))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await dispatcher.started.wait()
            cancelled = await http.rpc("notifications/cancelled", {"requestId": 9}, id=None)
            assert cancelled.status == 202
        assert replies[0].message["error"]["code"] == -32800
        assert dispatcher.cancelled == ["t_wait"]


async def test_blanks_around_the_value_of_a_header_are_ignored() -> None:
    async with served() as (http, *_):
        params = {"name": "t_string", "arguments": {}, "_meta": META}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        head = (
            b"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\naccept: */*\r\nMcp-Method:tools/call\t\r\n"
            b"content-type: application/json \r\nmcp-protocol-version: %b  \r\nMcp-Name:  t_string \t \r\n"
            b"content-length: %d\r\n\r\n"
        )
        stream, _ = await http.connect()
        async with stream:
            await stream.send_all(head % (MODERN.encode(), len(body)) + body)
            answer = b"".join([part async for part in stream])
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        assert b'"isError":false' in answer


async def test_one_client_cannot_withdraw_the_call_of_another() -> None:
    async with served() as (http, _, dispatcher, _):
        other = HttpWire(http.port)
        await http.initialize()
        await other.initialize()
        replies = []

        async def call() -> None:
            replies.append(await http.rpc("tools/call", {"name": "t_wait", "arguments": {"seconds": 0.3}}, id=9))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await dispatcher.started.wait()
            await other.rpc("notifications/cancelled", {"requestId": 9}, id=None)
        assert replies[0].message["result"]["structuredContent"] == {"result": "waited"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "evil.example:3000"}, 421),
        ({"host": "[::1]evil.com"}, 421),
        ({"host": "[::1]:3000evil.com"}, 421),
        ({"host": "127.0.0.1:evil"}, 421),
        ({"host": "127.0.0.1.evil.example"}, 421),
        ({"host": "localhost"}, 202),
        ({"host": "LOCALHOST:99"}, 202),
        ({"host": "[::1]:3000"}, 202),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://127.0.0.1.evil.example"}, 403),
        ({"origin": "http://localhost.evil.example:80"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "file://"}, 403),
        ({"origin": "http://["}, 403),
        ({"origin": "http://localhost:5173"}, 202),
        ({"origin": "https://127.0.0.1"}, 202),
        ({"origin": "http://[::1]:8080"}, 202),
        ({"host": "named.example", "origin": "https://app.example"}, 202),
    ],
)
async def test_host_and_origin_are_checked(headers: dict[str, str], status: int) -> None:
    settings = Http(port=0, allowed_hosts=("named.example",), allowed_origins=("https://app.example",))
    async with served(settings) as (http, *_):
        await http.initialize()
        reply = await http.rpc("notifications/initialized", id=None, headers=headers)
        assert reply.status == status
        allowed = status == 202 and "origin" in headers
        assert reply.headers.get("access-control-allow-origin") == (headers["origin"] if allowed else None)


async def test_preflight_is_answered_for_allowed_origins_only() -> None:
    async with served() as (http, *_):
        wanted = {
            "access-control-request-method": "POST",
            "access-control-request-headers": "content-type, mcp-param-region",
        }
        reply = await http.request("OPTIONS", headers={"origin": "http://localhost:5173", **wanted})
        assert (reply.status, reply.body) == (204, b"")
        assert reply.headers["access-control-allow-origin"] == "http://localhost:5173"
        allowed = reply.headers["access-control-allow-headers"].split(", ")
        assert {"Origin", "Content-Type", "Accept", "Authorization", "Mcp-Session-Id", "X-Requested-With"} < {*allowed}
        assert "mcp-param-region" in allowed
        assert reply.headers["access-control-max-age"] == "86400"
        # A page of another port of this machine is another program's; the server's own is trusted.
        assert "access-control-allow-credentials" not in reply.headers
        own = await http.request("OPTIONS", headers={"origin": f"http://127.0.0.1:{http.port}", **wanted})
        assert own.headers["access-control-allow-credentials"] == "true"
        assert "POST" in reply.headers["access-control-allow-methods"]
        refused = await http.request("OPTIONS", headers={"origin": "http://evil.example", **wanted})
        assert refused.status == 403
        assert "access-control-allow-origin" not in refused.headers


async def test_if_every_origin_is_allowed_only_named_ones_may_send_credentials() -> None:
    settings = Http(port=0, allowed_origins=("*", "https://app.example"))
    async with served(settings) as (http, *_):
        for origin, named in (("https://any.example", False), ("https://app.example", True)):
            reply = await http.request("OPTIONS", headers={"origin": origin, "access-control-request-method": "POST"})
            assert reply.status == 204
            assert reply.headers["access-control-allow-origin"] == (origin if named else "*")
            assert ("access-control-allow-credentials" in reply.headers) is named


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (None, 401),
        (f"Bearer {TOKEN}", 202),
        (f"bearer {TOKEN}", 202),
        (f"Bearer {TOKEN}x", 401),
        (f"Bearer {TOKEN[:-1]}", 401),
        (f"Basic {TOKEN}", 401),
        ("Bearer", 401),
        ("Bearer é", 401),
    ],
)
async def test_the_token_is_required_if_set(authorization: str | None, status: int) -> None:
    async with served(Http(port=0, token=TOKEN)) as (http, *_):
        headers = {} if authorization is None else {"authorization": authorization}
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        reply = await http.rpc("initialize", params, headers=headers)
        assert reply.status == (200 if status == 202 else status)
        if status == 401:
            assert reply.headers["www-authenticate"].startswith('Bearer realm="linckia"')
            assert TOKEN not in reply.body.decode()
            # A web client must be able to read that it needs a token.
            seen = await http.rpc("ping", headers={**headers, "origin": "http://localhost:1"})
            assert seen.headers["access-control-allow-origin"] == "http://localhost:1"
        assert (await http.request("GET", "/health")).status == 200


async def test_a_body_over_the_limit_is_refused_declared_or_not() -> None:
    async with served(Http(port=0, max_body_bytes=2000)) as (http, *_):
        big = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": "y" * 3000}}).encode()
        assert (await http.request(body=big)).status == 413
        chunked = {"content-length": "-", "transfer-encoding": "chunked"}
        assert (await http.request(body=big, headers=chunked)).status == 413
        await http.initialize()


@pytest.mark.parametrize(
    ("path", "status"),
    [("/mcp", 200), ("/mcp/", 200), ("/mcp/yaml", 200), ("/mcp/all", 200), ("/mcp/nothing", 404), ("/other", 404)],
)
async def test_each_surface_has_its_own_url(path: str, status: int) -> None:
    async with served() as (http, *_):
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        reply = await http.rpc("initialize", params, path=path)
        assert reply.status == status
        if status == 200:
            http.session = {"mcp-session-id": reply.headers["mcp-session-id"]}
            listed = await http.rpc("tools/list", path=path)
            names = [tool["name"] for tool in listed.message["result"]["tools"]]
            assert (names == ["t_pair"]) == (path == "/mcp/yaml")


async def test_transcripts_are_served_stateless_at_v1() -> None:
    async with served() as (http, *_):
        reply = await http.rpc("tools/list", path="/v1/mcp")
        assert reply.status == 200
        assert "mcp-session-id" not in reply.headers
        assert reply.message["result"] == {"tools": []}
        unknown = await http.rpc("tools/list", path="/v1/mcp", headers={"mcp-session-id": "never-issued"})
        assert unknown.status == 200
        for accept in ("application/json", "text/event-stream", "text/html"):
            assert (await http.rpc("tools/list", path="/v1/mcp", headers={"accept": accept})).status == 406


@pytest.mark.parametrize(
    "headers",
    [
        {"mcp-method": "tools/list"},
        {"mcp-method": "-"},
        {"mcp-name": "t_list"},
        {"mcp-name": "-"},
        {"mcp-protocol-version": "2027-01-01"},
    ],
)
async def test_headers_that_do_not_match_the_body_are_refused(headers: dict[str, str]) -> None:
    async with served() as (http, _, dispatcher, _):
        reply = await http.rpc("tools/call", {"name": "t_string", "arguments": {}}, modern=True, headers=headers)
        assert reply.status == 400
        assert reply.message["error"]["code"] == -32020
        assert dispatcher.calls == []


async def test_a_name_in_base64_matches() -> None:
    async with served() as (http, *_):
        headers = {"mcp-name": "=?base64?dF9zdHJpbmc=?="}
        reply = await http.rpc("tools/call", {"name": "t_string", "arguments": {}}, modern=True, headers=headers)
        assert reply.message["result"]["resultType"] == "complete"


async def test_an_unknown_session_is_not_found_and_a_deleted_one_is_gone() -> None:
    async with served() as (http, *_):
        await http.initialize()
        call = {"name": "t_string", "arguments": {}}
        stolen = await http.rpc("tools/call", call, headers={"mcp-session-id": "0" * 32})
        assert stolen.status == 404
        assert (await http.request("DELETE", headers=http.session)).status == 200
        assert (await http.rpc("tools/call", call)).status == 404


async def test_not_json_is_refused() -> None:
    async with served() as (http, *_):
        for body in (b"{", b"\xff", b'{"a":NaN}', b"[" * 100_000):
            reply = await http.request(body=body)
            assert reply.status == 400
            assert reply.message["error"]["code"] == -32700


async def test_health_says_whether_the_system_is_ready() -> None:
    async with served(ready=False) as (http, *_):
        assert (await http.request("GET", "/livez")).status == 200
        for path in ("/health", "/readyz"):
            assert (await http.request("GET", path)).status == 503
    async with served() as (http, *_):
        for path in ("/health", "/readyz"):
            assert json.loads((await http.request("GET", path)).body) == {"status": "ready"}


async def test_routes_of_services_have_the_same_access_checks() -> None:
    async def metrics(request: Request) -> Response:
        return PlainTextResponse("up 1")

    routes = [Route("/metrics", metrics)]
    async with served(Http(port=0, token=TOKEN), routes) as (http, *_):
        assert (await http.request("GET", "/metrics")).status == 401
        assert (await http.request("GET", "/metrics", headers={"authorization": f"Bearer {TOKEN}"})).body == b"up 1"
        assert (await http.request("GET", "/metrics", headers={"host": "evil.example"})).status == 421


async def test_open_streams_do_not_delay_the_end() -> None:
    async with served() as (http, _, _, shutdown):
        await http.initialize()
        stream, connection = await http.connect()
        async with stream:
            headers = {**http.session, "accept": "text/event-stream"}
            await http.start(stream, connection, "GET", "/mcp", b"", headers)
            with trio.fail_after(5):
                connection.receive_data(await stream.receive_some(65536))
            shutdown.set()
            with trio.fail_after(5):
                while await stream.receive_some(65536):
                    pass


async def test_a_session_has_one_stream_which_ends_with_it() -> None:
    async with served() as (http, *_):
        await http.initialize()
        stream, connection = await http.connect()
        async with stream:
            headers = {**http.session, "accept": "text/event-stream"}
            await http.start(stream, connection, "GET", "/mcp", b"", headers)
            with trio.fail_after(10):
                said = await stream.receive_some(65536)
            assert said.startswith(b"HTTP/1.1 200")
            assert (await http.request("GET", headers=headers)).status == 409
            assert (await http.request("DELETE", headers=http.session)).status == 200
            with trio.fail_after(10):
                while data := await stream.receive_some(65536):
                    said += data
            assert said.endswith(b"0\r\n\r\n")


async def test_a_connection_ends_with_its_client() -> None:
    """Also where the client closes it in the very moment in which the answer is complete; the time in which an idle
    client may come back is not waited for."""
    async with served() as (http, *_):

        def ask_and_leave(times: int) -> None:
            for _ in range(times):
                connection = HTTPConnection("127.0.0.1", http.port, timeout=10)
                connection.request("GET", "/health")
                assert connection.getresponse().read()
                connection.close()

        await trio.to_thread.run_sync(ask_and_leave, 0)
        before = trio.lowlevel.current_statistics().tasks_living
        await trio.to_thread.run_sync(ask_and_leave, 100)
        with trio.fail_after(10):
            while trio.lowlevel.current_statistics().tasks_living > before:
                await trio.testing.wait_all_tasks_blocked(0.01)


@pytest.mark.slow
async def test_clients_that_come_and_go_leave_nothing_behind() -> None:
    """Sessions that were ended, and calls that were broken off, keep no task and no descriptor."""
    async with served() as (http, *_):

        async def come_and_go(count: int) -> None:
            for number in range(count):
                client = HttpWire(http.port)
                await client.initialize()
                await client.rpc("tools/call", {"name": "t_progress", "arguments": {"steps": 1}})
                stream, connection = await client.connect()
                async with stream:
                    body = json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call",
                                       "params": {"name": "t_wait"}}).encode()  # fmt: skip
                    await client.start(stream, connection, "POST", "/mcp", body, client.session)
                await client.request("DELETE", headers=client.session)

        async def settled() -> tuple[int, int]:
            await trio.sleep(0.3)
            gc.collect()
            return trio.lowlevel.current_statistics().tasks_living, len(os.listdir("/proc/self/fd"))

        await come_and_go(5)
        before = await settled()
        await come_and_go(30)
        assert await settled() == before


async def test_a_call_in_flight_at_the_end_is_answered_and_says_whether_it_was_executed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In MCP's words, and as an event where its response is a stream already."""
    monkeypatch.setattr(endpoint, "CALLS_S", 0.05)
    monkeypatch.setattr(exchange, "STREAM_AFTER_S", 0.05)
    async with served() as (http, _, _, shutdown):
        await http.initialize()
        stream, connection = await http.connect()
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "t_wait"}}
        async with stream:
            await http.start(stream, connection, "POST", "/mcp", json.dumps(body).encode(), http.session)
            said = await stream.receive_some(65536)
            assert b"text/event-stream" in said
            shutdown.set()
            with trio.fail_after(10):
                while data := await stream.receive_some(65536):
                    said += data
        assert b'"isError":true' in said
        assert b"stopped before it was answered" in said
        assert said.endswith(b"0\r\n\r\n")
