"""Settings for all tests of stores."""

from __future__ import annotations

import pytest

from services.retrieve.postgres import collection
from tests.postgres import PostgresServer


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes are built at once."""
    monkeypatch.setattr(collection, "QUIET_S", 0.0)


@pytest.fixture(scope="module")
def server(postgres_server: PostgresServer) -> PostgresServer:
    return postgres_server
