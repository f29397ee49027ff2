"""Collections with both of their places, and what moves them, as the tests of migration use them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import trio
import trio.lowlevel

from proto.errors import Unavailable
from services.retrieve.engine import NAMES, LocalEngine
from services.retrieve.index.segment import VectorLimits
from services.retrieve.migration import Migration
from services.retrieve.open_collections import Collections, RetrieveSettings
from services.retrieve.places import Places
from services.retrieve.postgres.engine import PostgresEngine
from services.retrieve.postgres.server import Server
from services.runtime.database import Kind
from tests.postgres import PostgresServer
from tests.store.rig import FLAT
from tests.unit.retrieve.rig import WordEmbedder, group
from tests.unit.runtime.environment import PlayedEnvironment


@contextlib.asynccontextmanager
async def kernel(
    folder: Path, server: PostgresServer, schema: str, embedder: WordEmbedder
) -> AsyncIterator[tuple[Collections, Places, Migration]]:
    """The collections of one service, as `retrieve` has them."""

    async def answer(params: Any) -> object:
        return await (embedder.embed(params) if hasattr(params, "texts") else embedder.model(params))

    await trio.Path(folder).mkdir(exist_ok=True)
    files = LocalEngine(folder, 4, VectorLimits(flat_vectors=FLAT), None, NAMES, Kind.SOURCE)
    on_server = PostgresEngine(Server(server.dsn, schema), "", "here", NAMES, 4, FLAT, "hnsw", 100, "64MB")
    places = Places(files, on_server, made_on_server=False)
    async with trio.open_nursery() as nursery:
        environment = PlayedEnvironment(nursery, answer)
        collections = Collections(environment, RetrieveSettings(), places)
        try:
            yield collections, places, Migration(collections, places)
        finally:
            with trio.CancelScope(shield=True):
                await collections.close()
            nursery.cancel_scope.cancel()


async def moved(migration: Migration, to_server: bool, name: str = "notes", for_s: float = 0.05) -> int:
    """Migrate to the end; return in how many calls."""
    calls = 0
    with trio.fail_after(60):
        while True:
            calls += 1
            try:
                if (await migration.work(name, to_server=to_server, until=trio.current_time() + for_s)).done:
                    return calls
            except Unavailable:
                await trio.sleep(0.05)


async def state(collections: Collections, name: str = "notes") -> list[tuple[object, ...]]:
    """Everything that a collection holds."""
    collection = await collections.find(name)
    assert collection is not None
    ids = await collection.read(lambda store: store.matching(()))
    return [*await collection.read(lambda store: store.contents(ids))]


GROUPS = [
    group(f"g{n:03}", f"piece number{n}", f"more of {n % 5}", title=f"title {n}", metadata={"n": n, "odd": "nul\0"})
    for n in range(700)
]


def ending(original: Any, ended: type[BaseException], *, after: bool) -> Any:
    """`original` as it is in a process that ends before it, or right after it, at its first call."""
    import inspect

    if inspect.iscoroutinefunction(original):

        async def patched(*args: Any, **named: Any) -> Any:
            if after:
                await original(*args, **named)
            raise ended

        return patched

    def patched_plain(*args: Any, **named: Any) -> Any:
        if after:
            original(*args, **named)
        raise ended

    return patched_plain
