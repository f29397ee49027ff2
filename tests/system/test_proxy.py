"""`linckia proxy` before a streaming server: the responses that clients get, the recorded conversations, and that it
needs no kernel.
"""

from __future__ import annotations

import base64
import contextlib
import json
import signal
import stat
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import brotli  # type: ignore[import-untyped]  # it ships neither types nor stubs
import pytest

from services.shared.zstd import zstd
from tests.system.running import REPOSITORY, RunningKernel, running, wait_until

if TYPE_CHECKING:
    import openai

KEY = "sk-proj-" + "a1B2c3D4" * 6


Begin = Callable[[], tuple[Callable[[bytes], bytes], Callable[[], bytes]]]
"""Start compressing: return a function that compresses the next piece, and one that ends the stream."""


def _deflating(wbits: int) -> Begin:
    def begin() -> tuple[Callable[[bytes], bytes], Callable[[], bytes]]:
        stream = zlib.compressobj(wbits=wbits)
        return (lambda data: stream.compress(data) + stream.flush(zlib.Z_SYNC_FLUSH)), stream.flush

    return begin


def _brotli() -> tuple[Callable[[bytes], bytes], Callable[[], bytes]]:
    stream = brotli.Compressor()
    return (lambda data: stream.process(data) + stream.flush()), stream.finish


def _zstd() -> tuple[Callable[[bytes], bytes], Callable[[], bytes]]:
    stream = zstd.ZstdCompressor()
    return (lambda data: stream.compress(data, stream.FLUSH_BLOCK)), stream.flush


ENCODINGS: list[tuple[str, Begin]] = [
    ("gzip", _deflating(31)),
    ("br", _brotli),
    ("zstd", _zstd),
    ("deflate", _deflating(15)),
]


class Model(BaseHTTPRequestHandler):
    """Returns chat completions with the number of messages received, streamed on request.

    If the last message is "no reason", a stream ends with `[DONE]` alone; if it is "for ever", it never ends.
    """

    protocol_version = "HTTP/1.1"
    used: ClassVar[set[str]] = set()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.headers["Authorization"] == f"Bearer {KEY}"
        request = json.loads(body)
        said = f"I have read {len(request['messages'])} messages."
        if request["messages"][-1]["content"] == "fail":
            return self._send(500, "application/json", b'{"error": {"message": "no"}}')
        if request.get("stream"):
            return self._stream(said, request["messages"][-1]["content"], *self._encoding(request))
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        reply = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
        encoding, begin = self._encoding(request)
        compress, finish = begin()
        body = compress(json.dumps(reply).encode()) + finish()
        return self._send(200, "application/json", body, encoding=encoding)

    def _encoding(self, request: dict[str, Any]) -> tuple[str, Begin]:
        """Another one each turn, of those that the client takes."""
        accepted = [name.strip() for name in self.headers["Accept-Encoding"].split(",")]
        taken = [each for each in ENCODINGS if each[0] in accepted]
        chosen = taken[len(request["messages"]) // 2 % len(taken)]
        self.used.add(chosen[0])
        return chosen

    def _send(self, status: int, kind: str, body: bytes, encoding: str = "identity") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Encoding", encoding)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, said: str, asked: str, encoding: str, begin: Begin) -> None:
        compress, finish = begin()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Encoding", encoding)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        deltas: list[tuple[Any, str | None]] = [({"content": word}, None) for word in said.split(" ")]
        deltas = [({"content": f"{' ' if n else ''}{delta['content']}"}, end) for n, (delta, end) in enumerate(deltas)]
        for delta, end in [({"role": "assistant"}, None), *deltas, *([] if asked == "no reason" else [({}, "stop")])]:
            if asked == "for ever" and end:
                # Wait until the client has disconnected.
                self.rfile.read(1)
                return
            choice = {"index": 0, "delta": delta, "finish_reason": end}
            chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
            self._chunk(compress(f"data: {json.dumps(chunk)}\n\n".encode()))
        self._chunk(compress(b"data: [DONE]\n\n") + finish())
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, data: bytes) -> None:
        # An empty chunk would end the reply, and a compressor may hold back its input.
        if not data:
            return
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
    """A client of the proxy; at the end the proxy is stopped, as by Ctrl-C."""
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
            import openai

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


def turns(kernel: RunningKernel) -> int:
    count: int = kernel.call("transcript_stats")["total_nodes"]
    return count


def test_turns_are_stored_once_despite_outages_and_without_credentials(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    spool = data_dir / "proxy" / "spool"
    said: list[Any] = []
    with model() as upstream, proxy(data_dir, upstream) as client:
        # No kernel runs, and the client does not notice.
        assert ask(client, said, "one", stream=True) == "I have read 1 messages."
        assert ask(client, said, "two", stream=False) == "I have read 3 messages."
        wait_until(lambda: len(list(spool.glob("*.json"))) == 2)
        for file in spool.glob("*.json"):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            held = json.loads(file.read_bytes())
            assert KEY.encode() not in base64.b64decode(held["request"]) + file.read_bytes()
        with running(data_dir, services=["transcripts"]) as kernel:
            wait_until(lambda: turns(kernel) == 4)
            wait_until(lambda: not list(spool.glob("*")))
            import openai

            with pytest.raises(openai.InternalServerError, match="no"):
                ask(client, [], "fail", stream=False)
            # The service dies under it, and every turn repeats what went before.
            for number in range(6):
                if number % 2:
                    # A death before it is ready would be its own defect to the kernel, which then waits ever longer.
                    kernel.wait_ready("transcripts")
                    kernel.kill("transcripts")
                expected = f"I have read {2 * number + 5} messages."
                assert ask(client, said, f"turn {number}", stream=bool(number % 3)) == expected
            wait_until(lambda: turns(kernel) == len(said))
            said.append({"role": "user", "content": "zstd, please"})
            raw = client.chat.completions.with_raw_response
            got = raw.create(model="m", messages=said, extra_headers={"Accept-Encoding": "zstd"}).http_response
            assert got.headers["Content-Encoding"] == "zstd"
            reply = got.json()
            said.append(reply["choices"][0]["message"])
            wait_until(lambda: turns(kernel) == len(said))
            assert Model.used == {name for name, _ in ENCODINGS}
            found = kernel.call("transcript_histories")
            assert found["total"] == 1
            assert [message["content"][0]["text"] for message in found["histories"][0]["messages"]] == [
                message["content"] for message in said
            ]
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()]


def test_streams_without_an_end_are_kept_as_far_as_they_came(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    said: list[Any] = []
    with (
        model() as upstream,
        running(data_dir, services=["transcripts"]) as kernel,
        proxy(data_dir, upstream) as client,
    ):
        assert ask(client, said, "no reason", stream=True) == "I have read 1 messages."
        wait_until(lambda: turns(kernel) == 2)
        asked = [*said, {"role": "user", "content": "for ever"}]
        with client.chat.completions.create(model="m", messages=asked, stream=True) as chunks:
            got = ""
            while "messages" not in got:
                got += next(chunks).choices[0].delta.content or ""
        wait_until(lambda: turns(kernel) == 4)
        (one,) = kernel.call("transcript_histories")["histories"]
        last = one["messages"][-1]
        assert (last["content"][0]["text"], last["stop_reason"]) == ("I have read 3 messages.", "interrupted")
        said += [asked[-1], {"role": "assistant", "content": got}]
        assert ask(client, said, "and on", stream=True) == "I have read 5 messages."
        wait_until(lambda: turns(kernel) == 6)
        assert kernel.call("chats_list")["total"] == 1


def test_unrecorded_turns_are_recorded_by_the_next_proxy(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    with model() as upstream:
        with proxy(data_dir, upstream) as client:
            ask(client, [], "one", stream=True)
        with running(data_dir, services=["transcripts"]) as kernel, proxy(data_dir, upstream):
            wait_until(lambda: turns(kernel) == 2)
