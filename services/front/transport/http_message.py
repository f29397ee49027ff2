"""The two messages of HTTP: a request as far as it has come, and a response as it is written."""

from __future__ import annotations

import email.utils
import http
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from starlette.types import Message

WRITE_BYTES = 256 * 1024
"""Of an answer at once; a longer body is not copied to go with its head."""

_BODILESS = frozenset({204, 304})
_PHRASES = {status.value: status.phrase.encode() for status in http.HTTPStatus}


@dataclass(eq=False)
class Request:
    """A request as far as it has come."""

    target: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    method: bytes = b""
    version: str = "1.1"
    keep_alive: bool = False
    expects: bool = False
    chunks: list[bytes] = field(default_factory=list)
    complete: bool = False
    end_told: bool = False


class Response:
    """ASGI's `send` for one request; the head goes with the body, or at once where that is a stream."""

    def __init__(self, request: Request, write: Callable[[bytes], Awaitable[None]]) -> None:
        self._request = request
        self._write = write
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._chunked = False
        self.started = False
        self.complete = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], list(message.get("headers", ()))
            if not self._is_whole:
                self.started = True
                await self._write(self._head())
            return
        if self.complete:
            return
        body, more = bytes(message.get("body", b"")), bool(message.get("more_body", False))
        data = b"" if self.started else self._head()
        self.started = True
        if self._request.method == b"HEAD" or self._status in _BODILESS:
            body = b""
        if self._chunked:
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"" if more else b"0\r\n\r\n")
        self.complete = not more
        if len(body) > WRITE_BYTES:
            # Not worth a copy.
            await self._write(data)
            data = b""
        if data or body:
            await self._write(data + body if data else body)

    @property
    def _is_whole(self) -> bool:
        """Whether its length is known."""
        return self._status in _BODILESS or any(name.lower() == b"content-length" for name, _ in self._headers)

    def _head(self) -> bytes:
        own = [(b"date", email.utils.formatdate(usegmt=True).encode())]
        if not self._is_whole:
            if self._request.version == "1.1":
                self._chunked = self._request.method != b"HEAD"
                own.append((b"transfer-encoding", b"chunked"))
            else:
                self._request.keep_alive = False
        if not self._request.complete:
            # Of a body that nobody has read some is yet to come: no other request can be told from it.
            self._request.keep_alive = False
        if not self._request.keep_alive:
            own.append((b"connection", b"close"))
        elif self._request.version == "1.0":
            own.append((b"connection", b"keep-alive"))
        phrase = _PHRASES.get(self._status, b"")
        lines = [b"HTTP/1.1 %d %b\r\n" % (self._status, phrase)]
        for name, value in (*self._headers, *own):
            if b"\n" in value or b"\r" in value or b"\n" in name:
                raise ValueError(f"a header of the response has a line break: {name!r}")
            lines.append(b"%b: %b\r\n" % (name, value))
        return b"".join(lines) + b"\r\n"
