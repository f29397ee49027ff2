"""Settings for all tests of stores."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.retrieve.postgres import collection
from tests.postgres import PostgresServer
from tests.store.rig import LocalStore, ServerStore, Store

SCHEMAS = itertools.count()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes are built at once."""
    monkeypatch.setattr(collection, "QUIET_S", 0.0)


@pytest.fixture(scope="module")
def server(postgres_server: PostgresServer) -> PostgresServer:
    return postgres_server


@pytest.fixture(params=["local", "hnsw", "binary"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "local":
        made: Store = LocalStore(tmp_path)
    else:
        server: PostgresServer = request.getfixturevalue("server")
        made = ServerStore(server, request.param)
    yield made
    made.close()


@pytest.fixture
def schema() -> str:
    return f"moves_{next(SCHEMAS)}"
