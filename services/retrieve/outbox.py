"""Gives the items of a collection their vectors, in the background and through every kind of failure.

Items wait in the database, so a crash of either service forgets none. While the embedder is away, or the disk full, the
outbox pauses; a text that the embedder cannot take is found by halving, set aside and tried again ever more rarely.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import numpy as np
import trio

from linckia.proto.errors import Kind, LinckiaError
from linckia.proto.ops.embed import EmbedModel, EmbedModelParams, EmbedResult, EmbedTexts, TextKind
from linckia.services.retrieve import vector_store
from linckia.services.retrieve.collection import Collection
from linckia.services.retrieve.vector_store import Waiting
from linckia.services.runtime.handlers import Environment
from linckia.services.runtime.outbox import Feed, Outbox

EmbedCall = Callable[[EmbedTexts], Awaitable[EmbedResult]]
ModelCall = Callable[[EmbedModelParams], Awaitable[EmbedModel]]

BATCH = 128
"""Items embedded and kept at once: one commit for a second or so of the model's work."""

FIRST_POSTPONEMENT_S, LONGEST_POSTPONEMENT_S = 30.0, 3600.0
LOOK_AGAIN_S = 15.0
"""For items whose time has come; by the clock on the wall, which may be put forward."""

_AWAY = frozenset({Kind.UNAVAILABLE, Kind.OVERLOADED})
"""Failures that say nothing about the texts."""


class Due(NamedTuple):
    """Items that are to be embedded, by the model in use, or by the earlier one of that fingerprint."""

    items: list[Waiting]
    fingerprint: str = ""


class VectorFeed(Feed[Due]):
    """The outbox of one collection and the embedder.

    Args:
        now: Unix time; what is postponed stays so over a restart, so this is no clock of the process.
    """

    def __init__(
        self, collection: Collection, embed: EmbedCall, model: ModelCall, now: Callable[[], float] = time.time
    ) -> None:
        self._collection = collection
        self._embed = embed
        self._model = model
        self._now = now
        self._lost: set[str | None] = set()
        """Fingerprints of earlier models that cannot be used any more."""

    async def compare(self) -> None:
        """Notice another model. Later each vector names its model, so the embedder is not woken to be asked."""
        # An empty collection takes whichever model comes with its first item.
        if self._collection.fingerprint is not None:
            current = await self._model(EmbedModelParams())
            await self._collection.adopt(current.fingerprint, current.dimensions)

    async def take(self) -> Due | None:
        """The items of what was asked for, then those that have waited longest.

        While another model's vectors are made, items of which there is none get one of the model that is searched
        first, so that they are found meanwhile.
        """
        collection = self._collection
        if (
            collection.coming is not None
            and collection.progress.lacking
            and (searched := collection.fingerprint) not in self._lost
            and (new := await collection.read(lambda db: vector_store.unserved(db, BATCH)))
        ):
            return Due(new, searched or "")
        if hurried := tuple(collection.hurried):
            if due := await collection.read(lambda db: vector_store.waiting_of(db, self._now(), hurried, BATCH)):
                return Due(due)
            for group in hurried:
                collection.hurried.pop(group, None)
        if due := await collection.read(lambda db: vector_store.waiting(db, self._now(), BATCH)):
            return Due(due)
        await collection.switch()
        await collection.count_waiting()
        return None

    async def deliver(self, due: Due) -> bool:
        """Embed `due` and keep the vectors."""
        try:
            await self._embed_and_keep(due.items, due.fingerprint)
        except LinckiaError as error:
            if not due.fingerprint or error.failure.kind in _AWAY:
                raise
            self._lost.add(due.fingerprint)
        return True

    async def strike(self, due: Due) -> None:
        """Each item leaves the outbox in the transaction that keeps its vector, or is postponed."""
        await self._collection.count_waiting()

    async def _embed_and_keep(self, items: Sequence[Waiting], fingerprint: str) -> None:
        """Raises LinckiaError where the embedder is away, or has not that earlier model."""
        texts = [item.text for item in items]
        try:
            result = await self._embed(EmbedTexts(texts=texts, kind=TextKind.PASSAGE, fingerprint=fingerprint))
        except LinckiaError as error:
            if fingerprint or error.failure.kind in _AWAY:
                raise
            if len(items) > 1:
                half = len(items) // 2
                await self._embed_and_keep(items[:half], fingerprint)
                await self._embed_and_keep(items[half:], fingerprint)
                return
            (item,), reason = items, error.failure.message
            until = self._now() + min(FIRST_POSTPONEMENT_S * 2.0**item.attempts, LONGEST_POSTPONEMENT_S)
            await self._collection.write(lambda db: vector_store.postpone(db, item, until, reason))
            return
        result.vectors.check()
        vectors = np.frombuffer(result.vectors.data, dtype=result.vectors.dtype).reshape(result.vectors.shape)
        if not fingerprint:
            await self._collection.adopt(result.fingerprint, vectors.shape[1])
        halves = [row.tobytes() for row in vectors.astype("<f2")]
        await self._collection.settle(result.fingerprint, list(zip(items, halves, strict=True)))


async def run_outbox(env: Environment, collection: Collection, feed: VectorFeed) -> None:
    """Work until cancelled."""
    await collection.loaded.wait()
    collection.outbox = outbox = Outbox(env, "the embedder", feed)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outbox.run)
        while True:
            collection.has_work = trio.Event()
            outbox.hurry()
            # What is postponed waits as well.
            with trio.move_on_after(LOOK_AGAIN_S if collection.waiting else math.inf):
                await collection.has_work.wait()
