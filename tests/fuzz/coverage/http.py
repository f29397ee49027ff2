"""HTTP of clients: heads, bodies and what follows, through the server's own connection to the guard before the app."""

from __future__ import annotations

import functools
from typing import cast

import trio
from starlette.types import Receive, Scope, Send

from proto.wire.front import Http
from services.front.transport.access import Guard, Tokens
from services.front.transport.http_server import _Connection, _Server

SEEDS = [
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /mcp HTTP/1.1\r\nHost: [::1]:3000\r\nAuthorization: Bearer secret\r\nContent-Length: 2\r\n\r\n{}",
    b"POST /a%20b?x=1 HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n2;x\r\n{}\r\n0\r\nA: b\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: a:1\r\nOrigin: http://localhost:1\r\nAccess-Control-Request-Headers: a, b\r\n\r\n",
    b"GET / HTTP/1.0\r\nHost: localhost\r\nOrigin: null\r\nConnection: keep-alive\r\n\r\nGET /x HTTP/1.1\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello",
    b"GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\nxx",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nOrigin: http://[::1\r\n\r\n",
    b"CONNECT a:1 HTTP/1.1\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]


class _Socket:
    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", 3000


class _Stream:
    """A client that sends this, in pieces, and then no more."""

    socket = _Socket()

    def __init__(self, data: bytes) -> None:
        step = 1 + data[-1] if data else 1
        self._pieces = [data[at : at + step] for at in range(0, len(data), step)]
        self.sent = b""

    async def receive_some(self, size: int) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""

    async def send_all(self, data: bytes) -> None:
        self.sent += data

    async def send_eof(self) -> None:
        return


async def _echo(scope: Scope, receive: Receive, send: Send) -> None:
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message["body"]
        if not message["more_body"]:
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


@functools.cache
def _servers() -> list[_Server]:
    open_to_all = Http(allowed_origins=("*",), allowed_hosts=("*",))
    return [
        _Server(Guard(_echo, settings, Tokens()), settings, None) for settings in (Http(token="secret"), open_to_all)
    ]


def read(data: bytes) -> None:
    """To a server with a token, and to one that any page may ask; nothing may be a defect of the server's own."""
    for server in _servers():
        stream = _Stream(data)
        connection = _Connection(server, cast("trio.SocketStream", stream), ("127.0.0.1", 1))
        trio.run(connection.serve)
        assert b"by a defect" not in stream.sent
        # Each answer has a head of its own, and no client can put another into it.
        assert stream.sent.startswith(b"HTTP/1.1 ") or not stream.sent
