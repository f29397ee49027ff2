"""An MCP client whose calls always end: with a result, an error, or after a time limit."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import subprocess
import time
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from tests.bench.parts.wire import INITIALIZE, INITIALIZED, VERSION

ANSWERED, FAILED, SILENT, CLOSED = "answered", "error", "no answer", "closed"
_READ_BYTES = 1024 * 1024


class Reply(msgspec.Struct):
    """What became of a call.

    Attributes:
        text: of the first content block, or of the error.
    """

    outcome: str
    text: str = ""
    seconds: float = 0.0


class Session(Protocol):
    """A connection with a handshake."""

    def call(self, tool: str, arguments: dict[str, Any], limit_s: float) -> Reply: ...

    def close(self) -> None: ...


class _Ended(Exception):
    """The other side closed the connection, or refused the request."""

    def __init__(self, text: str = "", outcome: str = CLOSED) -> None:
        super().__init__(text)
        self.outcome = outcome


class _Timed:
    """Calls with a time limit, on what `_send` and `_reply` do."""

    _number = 0

    def call(self, tool: str, arguments: dict[str, Any], limit_s: float) -> Reply:
        """Call a tool."""
        self._number += 1
        params = {"name": tool, "arguments": arguments}
        request = {"jsonrpc": "2.0", "id": self._number, "method": "tools/call", "params": params}
        begun = time.monotonic()
        try:
            message = self._exchange(request, begun + limit_s)
        except _Ended as error:
            reply = Reply(error.outcome, str(error))
        except TimeoutError:
            reply = Reply(SILENT)
        else:
            reply = _reply(message)
        reply.seconds = time.monotonic() - begun
        return reply

    def _exchange(self, message: dict[str, Any], deadline: float) -> dict[str, Any]:
        """Return the reply to a request. Raises TimeoutError or _Ended."""
        raise NotImplementedError


def _reply(message: dict[str, Any]) -> Reply:
    if "error" in message:
        return Reply(FAILED, str(message["error"].get("message", "")))
    result = message["result"]
    text = next((block["text"] for block in result.get("content", []) if block.get("type") == "text"), "")
    return Reply(FAILED if result.get("isError") else ANSWERED, text)


class PipeSession(_Timed):
    """A server that this client starts, as clients do without a gateway."""

    def __init__(self, command: Sequence[str], limit_s: float) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._buffer = bytearray()
        try:
            self._exchange(INITIALIZE, time.monotonic() + limit_s)
            self._send(INITIALIZED)
        except (_Ended, TimeoutError):
            self.close()
            raise ConnectionError("the server did not start") from None

    def _send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            raise _Ended from None

    def _exchange(self, message: dict[str, Any], deadline: float) -> dict[str, Any]:
        self._send(message)
        while True:
            with contextlib.suppress(ValueError):
                found = json.loads(self._line(deadline))
                if isinstance(found, dict) and found.get("id") == message["id"] and "method" not in found:
                    return found

    def _line(self, deadline: float) -> bytes:
        assert self.process.stdout is not None
        fd, searched = self.process.stdout.fileno(), 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError
            data = os.read(fd, _READ_BYTES)
            if not data:
                raise _Ended
            self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def close(self) -> None:
        """Close the pipes, and end the server as clients do."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(1)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class HttpSession(_Timed):
    """A session over Streamable HTTP."""

    def __init__(self, port: int, path: str, headers: dict[str, str], limit_s: float) -> None:
        self._port, self._path = port, path
        self._headers = {
            **headers,
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
        }
        try:
            self._exchange(INITIALIZE, time.monotonic() + limit_s)
            self._exchange(INITIALIZED, time.monotonic() + limit_s)
        except (_Ended, TimeoutError) as error:
            raise ConnectionError(f"no handshake: {error}") from None

    def _exchange(self, message: dict[str, Any], deadline: float) -> dict[str, Any]:
        left = max(0.1, deadline - time.monotonic())
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=left)
        try:
            connection.request("POST", self._path, json.dumps(message), self._headers)
            # The response takes the socket away if it ends the connection.
            sock = connection.sock
            response = connection.getresponse()
            if session := response.headers.get("mcp-session-id"):
                self._headers.update({"mcp-session-id": session, "mcp-protocol-version": VERSION})
            if response.status >= 400:
                raise _Ended(f"HTTP {response.status}", FAILED)
            if "id" not in message:
                return {}
            body = bytearray()
            while True:
                sock.settimeout(max(0.1, deadline - time.monotonic()))
                data = response.read1(_READ_BYTES)
                body += data
                if (not data or b"\n" in data) and (found := _found(body, message["id"])) is not None:
                    return found
                if not data:
                    raise _Ended
                if time.monotonic() > deadline:
                    raise TimeoutError
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException) as error:
            raise _Ended(type(error).__name__) from None
        finally:
            connection.close()

    def close(self) -> None:
        """Forget the session; servers end it in their own time."""


def _found(body: bytearray, number: object) -> dict[str, Any] | None:
    """Return the reply in a body, which is JSON or a stream of events."""
    for line in [bytes(body)] if body[:1] == b"{" else body.split(b"\n"):
        if line.startswith((b"data:", b"{")):
            with contextlib.suppress(ValueError):
                message = json.loads(line.removeprefix(b"data:"))
                if message.get("id") == number and "method" not in message:
                    found: dict[str, Any] = message
                    return found
    return None
