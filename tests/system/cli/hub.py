"""A model hub on the loopback, as much of one as `huggingface_hub` asks for: a list of files, and these."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Hub:
    """A hub: its address, the files it serves, and the requests it received.

    Attributes:
        stalls_after: bytes of the weights after which it says no more, until `go_on` is set.
        flips: whether the weights are sent with one bit changed.
        gated: whether files are only sent to users who have accepted a licence.
    """

    files: dict[str, bytes]
    url: str = ""
    stalls_after: int | None = None
    flips: bool = False
    gated: bool = False
    stalled: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    begins: list[tuple[str, int]] = field(default_factory=list)
    """The name of each file sent, and its first byte."""


def checksum(content: bytes, *, large: bool) -> str:
    """Return the checksum that identifies a file: git's own, or SHA-256 for files that git stores elsewhere."""
    digest = hashlib.sha256(content) if large else hashlib.sha1(b"blob %d\0" % len(content) + content)
    return digest.hexdigest()


def sent(hub: Hub, content: bytes, *, large: bool) -> bytes:
    """Return the bytes sent for a file."""
    if large and hub.flips:
        content = content[:-1] + bytes([content[-1] ^ 1])
    return content[: hub.stalls_after] if large else content


def refusal(hub: Hub, name: str) -> tuple[int, str]:
    """The status and the error that a request for a file gets; the error is empty if the file is sent."""
    if hub.gated:
        return 401, "GatedRepo"
    return (200, "") if name in hub.files else (404, "EntryNotFound")


def _handler(hub: Hub) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            path = self.path.partition("?")[0]
            if path.startswith("/api/models/"):
                _, _, found = path.partition("/tree/")
                listed = [self._listed(name, content) for name, content in hub.files.items()] if found else {}
                content = json.dumps(listed).encode()
                self._head(200, {"Content-Length": str(len(content)), "Content-Type": "application/json"})
                self.wfile.write(content)
                return
            revision, _, name = path.partition("/resolve/")[2].partition("/")
            status, error = refusal(hub, name)
            if error:
                self._head(status, {"Content-Length": "0", "X-Error-Code": error})
                return
            self._file(name, revision, body=body)

        def _listed(self, name: str, content: bytes) -> dict[str, object]:
            large = name.endswith(".safetensors")
            entry: dict[str, object] = {
                "type": "file", "path": name, "size": len(content), "oid": checksum(content, large=False),
            }  # fmt: skip
            if large:
                entry["lfs"] = {"oid": checksum(content, large=True), "size": len(content), "pointerSize": 130}
            return entry

        def _file(self, name: str, revision: str, *, body: bool) -> None:
            content = hub.files[name]
            large = name.endswith(".safetensors")
            etag = f'"{checksum(content, large=large)}"'
            size = len(content)
            begin = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
            headers = {
                "Content-Length": str(size - begin), "Content-Range": f"bytes {begin}-{size - 1}/{size}",
                "ETag": etag, "X-Linked-ETag": etag, "X-Linked-Size": str(size), "X-Repo-Commit": revision,
                "Accept-Ranges": "bytes",
            }  # fmt: skip
            if not begin:
                del headers["Content-Range"]
            self._head(206 if begin else 200, headers)
            if not body:
                return
            hub.begins.append((name, begin))
            with contextlib.suppress(OSError):
                self.wfile.write(sent(hub, content, large=large)[begin:])
            if large and hub.stalls_after is not None:
                hub.stalled.set()
                hub.go_on.wait()
                self.close_connection = True

        def _head(self, status: int, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

    return Handler


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Hub]:
    """A hub, each of whose models has the files of `folder`, at any revision."""
    hub = Hub({str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub)) as server:
        server.daemon_threads = True
        hub.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield hub
        finally:
            hub.go_on.set()
            server.shutdown()
            thread.join()
