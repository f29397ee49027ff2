"""Collections that clients create.

They have the same tables and indexes as the services' collections, but hold the only copy of their content. Each has
its own database, `own.NAME.db`, whose prefix keeps the names apart from the services'. A write is on disk before its
call returns. A collection of client-supplied vectors has the placeholder model `given:DIMENSIONS`, so nothing is
embedded.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import trio

from proto.errors import InvalidParams, LinckiaError, OperationError, Unavailable
from proto.ops.retrieve import Fusion, RetrieveSearch, SearchResult
from services.retrieve import operations as ops
from services.retrieve.client_documents import given_query, groups_of, size_of, takes
from services.retrieve.collection import CLIENT_VECTORS, Collection
from services.retrieve.item_store import Change
from services.retrieve.open_collections import Collections, RetrieveSettings
from services.retrieve.ranking.queries import QueryCall
from services.retrieve.store import Snapshot, StoredGroup, Transaction
from services.runtime import keyed
from services.runtime.handlers import Context, handles
from services.shared.models.measure import Measure

T = TypeVar("T")

PREFIX = "own."
FILES = re.compile(r"own\.[a-z][a-z0-9_-]{0,63}")

_SHAPE, _BYTES = "own", "own_bytes"
"""Keys of `meta`: the dimensions of the vectors (set on creation), and the bytes stored."""

Find = Callable[[Collection, RetrieveSearch, Context, QueryCall | None], Awaitable[SearchResult]]
"""The services' search, with an optional replacement for the embedder."""


class ClientCollections:
    """The operations of `services.retrieve.operations`."""

    def __init__(
        self, opener: Collections, find: Find, settings: RetrieveSettings, measure: Callable[[], Measure]
    ) -> None:
        # Created with the first text, as a tokenizer takes time and memory.
        self._measure = functools.cache(measure)
        self._opener = opener
        self._find = find
        self._settings = settings
        self._creating = trio.Lock()
        self._cutting = trio.CapacityLimiter(1)
        self._using: Counter[str] = Counter()
        self._leaving: set[str] = set()
        self._freed = trio.lowlevel.ParkingLot()

    @handles(ops.CollectionCreate)
    async def create(self, params: ops.CollectionCreate, ctx: Context) -> ops.CollectionInfo:
        name = params.collection
        async with self._creating:
            there = await self._opener.names()
            if PREFIX + name not in there and len(there) >= self._settings.collections:
                quota = f"the quota is {self._settings.collections} (services.retrieve.collections)"
                raise OperationError(f"there are {len(there)} collections and {quota}; drop one that is not needed")
            async with self._in_use(name):
                collection = await self._opener.find(PREFIX + name, make=True)
                assert collection is not None
                dimensions = await collection.write(partial(_make, dimensions=params.dimensions))
                if dimensions != params.dimensions:
                    raise InvalidParams(
                        f"parameter `dimensions`: collection {name!r} already exists and {takes(dimensions)}",
                        field="dimensions",
                    )
                if dimensions is not None:
                    await collection.adopt(f"{CLIENT_VECTORS}{dimensions}", dimensions)
                return await collection.read(partial(_info, name=name))

    @handles(ops.CollectionListParams)
    async def every(self, params: ops.CollectionListParams, ctx: Context) -> ops.CollectionList:
        found = []
        for name in [each.removeprefix(PREFIX) for each in await self._opener.names()]:
            try:
                found.append(await self._ask(name, partial(_info, name=name)))
            except InvalidParams:
                # Dropped just now, or its creation was interrupted.
                continue
            except LinckiaError as error:
                trouble = error.failure.message
                found.append(
                    ops.CollectionInfo(collection=name, dimensions=None, documents=0, bytes=0, trouble=trouble)
                )
        quota = self._settings
        return ops.CollectionList(
            collections=found,
            most_collections=quota.collections,
            most_documents=quota.collection_documents,
            most_bytes=quota.collection_bytes,
        )

    @handles(ops.CollectionCount)
    async def count(self, params: ops.CollectionCount, ctx: Context) -> ops.CollectionCounted:
        count = await self._ask(params.collection, lambda store: store.count_groups(params.filters))
        return ops.CollectionCounted(documents=count)

    @handles(ops.CollectionUpsert)
    async def upsert(self, params: ops.CollectionUpsert, ctx: Context) -> ops.CollectionUpserted:
        async def upsert(collection: Collection, dimensions: int | None) -> ops.CollectionUpserted:
            groups = await trio.to_thread.run_sync(
                groups_of, params.documents, dimensions, self._measure, limiter=self._cutting
            )

            counted: list[int] = []

            def answer(change: Change) -> ops.CollectionUpserted:
                waiting = change.progress.waiting
                return ops.CollectionUpserted(upserted=len(groups), documents=counted[-1], vectors_waiting=waiting)

            keyed.shape_answer(answer)
            change = await collection.put(groups, lambda store: counted.append(self._hold(store, params, dimensions)))
            return answer(change)

        return await self._using_it(params.collection, upsert)

    def _hold(self, store: Transaction, params: ops.CollectionUpsert, dimensions: int | None) -> int:
        """Check the quota and count the documents being stored, inside their transaction.

        Returns the number of documents that the collection will hold.

        Raises:
            OperationError: the quota would be exceeded.
        """
        name, ids = params.collection, [each.id for each in params.documents]
        store.take_turns()
        replaced, freed = store.sizes(ids)
        documents = store.count_groups(()) + len(ids) - replaced
        held = _bytes(store) - freed + sum(size_of(each, dimensions) for each in params.documents)
        for what, count, most in (
            ("documents", documents, self._settings.collection_documents),
            ("bytes", held, self._settings.collection_bytes),
        ):
            if count > most:
                setting = f"services.retrieve.collection_{what}"
                raise OperationError(
                    f"collection {name!r} would hold {count:,} {what}, but the quota is {most:,} ({setting}); "
                    "nothing was stored"
                )
        store.remember(_BYTES, str(held))
        return documents

    @handles(ops.CollectionDocuments)
    async def documents(self, params: ops.CollectionDocuments, ctx: Context) -> ops.CollectionPage:
        return await self._ask(params.collection, partial(_page, params=params))

    @handles(ops.CollectionExport)
    async def export(self, params: ops.CollectionExport, ctx: Context) -> ops.CollectionPage:
        everything = ops.CollectionDocuments(collection=params.collection, after=params.after)
        return await self._ask(params.collection, partial(_page, params=everything, whole=True))

    @handles(ops.CollectionSearch)
    async def search(self, params: ops.CollectionSearch, ctx: Context) -> ops.CollectionFound:
        async def search(collection: Collection, dimensions: int | None) -> SearchResult:
            embed: QueryCall | None = None
            fusion = Fusion()
            if dimensions is None and params.vector is not None:
                raise InvalidParams(
                    f"parameter `vector`: collection {params.collection!r} takes text; give `query`", field="vector"
                )
            if dimensions is not None:
                embed = given_query(params.vector, dimensions)
                fusion = Fusion(method="lexical" if embed is None else "weighted" if params.query.strip() else "vector")
            asked = RetrieveSearch(
                collection=params.collection,
                query=params.query,
                limit=params.limit,
                candidates=max(50, params.limit),
                filters=params.filters,
                fusion=fusion,
            )
            return await self._find(collection, asked, ctx, embed)

        found = await self._using_it(params.collection, search)
        hits = [
            ops.CollectionHit(
                id=hit.group, score=hit.score, similarity=hit.vector, text=hit.text, payload=hit.group_metadata
            )
            for hit in found.hits
        ]  # fmt: skip
        return ops.CollectionFound(hits=hits, stages=found.stages, degraded=found.degraded)

    @handles(ops.CollectionDelete)
    async def delete(self, params: ops.CollectionDelete, ctx: Context) -> ops.CollectionDeleted:
        counted: list[ops.CollectionDeleted] = []

        def choose(store: Transaction) -> Sequence[str]:
            store.take_turns()
            ids = store.matching(params.filters) if params.filters else params.ids
            gone, freed = store.sizes(ids)
            store.remember(_BYTES, str(_bytes(store) - freed))
            counted.append(ops.CollectionDeleted(deleted=gone, documents=store.count_groups(()) - gone))
            return ids

        keyed.shape_answer(lambda _: counted[-1])
        await self._using_it(params.collection, lambda collection, _: collection.delete(choose))
        return counted[-1]

    @handles(ops.CollectionDrop)
    async def drop(self, params: ops.CollectionDrop, ctx: Context) -> ops.CollectionDropped:
        name = params.collection
        async with self._creating:
            self._leaving.add(name)
            try:
                while self._using[name]:
                    await self._freed.park()
                return ops.CollectionDropped(dropped=await self._opener.remove(PREFIX + name))
            finally:
                self._leaving.discard(name)

    # Open collections

    @contextlib.asynccontextmanager
    async def _in_use(self, name: str) -> AsyncIterator[None]:
        """Keep the collection from being dropped meanwhile."""
        if name in self._leaving:
            raise await self._unknown(name)
        self._using[name] += 1
        try:
            yield
        finally:
            self._using[name] -= 1
            self._freed.unpark_all()

    @contextlib.asynccontextmanager
    async def _opened(self, name: str) -> AsyncIterator[tuple[Collection, int | None]]:
        """Yield the collection and the dimensions of its vectors.  Raises InvalidParams if it does not exist."""
        async with self._in_use(name):
            collection, shape = await self._look(name)
            if collection is None or shape is None:
                raise await self._unknown(name)
            yield collection, shape[0]

    async def _look(self, name: str) -> tuple[Collection | None, tuple[int | None] | None]:
        collection = await self._opener.find(PREFIX + name)
        try:
            return collection, None if collection is None else await collection.read(_shape)
        except Unavailable:
            if collection is None or not collection.was_recreated:
                raise
        # Another machine dropped or moved it, and may have made it again.
        collection = await self._opener.find(PREFIX + name)
        return collection, None if collection is None else await collection.read(_shape)

    async def _ask(self, name: str, question: Callable[[Snapshot], T]) -> T:
        return await self._using_it(name, lambda collection, _: collection.read(question))

    async def _using_it(self, name: str, use: Callable[[Collection, int | None], Awaitable[T]]) -> T:
        """Run `use` with a collection and the dimensions of its vectors; again if it has moved meanwhile."""
        async with self._opened(name) as (collection, dimensions):
            try:
                return await use(collection, dimensions)
            except Unavailable:
                if not collection.was_recreated:
                    raise
        async with self._opened(name) as (collection, dimensions):
            return await use(collection, dimensions)

    async def _unknown(self, name: str) -> InvalidParams:
        there = ", ".join(each.removeprefix(PREFIX) for each in await self._opener.names()) or "none"
        return InvalidParams(f"parameter `collection`: {name!r} does not exist; there are: {there}", field="collection")


# On one connection


def _make(store: Transaction, dimensions: int | None) -> int | None:
    """Return the dimensions of the collection, creating it if necessary."""
    store.take_turns()
    if (shape := _shape(store)) is not None:
        return shape[0]
    if dimensions is not None:
        # In the same transaction, as nothing may be stored without the model.
        store.adopt_model(f"{CLIENT_VECTORS}{dimensions}", dimensions)
    store.remember(_SHAPE, str(dimensions or 0))
    store.remember(_BYTES, "0")
    return dimensions


def _shape(store: Snapshot) -> tuple[int | None] | None:
    """Return the dimensions in a tuple; None if creation was interrupted."""
    stored = store.meta(_SHAPE)
    return None if stored is None else (int(stored) or None,)


def _bytes(store: Snapshot) -> int:
    return int(store.meta(_BYTES) or 0)


def _info(store: Snapshot, name: str) -> ops.CollectionInfo:
    shape = _shape(store)
    return ops.CollectionInfo(
        collection=name,
        dimensions=shape[0] if shape is not None else None,
        documents=store.count_groups(()),
        bytes=_bytes(store),
        vectors_waiting=store.progress().waiting,
    )


def _page(store: Snapshot, params: ops.CollectionDocuments, *, whole: bool = False) -> ops.CollectionPage:
    """Return the chosen documents after `params.after`, with their vectors if `whole`."""
    found = store.matching(params.filters, params.after, params.ids, params.limit + 1)
    has_vectors = whole and _shape(store) not in (None, (None,))
    documents = [_document(each, whole=has_vectors) for each in store.contents(found[: params.limit])]
    return ops.CollectionPage(documents=documents, more=len(found) > params.limit)


def _document(content: StoredGroup, *, whole: bool) -> ops.Document:
    vector = None
    if whole and (packed := content.pieces[0].vector) is not None:
        vector = np.frombuffer(packed, dtype="<f2").astype(float).tolist()
    return ops.Document(
        id=content.id,
        text="".join(piece.text for piece in content.pieces),
        vector=vector,
        payload=content.metadata,
    )
