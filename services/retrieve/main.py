"""The service `retrieve`: answers its operations from the collections that there are, which `opened` keeps open."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable
from functools import partial
from typing import TypeVar

import trio

from proto.ops.embed import EmbedResult, EmbedTexts
from proto.ops.retrieve import (
    CollectionEpoch,
    CollectionStatus,
    GroupIds,
    Grouping,
    Neighbours,
    Pairs,
    RetrieveClusters,
    RetrieveDelete,
    RetrieveEpoch,
    RetrieveGroups,
    RetrievePairs,
    RetrievePut,
    RetrieveScrub,
    RetrieveSearch,
    RetrieveSimilar,
    RetrieveStatus,
    Scrubbed,
    SearchResult,
    Written,
)
from services.retrieve import own, store
from services.retrieve.collection import Collection
from services.retrieve.neighbours import GroupNeighbours
from services.retrieve.opened import Collections, Settings
from services.retrieve.queries import Patience, QueryCall, QueryVectors
from services.retrieve.reranking import LateReranker, Pace, Reranker
from services.retrieve.search import search
from services.retrieve.store import Change
from services.runtime.database import Kind
from services.runtime.handlers import Context, Environment, Handlers, handles
from services.runtime.models.measure import measure

_log = logging.getLogger("linckia.retrieve")
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
T = TypeVar("T")


class RetrieveService:
    """The handlers of the operations."""

    def __init__(self, env: Environment, settings: Settings, collections: Collections) -> None:
        self._env = env
        self._settings = settings
        self._collections = collections
        self._patience = Patience(settings.query_embed_s)
        self._queries = QueryVectors()
        self._pace = Pace(settings.rerank_s)
        self._nearby: dict[str, GroupNeighbours] = {}

    @handles(RetrievePut)
    async def put(self, params: RetrievePut, ctx: Context) -> Written:
        return await self._collections.ask(params.collection, lambda each: _written(each, each.put(params.groups)))

    @handles(RetrieveDelete)
    async def delete(self, params: RetrieveDelete, ctx: Context) -> Written:
        name = params.collection
        return await self._collections.ask(name, lambda each: _written(each, each.delete(params.groups)), Written())

    @handles(RetrieveScrub)
    async def scrub(self, params: RetrieveScrub, ctx: Context) -> Scrubbed:
        return await self._collections.ask(params.collection, Collection.scrub, Scrubbed())

    @handles(RetrieveEpoch)
    async def epoch(self, params: RetrieveEpoch, ctx: Context) -> CollectionEpoch:
        async def epoch(collection: Collection) -> CollectionEpoch:
            if collection.epoch == params.filled:
                await self._collections.filled(collection)
                with trio.move_on_after(params.wait_s):
                    await collection.ended.wait()
            now = await self._collections.find(params.collection) or collection
            return CollectionEpoch(epoch=now.epoch)

        return await self._collections.ask(params.collection, epoch)

    @handles(RetrieveSearch)
    async def search(self, params: RetrieveSearch, ctx: Context) -> SearchResult:
        nothing = SearchResult(stages=["lexical"])
        return await self._collections.ask(params.collection, lambda each: self.find(each, params, ctx), nothing)

    async def find(
        self, collection: Collection, params: RetrieveSearch, ctx: Context, given: QueryCall | None = None
    ) -> SearchResult:
        """Search one collection; with its query's vector `given`, nothing asks a model."""

        async def embed(query: EmbedTexts, timeout_s: float) -> EmbedResult:
            return await ctx.call(query, timeout_s=timeout_s)

        reranker: Reranker | LateReranker | None = None
        if self._settings.rerank != "off" and not collection.is_given:
            of_kind = Reranker if self._settings.rerank == "auto" else LateReranker
            reranker = of_kind(ctx.call, self._pace)
        rebuild = partial(self._collections.patiently, collection, "words", collection.rebuild_words)
        repair = partial(self._env.background.start_soon, rebuild)
        known = given or self._queries.known(params.query, collection.fingerprint)
        # What asks nobody says nothing of how quick the embedder is.
        patience = self._patience if known is None else Patience(self._settings.query_embed_s)
        vector = known or self._queries.by(embed, lambda: collection.fingerprint)
        found = await search(collection, params, vector, patience, repair, reranker)
        collection.hurry(hit.group for hit in found.hits if hit.vector is None)
        return found

    @handles(RetrieveStatus)
    async def status(self, params: RetrieveStatus, ctx: Context) -> CollectionStatus:
        name = params.collection
        return await self._collections.ask(name, Collection.status, CollectionStatus(collection=name))

    @handles(RetrieveGroups)
    async def groups(self, params: RetrieveGroups, ctx: Context) -> GroupIds:
        page = partial(store.group_ids, after=params.after, limit=params.limit)
        return await self._collections.ask(params.collection, lambda each: each.read(page), GroupIds())

    @handles(RetrieveSimilar)
    async def similar(self, params: RetrieveSimilar, ctx: Context) -> Neighbours:
        async def similar(collection: Collection) -> Neighbours:
            found = await self._near(collection).similar(params.group, params.limit, params.threshold)
            if not found.has_vector:
                collection.hurry([params.group])
            return found

        return await self._collections.ask(params.collection, similar, Neighbours())

    @handles(RetrievePairs)
    async def pairs(self, params: RetrievePairs, ctx: Context) -> Pairs:
        asked = (params.threshold, params.limit, params.nearest)
        return await self._collections.ask(params.collection, lambda each: self._near(each).pairs(*asked), Pairs())

    @handles(RetrieveClusters)
    async def clusters(self, params: RetrieveClusters, ctx: Context) -> Grouping:
        return await self._collections.ask(
            params.collection, lambda each: self._near(each).clusters(params), Grouping()
        )

    def _near(self, collection: Collection) -> GroupNeighbours:
        found = self._nearby.get(collection.name)
        if found is None or found.collection is not collection:
            found = self._nearby[collection.name] = GroupNeighbours(collection)
        return found


async def _written(collection: Collection, change: Awaitable[Change]) -> Written:
    return Written(vectors_waiting=(await change).progress.waiting, epoch=collection.epoch)


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Ready once all databases are open."""
    settings = env.settings_as(Settings)
    collections = Collections(env, settings)
    of_clients = Collections(env, settings, own.FILES, Kind.SOURCE)
    await collections.open_all()
    for each in (collections, of_clients):
        env.at_rest(each.give_back)
    env.background.start_soon(collections.release)
    # Nothing but a call for one of them waits for these, and that opens it.
    env.background.start_soon(of_clients.open_all)
    service = RetrieveService(env, settings, collections)
    quota = own.Quota(settings.collections, settings.collection_documents, settings.collection_bytes)
    try:
        yield Handlers(service, own.OwnCollections(of_clients, service.find, quota, partial(measure, env.settings)))
    finally:
        with trio.CancelScope(shield=True):
            await collections.close()
            await of_clients.close()
