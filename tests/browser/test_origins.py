"""A page that somebody else serves, in a real browser: it deletes nothing here unless the settings allow its origin."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.browser import chromium
from tests.system.running import HTTP, running
from tests.unit.front.wire import META, MODERN

pytestmark = chromium.needed


class Nothing(http.server.BaseHTTPRequestHandler):
    """An empty page at every path."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<html></html>")

    def log_message(self, format: str, *args: object) -> None:
        """Nowhere."""


@contextmanager
def served() -> Iterator[int]:
    """The port at which the pages are."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Nothing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def calling(url: str, path: Path, media_type: str, mode: str) -> str:
    """JavaScript that has a file deleted; its value is the status that the page may see, or `blocked`."""
    message = {
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "files_delete", "arguments": {"paths": [str(path)]}, "_meta": META},
    }  # fmt: skip
    request: dict[str, Any] = {
        "method": "POST", "mode": mode, "body": json.dumps(message),
        "headers": {
            "Content-Type": media_type, "Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": MODERN,
            "Mcp-Method": "tools/call", "Mcp-Name": "files_delete",
        },
    }  # fmt: skip
    if media_type == "text/plain":
        # Send no header that requires a preflight request.
        request["headers"] = {"Content-Type": media_type, "Accept": "*/*"}
    return f"fetch({json.dumps(url)}, {json.dumps(request)}).then(r => String(r.status), e => 'blocked')"


def test_a_page_of_another_origin_calls_nothing_unless_it_is_allowed(tmp_path: Path, playwright: Any) -> None:
    root = tmp_path / "root"
    root.mkdir()
    victim = root / "precious.txt"
    victim.write_text("precious")
    names = "--host-resolver-rules=MAP evil.example 127.0.0.1, MAP friend.example 127.0.0.1"
    with served() as port:
        environment = {"LINCKIA_ALLOWED_ORIGINS": f"http://friend.example:{port}"}
        with (
            running(tmp_path / "data", [root], options=HTTP, environment=environment, all_ready=False) as kernel,
            chromium.browser(playwright, names) as browser,
        ):
            page = browser.new_page()
            kernel.wait_ready("files")
            kernel.call("index", {"root": str(root), "async": False})
            # The front over HTTP comes a moment later.
            while (front := kernel.status()["http_url"]) is None:
                time.sleep(0.02)
            url = f"{front}/files"
            page.goto(f"http://evil.example:{port}/")
            assert page.evaluate(calling(url, victim, "application/json", "cors")) == "blocked"
            # A form may send this without a preflight request, but the page never sees the response.
            for mode in ("cors", "no-cors"):
                page.evaluate(calling(url, victim, "text/plain", mode))
            assert victim.exists()
            assert [entry["name"] for entry in kernel.call("navigate", {"path": str(root)})["entries"]] == [victim.name]

            page.goto(f"http://friend.example:{port}/")
            assert page.evaluate(calling(url, victim, "application/json", "cors")) == "200"
            assert not victim.exists()
