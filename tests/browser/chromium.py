"""A Chromium without a window, driven through its DevTools protocol on two pipes: no driver has to be installed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")

TIMEOUT_S = 30.0


def executable() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One page."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to = to_browser
        self._from = from_browser
        self._buffer = b""
        self._count = 0
        self._session = ""
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._loaded: set[str] = set()
        self._ask("Page.enable")
        self._ask("Page.setLifecycleEventsEnabled", enabled=True)

    def _receive(self) -> dict[str, Any]:
        """Return the next message, an answer or an event."""
        while b"\0" not in self._buffer:
            data = os.read(self._from, 65536)
            if not data:
                raise EOFError("the browser has ended")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if message.get("method") == "Page.lifecycleEvent" and message["params"]["name"] == "load":
            self._loaded.add(message["params"]["loaderId"])
        return message

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        request = {"id": self._count, "method": method, "params": params}
        if self._session:
            request["sessionId"] = self._session
        os.write(self._to, json.dumps(request).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._count:
            pass
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, url: str) -> None:
        """Load a page and wait for its load event: before that, its elements may not exist yet."""
        answer = self._ask("Page.navigate", url=url)
        if "errorText" in answer:
            raise AssertionError(f"{url}: {answer['errorText']}")
        while "loaderId" in answer and answer["loaderId"] not in self._loaded:
            self._receive()

    def value(self, expression: str) -> Any:
        """What a JavaScript expression is in the page."""
        answer = self._ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until the expression is true in the page; answers its value."""
        give_up = time.monotonic() + TIMEOUT_S
        while not (value := self.value(expression)):
            if time.monotonic() > give_up:
                raise AssertionError(f"never true: {expression}\n{self.value('document.body.innerText')}")
            time.sleep(0.05)
        return value

    def screenshot(self) -> str:
        """A PNG, in base64."""
        data: str = self._ask("Page.captureScreenshot")["data"]
        return data


@contextlib.contextmanager
def browser(profile: Path, *options: str) -> Iterator[Page]:
    """A browser with a page.  Raises FileNotFoundError where there is none."""
    found = executable()
    if found is None:
        raise FileNotFoundError("no Chromium")
    our_in, to_browser = os.pipe()
    from_browser, their_out = os.pipe()

    def pipes() -> None:
        # The numbers that `--remote-debugging-pipe` reads from and writes to.
        for fd, wanted in ((os.dup(our_in), 3), (os.dup(their_out), 4)):
            os.dup2(fd, wanted)

    command = [
        found, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
        f"--user-data-dir={profile}", "--window-size=1300,700", *options,
    ]  # fmt: skip
    process = subprocess.Popen(
        command,
        preexec_fn=pipes,  # noqa: PLW1509  # no other thread runs yet, and the descriptors' numbers are fixed
        close_fds=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(our_in)
    os.close(their_out)
    try:
        yield Page(to_browser, from_browser)
    finally:
        process.kill()
        process.wait()
        os.close(to_browser)
        os.close(from_browser)
