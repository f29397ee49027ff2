"""Operations of the operator, by which vectors are made outside of this machine: `linckia reembed --cluster`.

The outbox of each collection stays the only list of what is missing, and the service goes on with it meanwhile. If both
make a vector of the same item, the later one replaces the earlier one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from proto.errors import InvalidParams
from proto.ops import retrieve as ops
from proto.ops.embed import EmbedModelParams
from services.retrieve.client_collections import PREFIX
from services.retrieve.collection import Collection
from services.retrieve.open_collections import Collections
from services.retrieve.vector_store import Waiting
from services.runtime.handlers import Context, handles


class OutsideVectors:
    """Operation handlers.

    Args:
        collections: those that other services feed.
        clients: those that clients create.
        now: returns Unix time.
    """

    def __init__(self, collections: Collections, clients: Collections, now: Callable[[], float] = time.time) -> None:
        self._collections = collections
        self._clients = clients
        self._now = now

    @handles(ops.RetrieveOutboxes)
    async def outboxes(self, params: ops.RetrieveOutboxes, ctx: Context) -> ops.Outboxes:
        found = []
        for each in (self._collections, self._clients):
            for name in await each.names():
                if params.collection not in ("", name):
                    continue
                outbox = await each.ask(name, _outbox, ops.Outbox(collection=name, waiting=0))
                found.append(outbox)
        if params.collection and not found:
            raise InvalidParams(f"parameter `collection`: there is no collection {params.collection}")
        return ops.Outboxes(outboxes=found)

    @handles(ops.RetrieveWaiting)
    async def waiting(self, params: ops.RetrieveWaiting, ctx: Context) -> ops.WaitingItems:
        async def page(collection: Collection) -> ops.WaitingItems:
            if collection.has_client_vectors:
                return ops.WaitingItems()
            found = await collection.read(lambda store: store.waiting_before(self._now(), params.before, params.limit))
            return ops.WaitingItems(
                items=[ops.WaitingItem(id=each.item_id, hash=each.hash, text=each.text) for each in found]
            )

        return await self._of(params.collection).ask(params.collection, page, ops.WaitingItems())

    @handles(ops.RetrieveSettle)
    async def settle(self, params: ops.RetrieveSettle, ctx: Context) -> ops.Settled:
        async def settle(collection: Collection) -> ops.Settled:
            if collection.has_client_vectors:
                raise InvalidParams("parameter `collection`: its client supplies the vectors", field="collection")
            model = collection.coming or collection.model
            if model is None or model.fingerprint != params.fingerprint:
                # `embed` decides: the collection may be new, or the model may have changed a moment ago.
                current = await ctx.call(EmbedModelParams())
                if current.fingerprint != params.fingerprint:
                    raise InvalidParams(
                        f"parameter `fingerprint`: the vectors are of the model {params.fingerprint}, but "
                        f"{current.fingerprint} ({current.model}) is in use here",
                        field="fingerprint",
                    )
                await collection.adopt(current.fingerprint, current.dimensions)
                model = collection.coming or collection.model
            assert model is not None
            rows = _rows(params.vectors, len(params.items), model.dimensions)
            waiting = [Waiting(each.id, 0, each.hash, "") for each in params.items]
            await collection.settle(params.fingerprint, list(zip(waiting, rows, strict=True)))
            # The outbox switches to a new model once nothing waits.
            collection.has_work.set()
            return ops.Settled(vectors_waiting=collection.waiting)

        return await self._of(params.collection).ask(params.collection, settle, ops.Settled())

    def _of(self, name: str) -> Collections:
        return self._clients if name.startswith(PREFIX) else self._collections


async def _outbox(collection: Collection) -> ops.Outbox:
    if collection.has_client_vectors:
        return ops.Outbox(collection=collection.name, waiting=0)
    failed = (await collection.read(lambda store: store.counts()))[3]
    return ops.Outbox(
        collection=collection.name,
        waiting=await collection.count_waiting(),
        failed=failed,
        trouble=(collection.outbox.waiting or "") if collection.outbox is not None else "",
    )


def _rows(vectors: bytes, count: int, dimensions: int) -> list[bytes]:
    """Split `vectors` into one for each item. Raises InvalidParams: they do not fit, or are not of length 1."""
    if len(vectors) != count * dimensions * 2:
        raise InvalidParams(
            f"parameter `vectors`: {count} vectors of {dimensions} numbers have {count * dimensions * 2} bytes, not "
            f"{len(vectors)}",
            field="vectors",
        )
    matrix = np.frombuffer(vectors, dtype="<f2").reshape(count, dimensions).astype(np.float32)
    lengths = np.linalg.norm(matrix, axis=1)
    # Also false for what is no number.
    if not bool(np.all(np.abs(lengths - 1) < 0.01)):
        raise InvalidParams("parameter `vectors`: a vector is not of length 1", field="vectors")
    width = dimensions * 2
    return [vectors[start : start + width] for start in range(0, len(vectors), width)]
