"""A kernel with data and a browser, which the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser import chromium
from tests.browser.visiting import filled_kernel
from tests.system.running import RunningKernel


@pytest.fixture(scope="package")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    """A kernel for the files that change little of its data (`TOGETHER` in tests/conftest.py)."""
    with filled_kernel(tmp_path_factory.mktemp("page")) as kernel:
        yield kernel


@pytest.fixture(scope="module")
def kernel(filled: RunningKernel) -> RunningKernel:
    return filled


@pytest.fixture(scope="package")
def playwright() -> Iterator[Any]:
    """Playwright, of which a process can have only one at a time."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="package")
def _browser(playwright: Any) -> Iterator[Any]:
    with chromium.browser(playwright) as started:
        yield started


@pytest.fixture
def browser(_browser: Any) -> Iterator[Any]:
    """A browser, whose pages are closed after the test: an open one reads live figures until the end."""
    yield _browser
    for context in _browser.contexts:
        context.close()
