"""HTTP messages: a request while it is being received, and a response while it is being written."""

from __future__ import annotations

import email.utils
import http
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from starlette.types import Message

WRITE_BYTES = 256 * 1024
"""Most bytes written at once; a longer body is not copied to be sent together with its head."""

_BODILESS = frozenset({204, 304})

_ONCE = (b"host", b"authorization", b"origin", b"mcp-session-id", b"last-event-id")
"""Headers that must not be repeated, because they decide access and two parsers might use different values."""

_ABSOLUTE = re.compile(rb"https?://([^/?#]*)", re.IGNORECASE)
_PHRASES = {status.value: status.phrase.encode() for status in http.HTTPStatus}


@dataclass(eq=False)
class Request:
    """A request, as far as it has been received."""

    target: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    method: bytes = b""
    version: str = "1.1"
    keep_alive: bool = False
    expects: bool = False
    chunks: list[bytes] = field(default_factory=list)
    complete: bool = False
    end_reported: bool = False
    patience_s: float = 0.0
    """How much longer the server waits for the rest of the body."""

    def values(self, name: bytes) -> list[bytes]:
        """Return the values of a header, by its name in lower case."""
        return [value for each, value in self.headers if each == name]

    def fault(self) -> tuple[int, str] | None:
        """Return the status and text of the refusal, if this head is invalid; the parser has checked its syntax."""
        if self.version not in ("1.0", "1.1"):
            return 505, f"HTTP/{self.version} is not supported: use HTTP/1.1"
        if self.method == b"CONNECT":
            return 501, "this server is not a proxy: CONNECT is not supported"
        for name in _ONCE:
            if len(self.values(name)) > 1:
                return 400, f"the header {name.decode()} occurs more than once: send it once"
        return self._coding_fault() or self._target_fault()

    def _coding_fault(self) -> tuple[int, str] | None:
        """Check Transfer-Encoding (RFC 9112, 6.1): only `chunked` is supported, and not in HTTP/1.0."""
        coding = b", ".join(self.values(b"transfer-encoding"))
        if coding and self.version == "1.0":
            return 400, "Transfer-Encoding is not part of HTTP/1.0: send Content-Length"
        if coding and coding.lower() != b"chunked":
            return 501, "the Transfer-Encoding is not supported: send chunked alone, or Content-Length"
        return None

    def _target_fault(self) -> tuple[int, str] | None:
        """Check target and Host (RFC 9112, 3.2): HTTP/1.1 requires Host, and an absolute target must agree with it."""
        hosts = self.values(b"host")
        if not hosts and self.version == "1.1":
            return 400, "the Host header is missing"
        if self.target.startswith(b"/") or (self.target == b"*" and self.method == b"OPTIONS"):
            return None
        absolute = _ABSOLUTE.match(self.target)
        if absolute is None:
            return 400, "the target of the request is neither a path nor an http URL"
        if [absolute[1].lower()] != [host.lower() for host in hosts]:
            return 400, "the target of the request names another server than the Host header"
        return None


class Response:
    """ASGI's `send` for one request; the head is sent with the body, or at once if the body is a stream."""

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
            # Write the head separately, to avoid copying the body.
            await self._write(data)
            data = b""
        if data or body:
            await self._write(data + body if data else body)

    @property
    def _is_whole(self) -> bool:
        """Whether the length of the response is known."""
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
            # The rest of the body is still unread, so the next request cannot be found.
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
