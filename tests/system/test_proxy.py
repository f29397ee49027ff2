"""`linckia proxy` before a streaming server: what clients get, what is kept of it, and that it needs no kernel."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.system.running import REPOSITORY, RunningKernel, running

KEY = "sk-proj-" + "a1B2c3D4" * 6


class Model(BaseHTTPRequestHandler):
    """Answers chat completions with the number of messages it was sent, streamed where that is asked for."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.headers["Authorization"] == f"Bearer {KEY}"
        request = json.loads(body)
        said = f"I have read {len(request['messages'])} messages."
        if request["messages"][-1]["content"] == "fail":
            return self._send(500, "application/json", b'{"error": {"message": "no"}}')
        if request.get("stream"):
            return self._stream(said)
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        reply = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        return self._send(200, "application/json", gzip.compress(json.dumps(reply).encode()), encoding="gzip")

    def _send(self, status: int, kind: str, body: bytes, encoding: str = "identity") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Encoding", encoding)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, said: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        deltas: list[tuple[Any, str | None]] = [({"content": word}, None) for word in said.split(" ")]
        deltas = [({"content": f"{' ' if n else ''}{delta['content']}"}, end) for n, (delta, end) in enumerate(deltas)]
        for delta, end in [({"role": "assistant"}, None), *deltas, ({}, "stop")]:
            choice = {"index": 0, "delta": delta, "finish_reason": end}
            chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
            self._chunk(f"data: {json.dumps(chunk)}\n\n".encode())
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def log_message(self, format: str, *args: Any) -> None:
        """Not in the tests' output."""


@contextlib.contextmanager
def model() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def proxy(data_dir: Path, upstream: str) -> Iterator[openai.OpenAI]:
    """A client of the proxy; at the end the proxy is told to end, as by Ctrl-C."""
    command = [sys.executable, "-m", "kernel.cli", "proxy", "--data", str(data_dir), "--upstream", upstream]
    process = subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        with process.stdout as lines:
            address = lines.readline().split()[0]
            with openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0) as client:
                yield client
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


def ask(client: openai.OpenAI, said: list[Any], text: str, *, stream: bool) -> str:
    """One turn with all that went before, as agents send it."""
    said.append({"role": "user", "content": text})
    if stream:
        with client.chat.completions.create(model="m", messages=said, stream=True) as chunks:
            answer = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    else:
        answer = client.chat.completions.create(model="m", messages=said).choices[0].message.content or ""
    said.append({"role": "assistant", "content": answer})
    return answer


def until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def turns(kernel: RunningKernel) -> int:
    count: int = kernel.call("transcript_stats")["total_nodes"]
    return count


def test_turns_are_kept_once_whoever_is_away_and_no_credential_is(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    spool = data_dir / "proxy" / "spool"
    said: list[Any] = []
    with model() as upstream, proxy(data_dir, upstream) as client:
        # No kernel runs, and the client does not notice.
        assert ask(client, said, "one", stream=True) == "I have read 1 messages."
        assert ask(client, said, "two", stream=False) == "I have read 3 messages."
        until(lambda: len(list(spool.glob("*.json"))) == 2)
        for file in spool.glob("*.json"):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            held = json.loads(file.read_bytes())
            assert KEY.encode() not in base64.b64decode(held["request"]) + file.read_bytes()
        with running(data_dir, all_ready=False) as kernel:
            kernel.wait_ready("transcripts")
            until(lambda: turns(kernel) == 4)
            until(lambda: not list(spool.glob("*")))
            with pytest.raises(openai.InternalServerError, match="no"):
                ask(client, [], "fail", stream=False)
            # The service dies under it, and every turn repeats what went before.
            for number in range(6):
                if number % 2:
                    kernel.kill("transcripts")
                expected = f"I have read {2 * number + 5} messages."
                assert ask(client, said, f"turn {number}", stream=bool(number % 3)) == expected
            until(lambda: turns(kernel) == len(said))
            found = kernel.call("transcript_histories")
            assert found["total"] == 1
            assert [message["content"][0]["text"] for message in found["histories"][0]["messages"]] == [
                message["content"] for message in said
            ]
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()]


def test_what_could_not_be_recorded_is_by_the_next_proxy(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    with model() as upstream:
        with proxy(data_dir, upstream) as client:
            ask(client, [], "one", stream=True)
        with running(data_dir, all_ready=False) as kernel, proxy(data_dir, upstream):
            until(lambda: turns(kernel) == 2)
