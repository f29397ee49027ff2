"""Embeds the items of a collection in the background.

Items wait in the database, so none is lost if either service crashes. While the embedder is unavailable or the disk is
full, the outbox pauses. A text that the embedder rejects is isolated by bisection, postponed and retried with back-off.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import numpy as np
import trio

from proto.errors import Kind, LinckiaError
from proto.ops.embed import EmbedModel, EmbedModelParams, EmbedResult, EmbedTexts, TextKind
from services.retrieve.collection import Collection
from services.retrieve.vector_store import Waiting
from services.runtime.handlers import Environment
from services.shared.outbox import Feed, Outbox

EmbedCall = Callable[[EmbedTexts], Awaitable[EmbedResult]]
ModelCall = Callable[[EmbedModelParams], Awaitable[EmbedModel]]

BATCH = 128
"""Items per batch: one commit per second or so of the model's work."""

FIRST_POSTPONEMENT_S, LONGEST_POSTPONEMENT_S = 30.0, 3600.0
QUIET_S, PATIENCE_S = 0.2, 2.0
"""While writes come in, a batch waits until there were none for `QUIET_S`, and at most `PATIENCE_S`: writes are
confirmed sooner without the model beside them, and a hundred texts cost it little more than ten."""

LOOK_AGAIN_S = 15.0
"""Interval for checking which postponed items are due.  Due times are wall-clock times, and that clock may be changed.
"""

_AWAY = frozenset({Kind.UNAVAILABLE, Kind.OVERLOADED})
"""Failures that say nothing about the texts."""


class Due(NamedTuple):
    """Items to embed with the model in use, or with the earlier model `fingerprint`."""

    items: list[Waiting]
    fingerprint: str = ""


class VectorFeed(Feed[Due]):
    """Feeds the outbox of one collection to the embedder.

    Args:
        now: returns Unix time, because postponed items stay postponed across restarts.
    """

    def __init__(
        self, collection: Collection, embed: EmbedCall, model: ModelCall, now: Callable[[], float] = time.time
    ) -> None:
        self._collection = collection
        self._embed = embed
        self._model = model
        self._now = now
        self._lost: set[str | None] = set()
        """Fingerprints of earlier models that the embedder no longer has."""

    async def compare(self) -> None:
        """Check for a change of model.  Later each vector names its model, so the embedder need not be woken."""
        # An empty collection takes the model of its first item.
        if self._collection.fingerprint is not None:
            current = await self._model(EmbedModelParams())
            await self._collection.adopt(current.fingerprint, current.dimensions)

    async def take(self) -> Due | None:
        """Return the next items: those of requested groups first, then those that have waited longest.

        During a change of model, items without any vector are first embedded with the model that is searched, so that
        they can be found meanwhile.
        """
        collection = self._collection
        await self._give_way()
        if (
            collection.coming is not None
            and collection.progress.lacking
            and (searched := collection.fingerprint) not in self._lost
            and (new := await collection.read(lambda store: store.without_vector(BATCH)))
        ):
            return Due(new, searched or "")
        if prioritized := tuple(collection.prioritized):
            if due := await collection.read(lambda store: store.waiting_of(self._now(), prioritized, BATCH)):
                return Due(due)
            for group in prioritized:
                collection.prioritized.pop(group, None)
        if due := await collection.read(lambda store: store.waiting(self._now(), BATCH)):
            return Due(due)
        await collection.switch()
        await collection.count_waiting()
        return None

    async def _give_way(self) -> None:
        """Wait until no writes come in, unless somebody waits for certain groups."""
        with trio.move_on_after(PATIENCE_S):
            while not self._collection.prioritized:
                left_s = self._collection.written_at + QUIET_S - trio.current_time()
                if left_s <= 0:
                    return
                await trio.sleep(left_s)

    async def deliver(self, due: Due) -> bool:
        """Embed `due` and store the vectors."""
        try:
            await self._embed_and_keep(due.items, due.fingerprint)
        except LinckiaError as error:
            if not due.fingerprint or error.failure.kind in _AWAY:
                raise
            self._lost.add(due.fingerprint)
        return True

    async def strike(self, due: Due) -> None:
        """Update the count.  Items were removed with the transaction that stored their vector, or postponed."""
        await self._collection.count_waiting()

    async def _embed_and_keep(self, items: Sequence[Waiting], fingerprint: str) -> None:
        """Embed `items` and store the vectors.

        Raises:
            LinckiaError: the embedder is unavailable, or does not have the earlier model.
        """
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
            await self._collection.write(lambda store: store.postpone(item, until, reason))
            return
        result.vectors.check()
        vectors = np.frombuffer(result.vectors.data, dtype=result.vectors.dtype).reshape(result.vectors.shape)
        if not fingerprint:
            await self._collection.adopt(result.fingerprint, vectors.shape[1])
        halves = [row.tobytes() for row in vectors.astype("<f2")]
        await self._collection.settle(result.fingerprint, list(zip(items, halves, strict=True)))


async def run_outbox(env: Environment, collection: Collection, feed: VectorFeed) -> None:
    """Run the outbox until cancelled."""
    await collection.loaded.wait()
    collection.outbox = outbox = Outbox(env, "the embedder", feed)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outbox.run)
        while True:
            collection.has_work = trio.Event()
            outbox.hurry()
            # Postponed items count as waiting too.
            with trio.move_on_after(LOOK_AGAIN_S if collection.waiting else math.inf):
                await collection.has_work.wait()
