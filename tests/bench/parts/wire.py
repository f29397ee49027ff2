"""Raw clients for measuring: cheap, equally so for every server, and reading nothing but the end of an answer."""

from __future__ import annotations

import json
import selectors
import socket
import subprocess
import time
from collections.abc import Sequence
from typing import Protocol

VERSION = "2025-11-25"

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}},
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


ECHO = "mcp.echo"


def call_body(number: int, tool: str = ECHO) -> bytes:
    params = {"name": tool, "arguments": {"message": "hello, sea star"}}
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}).encode()


class Caller(Protocol):
    """A way to call one server."""

    def one_by_one(self, count: int) -> list[float]:
        """Return the seconds of each of `count` calls, one after the other."""

    def in_flight(self, count: int, width: int) -> float:
        """Return the calls per second with `width` in flight, over `count` calls."""

    def close(self) -> None: ...


def checked(answer: bytes) -> bytes:
    """Return the answer if it is a result; a benchmark of errors would be fast."""
    if b"hello, sea star" not in answer or b'"error"' in answer or b'"isError":true' in answer:
        raise AssertionError(f"not the answer: {answer[:300]!r}")
    return answer


class Stdio:
    """A server on pipes.

    Args:
        quiet: whether to discard its stderr.
    """

    def __init__(self, command: Sequence[str], tool: str = ECHO, *, quiet: bool = False) -> None:
        self._tool = tool
        # Read as clients do: in pieces of what the pipe holds.
        self._process = subprocess.Popen(
            command,
            bufsize=65536,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if quiet else None,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        self._send(json.dumps(INITIALIZE).encode())
        self._out.readline()
        self._send(json.dumps(INITIALIZED).encode())

    def _send(self, message: bytes) -> None:
        self._in.write(message + b"\n")
        self._in.flush()

    def exchange(self, message: bytes) -> bytes:
        """Return the answer to a request of any kind."""
        self._send(message)
        return self.receive()

    def receive(self) -> bytes:
        """Return the next message; nothing if the server has ended."""
        return self._out.readline()

    def one_by_one(self, count: int) -> list[float]:
        taken = []
        for number in range(count):
            body = call_body(number, self._tool)
            start = time.perf_counter()
            self._send(body)
            answer = self._out.readline()
            taken.append(time.perf_counter() - start)
            checked(answer)
        return taken

    def in_flight(self, count: int, width: int) -> float:
        bodies = [call_body(number, self._tool) for number in range(count)]
        start = time.perf_counter()
        for body in bodies[:width]:
            self._send(body)
        for number in range(count):
            checked(self._out.readline())
            if number + width < count:
                self._send(bodies[number + width])
        return count / (time.perf_counter() - start)

    def kill(self) -> None:
        """End the server, so that a caller that waits for an answer gets none."""
        self._process.kill()

    def close(self) -> None:
        self._in.close()
        self._process.wait(30)
        self._out.close()


class Http:
    """A server on a port, with persistent connections.

    Args:
        headers: additional ones, each with its line break.
    """

    def __init__(self, port: int, *, path: str = "/mcp", tool: str = ECHO, headers: bytes = b"") -> None:
        self._port = port
        self._path = path.encode()
        self._tool = tool
        self._headers = headers
        self._sockets: list[socket.socket] = []
        head, _ = self._exchange(self._socket(0), json.dumps(INITIALIZE).encode())
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"mcp-session-id:"):
                self._headers += line + b"\r\nmcp-protocol-version: " + VERSION.encode() + b"\r\n"
        self._exchange(self._socket(0), json.dumps(INITIALIZED).encode())

    def _socket(self, number: int) -> socket.socket:
        while len(self._sockets) <= number:
            connection = socket.create_connection(("127.0.0.1", self._port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets.append(connection)
        return self._sockets[number]

    def _connect(self, width: int) -> None:
        """Open new connections and use each once: servers close connections that were idle for some seconds."""
        self.close()
        for number in range(width):
            checked(self._exchange(self._socket(number), call_body(number, self._tool))[1])

    def _request(self, body: bytes, path: str = "") -> bytes:
        return (
            b"POST %b HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
            b"Accept: application/json, text/event-stream\r\n%bContent-Length: %d\r\n\r\n%b"
        ) % (path.encode() or self._path, self._port, self._headers, len(body), body)

    def _exchange(self, connection: socket.socket, body: bytes, path: str = "") -> tuple[bytes, bytes]:
        connection.sendall(self._request(body, path))
        received = bytearray()
        while not whole(received):
            data = connection.recv(65536)
            if not data:
                raise EOFError(received)
            received += data
        head, _, rest = bytes(received).partition(b"\r\n\r\n")
        return head, rest

    def ask(self, body: bytes, path: str = "") -> bytes:
        """Return the body of the answer to one request, sent to another path if one is given."""
        return self._exchange(self._socket(0), body, path)[1]

    def one_by_one(self, count: int) -> list[float]:
        taken = []
        self._connect(1)
        connection = self._socket(0)
        for number in range(count):
            body = call_body(number, self._tool)
            start = time.perf_counter()
            _, answer = self._exchange(connection, body)
            taken.append(time.perf_counter() - start)
            checked(answer)
        return taken

    def in_flight(self, count: int, width: int) -> float:
        requests = [self._request(call_body(number, self._tool)) for number in range(count)]
        received: dict[int, bytes] = {}
        sent = done = 0
        self._connect(width)
        with selectors.DefaultSelector() as selector:
            for number in range(width):
                selector.register(self._socket(number), selectors.EVENT_READ, number)
            start = time.perf_counter()
            for number in range(width):
                self._socket(number).sendall(requests[sent])
                sent += 1
            while done < count:
                for key, _ in selector.select():
                    number = key.data
                    data = self._socket(number).recv(65536)
                    if not data:
                        raise EOFError
                    received[number] = received.get(number, b"") + data
                    if whole(received[number]):
                        checked(received.pop(number))
                        done += 1
                        if sent < count:
                            self._socket(number).sendall(requests[sent])
                            sent += 1
            return count / (time.perf_counter() - start)

    def close(self) -> None:
        while self._sockets:
            self._sockets.pop().close()


def whole(received: bytes | bytearray) -> bool:
    """Return True if an HTTP response has arrived completely."""
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return False
    # Without a copy of the body, which may be large.
    head = bytes(received[:end]).lower()
    if b"content-length:" in head:
        return len(received) - end - 4 >= int(head.split(b"content-length:")[1].split(b"\r\n")[0])
    if b"chunked" in head:
        return received.endswith(b"0\r\n\r\n")
    return b" 202" in head or b" 204" in head
