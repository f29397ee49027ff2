"""An embedder for tests that is no model: a vector made of a text's words, so that like texts lie near."""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import trio

from proto.errors import LinckiaError, OperationError
from proto.operation import Params
from proto.ops.embed import EmbedModel, EmbedModelParams, EmbedResult, EmbedTexts, pack
from proto.ops.retrieve import Group, Item, RetrieveSearch, SearchResult, Value
from services.retrieve.collection import Collection
from services.retrieve.filters import Where, allowed_items
from services.retrieve.index.segment import DEFAULT_LIMITS, VectorLimits
from services.retrieve.index.vectors import Matrix, Scored
from services.retrieve.local_collection import LocalCollection
from services.retrieve.ranking.queries import Patience
from services.retrieve.ranking.search import search
from services.retrieve.vector_outbox import EmbedCall, VectorFeed, run_outbox
from tests.unit.runtime.environment import PlayedEnvironment

DIMENSIONS = 64


def vector(text: str) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """A unit vector: each word turns it a little, always the same way."""
    total = np.zeros(DIMENSIONS, dtype=np.float32)
    for word in text.lower().split() or [""]:
        seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "little")
        total += np.random.default_rng(seed).standard_normal(DIMENSIONS).astype(np.float32)
    normed: np.ndarray[tuple[int], np.dtype[np.float32]] = total / np.linalg.norm(total)
    return normed


class WordEmbedder:
    """Stands in for `embed`; `failure` makes it fail, `poison` lists words it cannot embed."""

    def __init__(self, fingerprint: str = "words:1") -> None:
        self.fingerprint = fingerprint
        self.earlier: set[str] = set()
        """Fingerprints of models that were in use before and are still here."""
        self.failure: LinckiaError | None = None
        self.poison: dict[str, LinckiaError] = {}
        self.texts: list[str] = []
        self.calls = 0
        self.hangs = False
        self._called = trio.lowlevel.ParkingLot()

    async def until_called(self, times: int) -> None:
        """Until `embed` was called so often."""
        while self.calls < times:
            await self._called.park()

    async def embed(self, params: EmbedTexts) -> EmbedResult:
        await trio.lowlevel.checkpoint()
        self.calls += 1
        self._called.unpark_all()
        if self.hangs:
            await trio.sleep_forever()
        if self.failure is not None:
            raise self.failure
        if params.fingerprint not in ("", self.fingerprint, *self.earlier):
            raise OperationError(f"no model {params.fingerprint} is here")
        for text in params.texts:
            for word, error in self.poison.items():
                if word in text:
                    raise error
        self.texts.extend(params.texts)
        return EmbedResult(
            vectors=pack(np.stack([vector(text) for text in params.texts])),
            fingerprint=params.fingerprint or self.fingerprint,
        )

    async def query(self, params: EmbedTexts, timeout_s: float) -> EmbedResult:
        return await self.embed(params)

    async def model(self, params: EmbedModelParams) -> EmbedModel:
        await trio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure
        return EmbedModel(
            model="words",
            fingerprint=self.fingerprint,
            dimensions=DIMENSIONS,
            max_tokens=256,
            device="cpu",
            precision="fp32",
        )


def group(name: str, *texts: str, title: str = "", metadata: dict[str, Value] | None = None) -> Group:
    """A group whose items have the keys 0, 1, …"""
    items = [Item(key=str(index), text=text) for index, text in enumerate(texts)]
    return Group(id=name, title=title, items=items, metadata=metadata or {})


@asynccontextmanager
async def opened(
    folder: Path, name: str = "notes", limits: VectorLimits = DEFAULT_LIMITS
) -> AsyncIterator[LocalCollection]:
    """A collection with its vectors loaded and no worker."""
    collection = LocalCollection(name, folder, trio.CapacityLimiter(4), limits)
    await collection.load()
    await collection.words.check()
    try:
        yield collection
    finally:
        collection.close()


def outbox_of(
    collection: Collection,
    embedder: WordEmbedder,
    embed: EmbedCall | None = None,
    now: Callable[[], float] = time.time,
) -> Callable[[], Awaitable[None]]:
    """The outbox's worker, to be started in a nursery; it pauses for a moment only."""

    async def run() -> None:
        feed = VectorFeed(collection, embed or embedder.embed, embedder.model, now)
        async with trio.open_nursery() as nursery:
            await run_outbox(PlayedEnvironment(nursery, unasked), collection, feed)

    return run


async def unasked(params: Params[Any]) -> object:
    raise AssertionError("the embedder is asked directly")


async def near(collection: LocalCollection, query: Matrix, limit: int, where: Where | None) -> Scored:
    """Item ids and cosines, best first."""

    def find(db: apsw.Connection) -> Scored:
        index = collection.vectors.index
        return index.nearest(query, limit, None if where is None else allowed_items(db, where)) if index else []

    return await collection.on_reader(find)


async def execute(collection: LocalCollection, sql: str) -> None:
    """Change the database behind the collection's back."""
    await collection.on_writer(lambda db: db.execute(sql).fetchall())


@asynccontextmanager
async def worked(collection: Collection, embedder: WordEmbedder) -> AsyncIterator[None]:
    """Run the outbox worker in parallel."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outbox_of(collection, embedder))
        yield
        nursery.cancel_scope.cancel()


async def drained(collection: Collection, waiting: int = 0) -> None:
    """Until only `waiting` items wait for their vectors, and those of another model, if one is coming, are searched."""
    with trio.fail_after(20):
        while collection.waiting > waiting or (collection.coming and not waiting):  # noqa: ASYNC110  # the outbox tells nobody
            await trio.sleep(0.01)


async def embedded(collection: Collection, embedder: WordEmbedder) -> None:
    """Give everything its vector."""
    async with worked(collection, embedder):
        await drained(collection)


async def ask(
    collection: Collection, embedder: WordEmbedder, asked: RetrieveSearch, patience: Patience | None = None
) -> SearchResult:
    """Search with `embedder` for the query."""
    return await search(collection, asked, embedder.query, patience or Patience(5.0), lambda: None)


async def failed(collection: Collection) -> None:
    """Wait until an item was set aside because its text failed."""
    with trio.fail_after(20):
        while not (await collection.status()).vectors_failed:  # noqa: ASYNC110  # the outbox tells nobody
            await trio.sleep(0.01)
