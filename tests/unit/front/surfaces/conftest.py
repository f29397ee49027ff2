"""Clients of the composite tools, by surface."""

from __future__ import annotations

import pytest

from tests.unit.front.surfaces.composite import Client


@pytest.fixture(params=["documents", "all"])
def client(request: pytest.FixtureRequest) -> Client:
    return Client(request.param)


@pytest.fixture
def everything() -> Client:
    return Client("compact")
