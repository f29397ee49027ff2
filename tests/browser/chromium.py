"""A Chromium without a window, driven by Playwright."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")

_OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
    "--no-first-run",
)  # fmt: skip


def executable() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


needed = pytest.mark.skipif(executable() is None, reason="no Chromium is installed here")


@contextlib.contextmanager
def browser(playwright: Any, *options: str) -> Iterator[Any]:
    """Start a browser, with a new profile; yield Playwright's `Browser`."""
    started = playwright.chromium.launch(executable_path=executable(), args=[*_OPTIONS, *options])
    try:
        yield started
    finally:
        started.close()
