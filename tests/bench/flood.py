"""The effect of one client's flood on others: the times of `/health` and `mcp.echo` with and without a flood.

There is one front. The victim has a session, a connection for each request type, and calls one by one. The flood runs
in a separate process and has its own session and a given number of connections, each of which sends the next request as
soon as it has its answer.

    scripts/bench flood [--seconds N] [--connections N]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import selectors
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from tests.bench.parts.wire import Http, call_body, checked, whole
from tests.system.running import HTTP, running

MIB = 1024 * 1024


def echo_of(size: int) -> bytes:
    """Return a call with a text of this many bytes."""
    params = {"name": "mcp.echo", "arguments": {"message": "x" * size}}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()


def unwanted(size: int) -> bytes:
    """Return a call that is refused because its arguments have too many values."""
    params = {"name": "mcp.echo", "arguments": {"message": ["word" * 4] * (size // 20)}}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()


FLOODS: dict[str, Callable[[], bytes]] = {
    "small calls": lambda: call_body(1),
    "bodies of 1 MiB": lambda: echo_of(MIB),
    "bodies of 8 MiB": lambda: echo_of(8 * MIB),
    "lists of 2 MiB": lambda: unwanted(2 * MIB),
    "handshakes": lambda: json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": "initialize",
         "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "f", "version": "1"}}}
    ).encode(),
}  # fmt: skip


def flood(port: int, kind: str, connections: int, ready: Event, stop: Event) -> None:
    """Send requests on each connection one after the other until `stop`, reopening connections that the server
    closes."""
    client = Http(port)
    if kind == "handshakes":
        client._headers = b""
    request = client._request(FLOODS[kind]())
    client.close()
    with selectors.DefaultSelector() as selector:
        for _ in range(connections):
            _send(selector, _connected(port), request)
        ready.set()
        while not stop.is_set():
            for key, events in selector.select(0.2):
                connection, (left, received) = cast("socket.socket", key.fileobj), key.data
                try:
                    if events & selectors.EVENT_READ:
                        data = connection.recv(1 << 20)
                        received += data
                        if not data or whole(received):
                            selector.unregister(connection)
                            if not data:
                                connection.close()
                            _send(selector, connection if data else _connected(port), request)
                            continue
                    if events & selectors.EVENT_WRITE:
                        left = left[connection.send(left[: 256 * 1024]) :]
                    wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if left else 0)
                    selector.modify(connection, wanted, (left, received))
                except OSError:
                    selector.unregister(connection)
                    connection.close()
                    _send(selector, _connected(port), request)


def _connected(port: int) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setblocking(False)
    return connection


def _send(selector: selectors.BaseSelector, connection: socket.socket, request: bytes) -> None:
    selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE, (memoryview(request), b""))


def measured(port: int, seconds: float) -> dict[str, list[float]]:
    """Return the milliseconds of each `/health` and each echo."""
    client = Http(port)
    health = client._socket(1)
    asked = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % port
    taken: dict[str, list[float]] = {"/health": [], "echo": []}
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        began = time.perf_counter()
        health.sendall(asked)
        answer = b""
        while not whole(answer):
            answer += health.recv(65536)
        taken["/health"].append((time.perf_counter() - began) * 1e3)
        assert b"200" in answer[:20], answer
        began = time.perf_counter()
        answer = client.ask(call_body(1))
        taken["echo"].append((time.perf_counter() - began) * 1e3)
        checked(answer)
        time.sleep(0.002)
    client.close()
    return taken


def report(what: str, taken: dict[str, list[float]], quiet: dict[str, float]) -> dict[str, float]:
    line = f"{what:18}"
    found = {}
    for name, times in taken.items():
        times.sort()
        found[name] = p99 = times[min(len(times) - 1, int(len(times) * 0.99))]
        ratio = f"{p99 / quiet[name]:6.1f}x" if quiet else " " * 7
        line += f"{len(times):8}{statistics.median(times):9.2f}{p99:9.2f}{ratio}"
    print(line, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench flood", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=6, help="duration of each flood (default: 6)")
    parser.add_argument("--connections", type=int, default=64, help="connections of the flood (default: 64)")
    parser.add_argument("--floods", nargs="*", default=list(FLOODS), help="kinds of flood to run")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), options=HTTP, services=["echo"]) as kernel:
        port = urlsplit(kernel.status()["http_url"]).port
        assert port is not None
        print(f"{'':18}{'/health':>8}{'p50 ms':>9}{'p99 ms':>9}{'':7}{'echo':>8}{'p50 ms':>9}{'p99 ms':>9}")
        measured(port, 2)
        quiet = report("no flood", measured(port, given.seconds), {})
        for kind in given.floods:
            ready, stop = multiprocessing.Event(), multiprocessing.Event()
            arguments = (port, kind, given.connections, ready, stop)
            process = multiprocessing.Process(target=flood, args=arguments, daemon=True)
            process.start()
            try:
                assert ready.wait(20)
                report(kind, measured(port, given.seconds), quiet)
            finally:
                stop.set()
                process.join(10)
                process.kill()
        assert not kernel.service("front")["deaths"], kernel.service("front")


if __name__ == "__main__":
    main()
