"""Hostile HTTP: truncated or ambiguous requests, and messages with invalid ids, execute nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
import trio.testing
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from proto.wire.front import Http
from services.front.transport.exchange import Body
from services.front.transport.fair_limits import FairLimits
from tests.unit.front.httpwire import ACCEPT, served
from tests.unit.front.wire import META, MODERN, connected, gateway_in_process

TOOL = "t_string"

CALL = json.dumps(
    {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"_meta": META, "name": TOOL, "arguments": {}}}
).encode()

HEADERS = (
    "Content-Type: application/json", f"Accept: {ACCEPT}", f"MCP-Protocol-Version: {MODERN}",
    "Mcp-Method: tools/call", f"Mcp-Name: {TOOL}",
)  # fmt: skip
HOST = "Host: localhost"
LENGTH = f"Content-Length: {len(CALL)}"
CHUNKED = "Transfer-Encoding: chunked"


def request(*headers: str, body: bytes = CALL, target: str = "/mcp", line: str = "", host: str = HOST) -> bytes:
    """Build a POST of a complete call with these headers in addition to the usual ones."""
    lines = [line or f"POST {target} HTTP/1.1", *([host] if host else []), *HEADERS, *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chunks(*data: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in data) + end


async def answered(port: int, sent: bytes) -> bytes:
    """Return the server's data until it closes; the client half-closes the connection after `sent`."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(sent)
        await stream.send_eof()
        return await rest_of(stream)


async def rest_of(stream: trio.SocketStream) -> bytes:
    answer = b""
    with trio.fail_after(20):
        async for data in stream:
            answer += data
    return answer


WHOLE = {
    "length": request(LENGTH),
    "chunked": request(CHUNKED, body=chunks(CALL[:9], CALL[9:])),
    "chunked, with an extension and a trailer": request(
        CHUNKED, body=b"%x;a=b\r\n%b\r\n0\r\nX-Sum: 1\r\n\r\n" % (len(CALL), CALL)
    ),
    "absolute": request(LENGTH, target="http://LOCALHOST/mcp"),
    "an upgrade that is declined": request(LENGTH, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c"),
    "an upgrade that is declined, chunked": request(CHUNKED, "Connection: Upgrade", "Upgrade: h2c", body=chunks(CALL)),
}

CUT_SHORT = {
    "length": request(f"Content-Length: {len(CALL) + 1}"),
    "length, in the middle": request(LENGTH, body=CALL[:-1]),
    "length, nothing": request(LENGTH, body=b""),
    "no last chunk": request(CHUNKED, body=chunks(CALL, end=b"")),
    "half of the last chunk": request(CHUNKED, body=chunks(CALL, end=b"0\r\n")),
    "half of a trailer": request(CHUNKED, body=chunks(CALL, end=b"0\r\nX-Sum: 1\r\n")),
    "a chunk's line break": request(CHUNKED, body=chunks(CALL)[: -len("\r\n0\r\n\r\n")]),
    "an upgrade": request(f"Content-Length: {len(CALL) + 1}", "Connection: Upgrade", "Upgrade: h2c"),
}

AMBIGUOUS = {
    "a chunk's size": request(CHUNKED, body=chunks(CALL, end=b"zz\r\n\r\n0\r\n\r\n")),
    "a negative size": request(CHUNKED, body=chunks(CALL, end=b"-1\r\nx\r\n0\r\n\r\n")),
    "an immense size": request(CHUNKED, body=chunks(CALL, end=b"f" * 17 + b"\r\nx\r\n0\r\n\r\n")),
    "a longer chunk": request(CHUNKED, body=b"%x\r\n%b\r\n0\r\n\r\n" % (len(CALL) - 1, CALL)),
    "bare line feeds": request(CHUNKED, body=chunks(CALL).replace(b"\r\n", b"\n")),
    "length and chunked": request(LENGTH, CHUNKED, body=chunks(CALL)),
    "chunked and length": request(CHUNKED, LENGTH, body=chunks(CALL)),
    "a length in a trailer": request(CHUNKED, body=chunks(CALL, end=b"0\r\nContent-Length: 3\r\n\r\n")),
    "two lengths": request(LENGTH, f"Content-Length: {len(CALL) - 1}"),
    "a list of lengths": request(f"Content-Length: {len(CALL)}, {len(CALL)}"),
    "a signed length": request(f"Content-Length: +{len(CALL)}"),
    "chunked twice": request(CHUNKED, CHUNKED, body=chunks(CALL)),
    "chunked and more": request("Transfer-Encoding: chunked, identity", body=chunks(CALL)),
    "chunked in HTTP/1.0": request(CHUNKED, line="POST /mcp HTTP/1.0", body=chunks(CALL)),
    "no host": request(LENGTH, host=""),
    "two hosts": request(LENGTH, "Host: localhost"),
    "two hosts that differ": request(LENGTH, "Host: evil.example"),
    "a host in a trailer": request(CHUNKED, host="", body=chunks(CALL, end=b"0\r\nHost: localhost\r\n\r\n")),
    "another server's target": request(LENGTH, target="http://evil.example/mcp"),
    "another port's target": request(LENGTH, target="http://localhost:1/mcp"),
    "a user's target": request(LENGTH, target="http://localhost@evil.example/mcp"),
    "another scheme's target": request(LENGTH, target="ftp://localhost/mcp"),
    "two origins": request(LENGTH, "Origin: http://localhost", "Origin: http://evil.example"),
    "two tokens": request(LENGTH, "Authorization: Bearer a", "Authorization: Bearer b"),
    "two sessions": request(LENGTH, "Mcp-Session-Id: a", "Mcp-Session-Id: b"),
}

UNSUPPORTED = {
    "compressed": (501, request("Transfer-Encoding: gzip, chunked", body=chunks(CALL))),
    "a tunnel": (501, request(LENGTH, line="CONNECT localhost:80 HTTP/1.1")),
    "HTTP/2.0": (505, request(LENGTH, line="POST /mcp HTTP/2.0")),
}


@pytest.mark.parametrize("sent", WHOLE.values(), ids=WHOLE)
async def test_whole_request_is_executed(sent: bytes) -> None:
    async with served() as (http, _, dispatcher, _), await trio.open_tcp_stream("127.0.0.1", http.port) as stream:
        await stream.send_all(sent.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
        assert (await rest_of(stream)).startswith(b"HTTP/1.1 200 ")
        assert dispatcher.calls == [TOOL]


@pytest.mark.parametrize("sent", [*CUT_SHORT.values(), *AMBIGUOUS.values()], ids=[*CUT_SHORT, *AMBIGUOUS])
async def test_request_that_is_cut_short_or_ambiguous_executes_nothing(sent: bytes) -> None:
    async with served() as (http, _, dispatcher, _):
        assert (await answered(http.port, sent)).startswith(b"HTTP/1.1 400 ")
        assert dispatcher.calls == []
        # A call whose client has disconnected is not executed either.
        async with await trio.open_tcp_stream("127.0.0.1", http.port) as stream:
            await stream.send_all(sent)
        assert (await http.request("GET", "/livez")).status == 200
        await trio.testing.wait_all_tasks_blocked()
        assert dispatcher.calls == []


@pytest.mark.parametrize(("status", "sent"), UNSUPPORTED.values(), ids=UNSUPPORTED)
async def test_form_of_http_that_is_not_served_is_refused_by_its_status(status: int, sent: bytes) -> None:
    async with served() as (http, _, dispatcher, _):
        assert (await answered(http.port, sent)).startswith(b"HTTP/1.1 %d " % status)
        assert dispatcher.calls == []


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize("is_whole", [True, False])
async def test_route_is_not_executed_before_the_whole_request_has_come(method: str, is_whole: bool) -> None:
    executed = []

    async def act(asked: Request) -> Response:
        if method == "POST":
            await Body(FairLimits(), "client", 1000).read(asked.receive, {})
        executed.append(method)
        return JSONResponse("done")

    async with served(routes=[Route("/act", act, methods=[method])]) as (http, *_):
        head = f"{method} /act HTTP/1.1\r\n{HOST}\r\nConnection: close\r\nContent-Length: 4\r\n\r\n".encode()
        answer = await answered(http.port, head + (b"body" if is_whole else b"bod"))
        assert answer.startswith(b"HTTP/1.1 200 " if is_whole else b"HTTP/1.1 400 ")
        assert executed == ([method] if is_whole else [])


async def test_session_is_not_ended_by_half_a_request() -> None:
    async with served() as (http, *_):
        await http.initialize()
        session = f"Mcp-Session-Id: {http.session['mcp-session-id']}"
        sent = f"DELETE /mcp HTTP/1.1\r\n{HOST}\r\n{session}\r\nContent-Length: 4\r\n\r\nbod".encode()
        assert (await answered(http.port, sent)).startswith(b"HTTP/1.1 400 ")
        assert (await http.rpc("ping")).status == 200


async def test_trailer_gives_no_token() -> None:
    async with served(Http(token="the-token-of-this-server")) as (http, _, dispatcher, _):
        token = b"Authorization: Bearer the-token-of-this-server\r\n"
        sent = request(CHUNKED, body=chunks(CALL, end=b"0\r\n" + token + b"\r\n"))
        assert (await answered(http.port, sent)).startswith(b"HTTP/1.1 401 ")
        assert dispatcher.calls == []


NOT_IDS = ["1.5", "1.0", "1e3", "null", "true", "false", "{}", '{"a":1}', "[]", "[1]"]


def message(request_id: str, method: str = "tools/call", **params: Any) -> bytes:
    said = json.dumps({"method": method, "params": {"name": TOOL, "arguments": {}, **params}})
    return f'{{"jsonrpc":"2.0","id":{request_id},{said[1:]}'.encode()


NOT_MESSAGES = [
    *(message(each) for each in NOT_IDS),
    *(message(each, "notifications/cancelled", requestId=1) for each in NOT_IDS),
    *(b'{"jsonrpc":"2.0","id":%b,"result":{}}' % each.encode() for each in NOT_IDS),
    b'{"jsonrpc":"2.0","result":{}}', b'{"jsonrpc":"2.0","id":1}', b'{"jsonrpc":"2.0"}', b"{}", b"5", b"null",
    message("1").replace(b'"2.0"', b"2.0"), message("1").replace(b'"2.0"', b'"1.0"'),
    message("1", "x").replace(b'"x"', b"null"),
]  # fmt: skip


@pytest.mark.parametrize("said", NOT_MESSAGES, ids=bytes.decode)
@pytest.mark.parametrize("modern", [False, True])
async def test_invalid_messages_over_http_are_refused_and_execute_nothing(said: bytes, modern: bool) -> None:
    async with served() as (http, _, dispatcher, _):
        headers = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": TOOL}
        if not modern:
            await http.initialize()
            headers = http.session
        reply = await http.request(body=said, headers=headers)
        assert reply.status == 400
        assert reply.message["error"]["code"] == -32600
        assert reply.message["id"] in (None, 1)
        assert dispatcher.calls == []


@pytest.mark.parametrize("modern", [False, True])
async def test_invalid_messages_over_stdio_are_refused_and_execute_nothing(modern: bool) -> None:
    async with gateway_in_process() as (gateway, dispatcher), connected(gateway) as wire:
        await (wire.open_modern() if modern else wire.initialize())
        for said in NOT_MESSAGES:
            await wire.send_bytes(said + b"\n")
            answer = await wire.receive()
            assert answer["error"]["code"] == -32600, said
            assert answer["id"] in (None, 1), said
        assert dispatcher.calls == []


@pytest.mark.parametrize("request_id", ["1.5", "1e3", "true", '{"a":1}'])
async def test_an_error_for_an_invalid_id_does_not_answer_another_request(request_id: str) -> None:
    """An id that was truncated when read would name another request."""
    async with served() as (http, *_):
        await http.initialize()
        assert (await http.request(body=message(request_id), headers=http.session)).message["id"] is None
