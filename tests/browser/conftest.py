"""A kernel with data and a browser, which the tests of a module share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser import chromium
from tests.browser.visiting import filled_kernel
from tests.system.running import RunningKernel


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    with filled_kernel(tmp_path_factory.mktemp("page")) as kernel:
        yield kernel


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium.browser() as started:
        yield started
