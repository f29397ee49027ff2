"""The stores under test, each as a factory of engines over the same data."""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import trio

from proto.ops.retrieve import Filter, Fusion, RetrieveSearch
from services.retrieve.collection import Collection
from services.retrieve.engine import Engine, LocalEngine
from services.retrieve.index.segment import VectorLimits
from services.retrieve.postgres.engine import PostgresEngine
from services.retrieve.postgres.server import Server
from services.runtime.database import Kind
from tests.postgres import PostgresServer

ANY_NAME = re.compile("[a-z.]+")
FLAT = 200
"""Vectors beyond which an index is built."""

_schemas = itertools.count()


class Store(Protocol):
    """Data in one place; each engine is as in a process of its own."""

    shared: bool
    """Whether several engines may write at once."""

    def engine(self) -> Engine: ...

    def close(self) -> None: ...


class LocalStore:
    shared = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def engine(self) -> Engine:
        limits = VectorLimits(flat_vectors=FLAT)
        return LocalEngine(self._folder, 4, limits, None, ANY_NAME, Kind.SOURCE)

    def close(self) -> None:
        pass


class ServerStore:
    shared = True

    def __init__(self, postgres: PostgresServer, index: str = "hnsw") -> None:
        self.postgres = postgres
        self.schema = f"test_{next(_schemas)}"
        self.index = index
        self._servers: list[Server] = []

    def engine(self) -> PostgresEngine:
        server = Server(self.postgres.dsn, self.schema)
        self._servers.append(server)
        return PostgresEngine(server, "", "here", ANY_NAME, 8, FLAT, self.index, 200, "64MB")

    def close(self) -> None:
        for server in self._servers:
            server.close()


class Keeper:
    """The service, as far as the background work of a collection needs it."""

    def __init__(self) -> None:
        self.troubles: dict[str, str] = {}

    def report(self, collection: Collection, of: str, trouble: str) -> None:
        self.troubles[of] = trouble

    async def retry_when_full(self, collection: Collection, of: str, work: object) -> None:
        await work()  # type: ignore[operator]  # a coroutine function

    async def wanted_or_calm(self, wanted: trio.Event) -> None:
        await trio.lowlevel.checkpoint()


@asynccontextmanager
async def opened(engine: Engine, name: str = "notes", keeper: Keeper | None = None) -> AsyncIterator[Collection]:
    """A collection with its background work running."""
    collection = await engine.open(name, lambda: None)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collection.maintain, keeper or Keeper())
            with trio.fail_after(30):
                await collection.loaded.wait()
                await collection.leads.wait()
            yield collection
            nursery.cancel_scope.cancel()
    finally:
        await trio.to_thread.run_sync(collection.close)
        await trio.to_thread.run_sync(engine.close)


async def indexed(collection: Collection) -> None:
    """Wait until an index is used to search the vectors."""
    with trio.fail_after(60):
        while (await collection.status()).index in ("none", "flat"):  # noqa: ASYNC110  # nobody is told
            await trio.sleep(0.05)


def asked(query: str, method: str = "weighted", *filters: Filter, limit: int = 10) -> RetrieveSearch:
    return RetrieveSearch(
        collection="notes", query=query, limit=limit, filters=list(filters), fusion=Fusion(method=method)
    )


async def words(collection: Collection, query: str, *filters: Filter) -> list[str]:
    found = (await collection.find_words(query, 100, filters)).hits
    items = await collection.items([item for item, _ in found])
    return [items[item].group for item, _ in found]


async def ids(collection: Collection) -> dict[str, int]:
    """Item ids by text."""
    found = (await collection.find_words("piece", 1000, ())).hits
    return {each.text: item for item, each in (await collection.items([item for item, _ in found])).items()}
