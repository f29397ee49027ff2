"""Turns posted over HTTP to a real kernel whose `transcripts` is killed at random, and what must be there afterwards.

Every turn that was answered 202 is in the database, once; nothing is there that nobody posted.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from tests.system.running import RunningKernel

CLIENTS = 8


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Http:
    """A connection that is kept: one request at a time, a body of JSON."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Status and body of the answer.  Raises trio.BrokenResourceError."""
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


def turn(messages: list[Any], answer: str) -> bytes:
    """A turn of chat completions, as it is posted."""
    reply = {"role": "assistant", "content": answer}
    return json.dumps(
        {
            "provider": "openai",
            "request": {"model": "m", "messages": messages},
            "response": {"model": "m", "choices": [{"index": 0, "message": reply, "finish_reason": "stop"}]},
        }
    ).encode()


@dataclass
class Kept:
    """What clients were told and what there is."""

    kills: int = 0
    accepted: list[str] = field(default_factory=list)
    """The answers of turns that were answered 202; each is unique."""
    refused: int = 0
    missing: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)
    sound: str = ""


async def ingest_under_kills(kernel: RunningKernel, port: int, kills: int, seed: int) -> Kept:
    """Kill the service `kills` times while clients post conversations that grow."""
    chance = random.Random(seed)
    kept = Kept()
    posted: set[str] = set()
    done = trio.Event()
    accepted = [trio.Event()]

    async def client(which: int) -> None:
        number = 0
        async with http(port) as line:
            while not done.is_set():
                messages: list[Any] = []
                for step in range(20):
                    said, answer = f"question {which} {number} {step}", f"answer {which} {number} {step}"
                    messages.append({"role": "user", "content": said})
                    posted.update((said, answer))
                    status, _ = await line.post("/v1/ingest", turn(messages, answer))
                    if status == 202:
                        kept.accepted.append(answer)
                        accepted[0].set()
                    else:
                        kept.refused += 1
                    messages.append({"role": "assistant", "content": answer})
                number += 1

    async with trio.open_nursery() as nursery:
        for which in range(CLIENTS):
            nursery.start_soon(client, which)
        for _ in range(kills):
            await trio.sleep(chance.uniform(0.0, 0.15))
            # A death before it is ready would be its own defect to the kernel, which then waits ever longer.
            await trio.to_thread.run_sync(kernel.wait_ready, "transcripts")
            pid = (await trio.to_thread.run_sync(kernel.service, "transcripts"))["pid"]
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    kept.kills += 1
            # Work goes on before the next one.
            accepted[0] = trio.Event()
            with trio.fail_after(120):
                await accepted[0].wait()
        done.set()
    judge(kernel.data_dir, kept, posted)
    return kept


def judge(data_dir: Path, kept: Kept, posted: set[str]) -> None:
    """Look into the database itself."""
    path = data_dir / "services" / "transcripts" / "transcripts.db"
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        there = Counter(json.loads(content)[0]["text"] for (content,) in db.execute("SELECT content FROM node"))
        kept.sound = db.execute("PRAGMA integrity_check").fetchone()[0]
    finally:
        db.close()
    kept.missing = [answer for answer in kept.accepted if answer not in there]
    kept.doubled = [text for text, count in there.items() if count > 1]
    kept.strange = [text for text in there if text not in posted]
