"""An alert reaches the operator: on the page, as an event, and at a webhook that is away for a while."""

from __future__ import annotations

import contextlib
import http.server
import json
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.browser import chromium
from tests.browser.visiting import Visitor, axe_violations
from tests.system.cli.clients import linckia
from tests.system.running import HTTP, running

pytestmark = chromium.needed


class Webhook(http.server.ThreadingHTTPServer):
    """Refuses its first two requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.refusals = 2
        self.got: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()


class Answer(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        hook = self.server
        assert isinstance(hook, Webhook)
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        status = 503 if hook.refusals else 200
        hook.refusals = max(0, hook.refusals - 1)
        self.send_response(status)
        self.end_headers()
        if status == 200:
            assert self.headers["content-type"] == "application/json"
            hook.got.put((self.path, body))

    def log_message(self, *said: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def webhook() -> Iterator[Webhook]:
    with Webhook() as hook:
        thread = threading.Thread(target=hook.serve_forever, daemon=True)
        thread.start()
        try:
            yield hook
        finally:
            hook.shutdown()
            thread.join()


def test_repeated_deaths_are_told_on_the_page_as_events_and_at_the_webhook(tmp_path: Path, browser: Any) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    with webhook() as hook:
        url = f"http://127.0.0.1:{hook.server_address[1]}/a-secret-path"
        (data / "linckia.toml").write_text(f'[alerts]\nwebhook = "{url}"\ndeaths = 2\n')
        services = ["echo", "fetch", "events", "watch", "files", "tasks", "approvals", "yaml", "graph"]
        with running(data, options=HTTP, services=services, token=True) as kernel:
            visitor = Visitor(browser, "phone", "dark")
            visitor.sign_in(kernel)
            page = visitor.page
            kernel.kill("echo")
            kernel.wait_ready("echo")
            assert page.get_by_role("region", name="Alerts").count() == 0
            kernel.kill("echo")
            page.get_by_role("region", name="Alerts").get_by_text("echo died 2 times or more").wait_for(timeout=20_000)
            assert axe_violations(page) == []
            path, said = hook.got.get(timeout=30)
            assert path == "/a-secret-path"
            assert (said["event"], said["kind"], said["subject"]) == ("alert", "death", "echo")
            assert hook.refusals == 0

            dismiss = page.get_by_role("button", name="Dismiss: echo died 2 times or more")
            dismiss.focus()
            page.keyboard.press("Enter")
            dismiss.wait_for(state="detached")
            page.reload()
            visitor.sees("processes well")
            page.get_by_text("● live").wait_for()
            assert page.get_by_role("region", name="Alerts").count() == 0

            events = linckia(data, "events", "--since", "1 hour ago", "--json")
            assert events.returncode == 0, events.stderr
            assert "alert" in events.stdout
            assert "echo died 2 times or more within ten minutes" in events.stdout
            secret = [file for file in (*data.glob("logs/*"), *data.glob("audit/*")) if "a-secret" in file.read_text()]
            assert secret == []
            assert visitor.complaints == []
