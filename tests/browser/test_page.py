"""The operator's page in a real browser, over a real kernel: it loads, lives, and restarts."""

from __future__ import annotations

import base64
import os
import time
from pathlib import Path

import pytest

from tests.browser import chromium
from tests.system.running import HTTP, running

pytestmark = pytest.mark.skipif(chromium.executable() is None, reason="no Chromium is installed here")

ROW = "[...document.querySelectorAll('#services tbody tr')].find(row => row.cells[0].textContent === 'echo')"


def test_the_page_shows_what_runs_lives_and_restarts_a_service(tmp_path: Path) -> None:
    with (
        running(tmp_path / "data", options=HTTP, services=["echo"], all_ready=False, token=True) as kernel,
        chromium.browser(tmp_path / "p") as page,
    ):
        kernel.wait_ready("echo")
        # The front over HTTP comes a moment later.
        while (url := kernel.status()["page_url"]) is None:
            time.sleep(0.02)
        # Without what is behind the #, it shows nothing and asks for the token.
        page.open(url.partition("#")[0])
        page.until("!document.getElementById('sign-in').hidden")
        assert page.value(f"({ROW})?.cells[1].textContent ?? 'none'") == "none"
        assert not page.value("document.getElementById('no-key').hidden")
        page.value(f"document.getElementById('token').value = {kernel.status()['token']!r}")
        page.value("document.querySelector('#sign-in button').click()")
        page.until(f"({ROW})?.cells[1].textContent === 'ready'")
        assert page.value("document.querySelectorAll('button').length") == 1  # signing in, which is hidden
        page.value("sessionStorage.clear()")

        page.open("about:blank")
        page.open(url)
        page.until(f"({ROW})?.querySelector('button') !== null && ({ROW})?.cells[1].textContent === 'ready'")
        assert page.value("location.hash") == ""
        before = int(page.value(f"({ROW}).cells[2].textContent"))
        assert before == kernel.service("echo")["pid"]
        page.value(f"({ROW}).querySelector('button').click()")
        page.until(f"({ROW}).cells[1].textContent === 'ready' && Number(({ROW}).cells[2].textContent) !== {before}")
        assert page.value("document.getElementById('trouble').textContent") == ""

        # A death shows by itself, with its cause.
        kernel.kill("echo")
        page.until(f"({ROW}).cells[6].textContent.includes('signal 1')")
        if (folder := os.environ.get("SCREENSHOTS_FOLDER")) is not None:
            (Path(folder) / "page.png").write_bytes(base64.b64decode(page.screenshot()))
