"""Turns per second over HTTP, acknowledged on disk, and a conversation posted whole after each turn."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import sqlite3
import statistics
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import trio

from services.transcripts import forest
from tests.bench.parts.wire import Stdio
from tests.system.running import RunningKernel, free_port, running
from tests.system.support.workloads import turn

SECONDS = 5.0
CLIENTS = 32
BATCH = 100
LINEAGES = 60
WORDS = "The sea star grows back any arm it loses, for its organs reach into each of them. " * 4


class Http:
    """A persistent connection: one request at a time, a body of JSON."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Return the status and body of the answer. Raises trio.BrokenResourceError."""
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        await self._stream.send_all(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        got = bytearray()
        while b"\r\n\r\n" not in got:
            await self._more(got)
        top, _, rest = bytes(got).partition(b"\r\n\r\n")
        length = next(int(line[15:]) for line in top.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        got = bytearray(rest)
        while len(got) < length:
            await self._more(got)
        return int(top[9:12]), bytes(got)

    async def _more(self, got: bytearray) -> None:
        data = await self._stream.receive_some()
        if not data:
            raise trio.BrokenResourceError("the connection was closed")
        got += data


@contextlib.asynccontextmanager
async def http(port: int) -> AsyncIterator[Http]:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        yield Http(stream)


def _turn(n: int) -> bytes:
    return turn([{"role": "user", "content": f"Question {n}. {WORDS}"}], f"Answer {n}. {WORDS}")


def ingest(folder: Path) -> None:
    """Measure one client, 32 clients and batches, compared with plain inserts, one or 32 per commit.

    For our side, prints the processor time per process and turn, which other programs of the machine affect least.
    """
    peer, grouped = _bare(folder / "peer.db"), _bare(folder / "grouped.db", CLIENTS)
    print(f"{'SQLite, an insert and a commit a turn':<44} {peer:9.0f} turns/s")
    print(f"{f'SQLite, {CLIENTS} inserts a commit':<44} {grouped:9.0f} turns/s")
    port = free_port()
    with running(folder / "data", options=("--http", f"127.0.0.1:{port}"), all_ready=False) as kernel:
        kernel.wait_ready()
        for name, clients, batch in (
            ("one client, one by one", 1, 0),
            (f"{CLIENTS} clients, one by one", CLIENTS, 0),
            (f"one client, batches of {BATCH}", 1, BATCH),
        ):
            before, began = _spent(kernel), time.perf_counter()
            rate, first = trio.run(_post, port, clients, batch, hash(name))
            turns = rate * (time.perf_counter() - began)
            compared = f"{rate / peer:6.2f} and {rate / grouped:.2f} of the peers'"
            print(f"{name:<44} {rate:9.0f} turns/s   p50 {first:7.2f} ms   {compared}")
            each = {service: (spent - before.get(service, 0.0)) / turns for service, spent in _spent(kernel).items()}
            parts = (f"{service} {spent * 1e6:.0f}" for service, spent in each.items() if spent > 1e-5)
            print(f"    µs of a processor a turn: {', '.join(parts)}", flush=True)


def _spent(kernel: RunningKernel) -> dict[str, float]:
    """Return the processor seconds of each process until now."""
    pids = {"kernel": kernel.process.pid, **{each["name"]: each["pid"] for each in kernel.status()["services"]}}
    found = {}
    for name, pid in pids.items():
        if pid:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            found[name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def _bare(path: Path, together: int = 1) -> float:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE turn(id INTEGER PRIMARY KEY, body BLOB)")
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS:
        db.execute("BEGIN")
        for _ in range(together):
            db.execute("INSERT INTO turn(body) VALUES(?)", (_turn(count),))
            count += 1
        db.execute("COMMIT")
    took = time.perf_counter() - began
    db.close()
    return count / took


async def _post(port: int, clients: int, batch: int, start: int) -> tuple[float, float]:
    """Return turns per second, and the median time of a request in milliseconds."""
    times: list[float] = []
    began = time.perf_counter()

    async def client(which: int) -> None:
        async with http(port) as line:
            n = 0
            while time.perf_counter() - began < SECONDS:
                if batch:
                    turns = b",".join(_turn(start + n + k) for k in range(batch))
                    path, body = "/v1/ingest/batch", b'{"turns": [' + turns + b"]}"
                else:
                    path, body = "/v1/ingest", _turn(start + which * 10**7 + n)
                sent = time.perf_counter()
                status, answer = await line.post(path, body)
                assert status == 202, answer
                times.append((time.perf_counter() - sent) * 1000)
                n += batch or 1

    async with trio.open_nursery() as nursery:
        for which in range(clients):
            nursery.start_soon(client, which)
    took = time.perf_counter() - began
    return len(times) * (batch or 1) / took, statistics.median(times)


def dedup(folder: Path) -> None:
    """Post 200 messages, each with all previous ones: 1 + 2 + … + 200 messages, of which 200 are new."""
    port = free_port()
    with running(folder, options=("--http", f"127.0.0.1:{port}"), all_ready=False) as kernel:
        kernel.wait_ready()
        took = trio.run(_grow, port, 200)
        nodes = kernel.call("transcript_stats")["total_nodes"]
        size = sum(file.stat().st_size for file in (folder / "services" / "transcripts").iterdir() if file.is_file())
    posted = 200 * 201 // 2
    print(f"{posted} messages posted in 200 requests: {nodes} nodes, {took:.2f} s, {posted / took:.0f} messages/s")
    written = sum(len(json.dumps(_message(n))) * (200 - n) for n in range(200))
    print(f"{'database':<44} {size / 1e6:9.2f} MB; kept as posted it would be {written / 1e6:.2f} MB")


def _message(n: int) -> dict[str, Any]:
    return {"role": "assistant" if n % 2 else "user", "content": f"Message {n}. {WORDS}"}


async def _grow(port: int, count: int) -> float:
    """Post the whole conversation after each message, with the last one as the reply."""
    began = time.perf_counter()
    async with http(port) as line:
        messages: list[Any] = []
        for n in range(count):
            messages.append(_message(n))
            choice = {"index": 0, "message": messages[-1], "finish_reason": "stop"}
            request = {"model": "m", "messages": messages[:-1]}
            response = {"model": "m", "choices": [choice]}
            body = json.dumps({"provider": "openai", "request": request, "response": response}).encode()
            status, answer = await line.post("/v1/ingest", body)
            assert status == 202, answer
    return time.perf_counter() - began


def lineage(folder: Path) -> None:
    """Read a conversation of 1,000 messages from last to first, with a call of each kind of client.

    The answer is received completely, and decoded only for the command line.
    """
    port = free_port()
    with running(folder, options=("--http", f"127.0.0.1:{port}"), all_ready=False) as kernel:
        kernel.wait_ready()
        messages = [_message(n) for n in range(999)]
        _status, _answer = trio.run(_one, port, turn(messages, "The end."))
        head = kernel.call("transcript_histories", {"limit": 1})["histories"][0]["head_hash"]
        times = _times(kernel, head)
        print(f"{'the whole call, while they are embedded':<44} p50 {statistics.median(times):7.2f} ms")
        while any("vectors" in reason for reason in kernel.call("search", {"query": "sea star"}).get("degraded", [])):
            time.sleep(0.5)
        for name, taken in (
            ("the command line's connection, decoded", _times(kernel, head)),
            ("MCP over stdio, chats_read", _over_stdio(folder, head)),
            ("HTTP, /dag/history/{hash}", _over_http(port, head)),
        ):
            quick = statistics.quantiles(taken, n=10)
            print(f"{'lineage of 1,000, ' + name:<60} p50 {statistics.median(taken):7.2f} ms   p90 {quick[8]:7.2f} ms")
    _lineage_alone(folder / "services" / "transcripts" / "transcripts.db", head)


async def _one(port: int, body: bytes) -> tuple[int, bytes]:
    async with http(port) as line:
        status, answer = await line.post("/v1/ingest", body)
    assert status == 202, answer
    return status, answer


def _times(kernel: RunningKernel, head: str) -> list[float]:
    times = []
    for _ in range(LINEAGES):
        began = time.perf_counter()
        found = kernel.call("transcript_history", {"hash": head})
        times.append((time.perf_counter() - began) * 1000)
        assert found["depth"] == 1000
    return times


def _over_stdio(folder: Path, head: str) -> list[float]:
    client = Stdio([sys.executable, "-P", "-m", "kernel.cli", "stdio", "--data", str(folder)])
    params = {"name": "chats_read", "arguments": {"hash": head}}
    times = []
    for number in range(LINEAGES):
        body = json.dumps({"jsonrpc": "2.0", "id": number + 1, "method": "tools/call", "params": params}).encode()
        began = time.perf_counter()
        answer = client.exchange(body)
        times.append((time.perf_counter() - began) * 1000)
        assert b'"depth":1000' in answer, answer[:300]
    client.close()
    return times


def _over_http(port: int, head: str) -> list[float]:
    times = []
    request = f"GET /dag/history/{head} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(LINEAGES):
            began = time.perf_counter()
            connection.sendall(request)
            received = bytearray()
            end = math.inf
            while len(received) < end:
                received += connection.recv(1 << 20)
                if end == math.inf and (top := received.find(b"\r\n\r\n")) >= 0:
                    length = received[:top].lower().split(b"content-length:")[1].split(b"\r\n")[0]
                    end = top + 4 + int(length)
            times.append((time.perf_counter() - began) * 1000)
            assert b'"depth":1000' in received[-40:], bytes(received[:300])
    return times


def _lineage_alone(path: Path, head: str) -> None:
    db = apsw.Connection(str(path))
    node = forest.find(db, head)
    assert node is not None
    times, peer = [], []
    for _ in range(50):
        began = time.perf_counter()
        found = forest.lineage(db, node.node_id, "hash, role, content, model, provider, agent, stop_reason, usage")
        times.append((time.perf_counter() - began) * 1000)
        assert len(found) == 1000
        began = time.perf_counter()
        at: int | None = node.node_id
        while at is not None:
            at = next(db.execute("SELECT parent, content, role FROM node WHERE node_id=?", (at,)))[0]
        peer.append((time.perf_counter() - began) * 1000)
    db.close()
    alone, naive = statistics.median(times), statistics.median(peer)
    print(f"{'lineage of 1,000, the database alone':<44} p50 {alone:7.2f} ms   a query a node: {naive:.2f} ms")
