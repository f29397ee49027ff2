"""The proxy's added delay until a reply's first byte, compared with calling the server directly."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

import trio

from tests.system.running import REPOSITORY, running

SETTLED_S = 8
ROUNDS = 500
BODY = b'{"model": "m", "stream": true, "messages": [{"role": "user", "content": "How many arms?"}]}'
REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
_DELTA = b'data: {"model": "m", "choices": [{"index": 0, "delta": {"content": "Five."}, "finish_reason": "stop"}]}\n\n'
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
REPLY = _HEAD + b"%x\r\n" % len(_DELTA) + _DELTA + b"\r\n" + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def delay(folder: Path) -> None:
    """Measure with persistent and new connections, recording all the while."""
    with running(folder):
        # Services and standbys that are still starting would compete for the processors.
        time.sleep(SETTLED_S)
        trio.run(_delay, folder)


async def _delay(folder: Path) -> None:
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, _serve, 0)
        port = listeners[0].socket.getsockname()[1]
        command = [
            sys.executable,
            "-m",
            "kernel.cli",
            "proxy",
            "--data",
            str(folder),
            "--listen",
            "127.0.0.1:0",
        ]
        process = await trio.to_thread.run_sync(_start, [*command, "--upstream", f"http://127.0.0.1:{port}"])
        assert process.stdout is not None
        line = await trio.to_thread.run_sync(process.stdout.readline)
        through = int(line.split()[0].rpartition(b":")[2])
        for kept in (True, False):
            # Measured alternately, so that other work on the machine affects both.
            direct, passed = await _first_bytes(port, through, kept)
            name = "a kept connection" if kept else "a new connection each"
            added = statistics.median(passed) - statistics.median(direct)
            print(
                f"{name:<30} direct p50 {statistics.median(direct):6.3f} ms   through"
                f" p50 {statistics.median(passed):6.3f} ms"
                f"   added p50 {added:6.3f} ms   p95 {_p95(passed) - _p95(direct):6.3f} ms"
            )
        process.terminate()
        await trio.to_thread.run_sync(process.wait)
        process.stdout.close()
        nursery.cancel_scope.cancel()


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def _p95(times: list[float]) -> float:
    return statistics.quantiles(times, n=20)[18]


async def _serve(stream: trio.SocketStream) -> None:
    seen = b""
    while data := await stream.receive_some():
        seen += data
        if seen.endswith(BODY):
            seen = b""
            await stream.send_all(REPLY)


async def _first_bytes(direct: int, through: int, kept: bool) -> tuple[list[float], list[float]]:
    times: dict[int, list[float]] = {direct: [], through: []}
    streams = {port: await trio.open_tcp_stream("127.0.0.1", port) for port in times}
    for _ in range(ROUNDS):
        for port, found in times.items():
            began = time.perf_counter()
            if not kept:
                await streams[port].aclose()
                streams[port] = await trio.open_tcp_stream("127.0.0.1", port)
            await streams[port].send_all(REQUEST)
            got = bytes(await streams[port].receive_some())
            found.append((time.perf_counter() - began) * 1000)
            while not got.endswith(b"0\r\n\r\n"):
                got += bytes(await streams[port].receive_some())
            assert got == REPLY
    for stream in streams.values():
        await stream.aclose()
    return times[direct], times[through]
