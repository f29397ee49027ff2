"""The time of tests in which days pass."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.memory.rig import Clock


@pytest.fixture
def clock() -> Iterator[Clock]:
    clock = Clock()
    with clock.kept():
        yield clock
