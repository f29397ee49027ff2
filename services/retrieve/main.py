"""The service `retrieve`: handles its operations on the collections that `open_collections` keeps open."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Sequence
from functools import partial

import trio

from proto.errors import InvalidParams
from proto.ops import retrieve as ops
from proto.ops.embed import EmbedResult, EmbedTexts
from services.retrieve import client_collections, operations, places
from services.retrieve.collection import Collection
from services.retrieve.item_store import Change
from services.retrieve.migration import Migration
from services.retrieve.open_collections import Collections, RetrieveSettings
from services.retrieve.outside_vectors import OutsideVectors
from services.retrieve.ranking.neighbours import GroupNeighbours
from services.retrieve.ranking.queries import Patience, QueryCall, QueryVectors
from services.retrieve.ranking.reranking import LateReranker, Pace, Reranker
from services.retrieve.ranking.search import search
from services.retrieve.store import Snapshot
from services.runtime.handlers import Context, Environment, Handlers, handles
from services.shared.models.measure import measure


class RetrieveService:
    """Operation handlers."""

    def __init__(
        self,
        env: Environment,
        settings: RetrieveSettings,
        collections: Collections,
        migrations: Sequence[Migration] = (),
    ) -> None:
        self._env = env
        self._settings = settings
        self._collections = collections
        self._migrations = migrations
        self._patience = Patience(settings.query_embed_s)
        self._queries = QueryVectors()
        self._pace = Pace(settings.rerank_s)
        self._group_neighbours: dict[str, GroupNeighbours] = {}

    @handles(ops.RetrievePut)
    async def put(self, params: ops.RetrievePut, ctx: Context) -> ops.Written:
        return await self._collections.ask(params.collection, lambda each: _written(each, each.put(params.groups)))

    @handles(ops.RetrieveDelete)
    async def delete(self, params: ops.RetrieveDelete, ctx: Context) -> ops.Written:
        name = params.collection
        return await self._collections.ask(name, lambda each: _written(each, each.delete(params.groups)), ops.Written())

    @handles(ops.RetrieveScrub)
    async def scrub(self, params: ops.RetrieveScrub, ctx: Context) -> ops.Scrubbed:
        return await self._collections.ask(params.collection, lambda each: each.scrub(), ops.Scrubbed())

    @handles(ops.RetrieveEpoch)
    async def epoch(self, params: ops.RetrieveEpoch, ctx: Context) -> ops.CollectionEpoch:
        async def epoch(collection: Collection) -> ops.CollectionEpoch:
            if collection.epoch == params.filled:
                await self._collections.filled(collection)
                with trio.move_on_after(params.wait_s):
                    await collection.ended.wait()
            now = await self._collections.find(params.collection) or collection
            return ops.CollectionEpoch(epoch=now.epoch)

        return await self._collections.ask(params.collection, epoch)

    @handles(ops.RetrieveSearch)
    async def search(self, params: ops.RetrieveSearch, ctx: Context) -> ops.SearchResult:
        nothing = ops.SearchResult(stages=["lexical"])
        return await self._collections.ask(params.collection, lambda each: self.find(each, params, ctx), nothing)

    async def find(
        self, collection: Collection, params: ops.RetrieveSearch, ctx: Context, given: QueryCall | None = None
    ) -> ops.SearchResult:
        """Search one collection.  If `given` supplies the query vector, no model is called."""

        async def embed(query: EmbedTexts, timeout_s: float) -> EmbedResult:
            return await ctx.call(query, timeout_s=timeout_s)

        reranker: Reranker | LateReranker | None = None
        if self._settings.rerank != "off" and not collection.has_client_vectors:
            of_kind = Reranker if self._settings.rerank == "auto" else LateReranker
            reranker = of_kind(ctx.call, self._pace)
        rebuild = partial(self._collections.retry_when_full, collection, "words", collection.rebuild_words)
        repair = partial(self._env.background.start_soon, rebuild)
        known = given or self._queries.cached(params.query, collection.fingerprint)
        # A cached vector says nothing about how fast the embedder is.
        patience = self._patience if known is None else Patience(self._settings.query_embed_s)
        vector = known or self._queries.shared(embed, lambda: collection.fingerprint)
        found = await search(collection, params, vector, patience, repair, reranker)
        collection.prioritize(hit.group for hit in found.hits if hit.vector is None)
        return found

    @handles(ops.RetrieveStatus)
    async def status(self, params: ops.RetrieveStatus, ctx: Context) -> ops.CollectionStatus:
        name = params.collection
        return await self._collections.ask(name, lambda each: each.status(), ops.CollectionStatus(collection=name))

    @handles(ops.RetrieveGroups)
    async def groups(self, params: ops.RetrieveGroups, ctx: Context) -> ops.GroupIds:
        def page(store: Snapshot) -> ops.GroupIds:
            return store.group_ids(params.after, params.limit)

        return await self._collections.ask(params.collection, lambda each: each.read(page), ops.GroupIds())

    @handles(operations.RetrieveMigrate)
    async def migrate(self, params: operations.RetrieveMigrate, ctx: Context) -> operations.Migrated:
        if not self._migrations:
            raise InvalidParams(
                "parameter `to`: no PostgreSQL server is set; set `dsn_env` in [retrieve] and restart the kernel",
                field="to",
            )
        to_server = params.to == "postgres"
        until = trio.current_time() + params.for_s
        moved: list[str] = []
        moving: operations.Moving | None = None
        left: list[str] = []
        if params.collection:
            names = sorted([name for each in self._migrations for name in await each.names()])
            if params.collection not in names:
                there = ", ".join(names) or "none"
                raise InvalidParams(
                    f"parameter `collection`: {params.collection!r} does not exist; there are: {there}",
                    field="collection",
                )
        for migration in self._migrations:
            for name in await migration.waiting(to_server=to_server, only=params.collection):
                if trio.current_time() >= until:
                    left.append(name)
                    continue
                moving = await migration.work(name, to_server=to_server, until=until)
                (moved if moving.done else left).append(name)
                ctx.progress(moving.copied, moving.groups, f"{name}: copied")
        return operations.Migrated(moved=moved, moving=moving, left=left)

    @handles(ops.RetrieveSimilar)
    async def similar(self, params: ops.RetrieveSimilar, ctx: Context) -> ops.Neighbours:
        async def similar(collection: Collection) -> ops.Neighbours:
            found = await self._neighbours(collection).similar(params.group, params.limit, params.threshold)
            if not found.has_vector:
                collection.prioritize([params.group])
            return found

        return await self._collections.ask(params.collection, similar, ops.Neighbours())

    @handles(ops.RetrievePairs)
    async def pairs(self, params: ops.RetrievePairs, ctx: Context) -> ops.Pairs:
        asked = (params.threshold, params.limit, params.nearest)
        return await self._collections.ask(
            params.collection, lambda each: self._neighbours(each).pairs(*asked), ops.Pairs()
        )

    @handles(ops.RetrieveClusters)
    async def clusters(self, params: ops.RetrieveClusters, ctx: Context) -> ops.Grouping:
        return await self._collections.ask(
            params.collection, lambda each: self._neighbours(each).clusters(params), ops.Grouping()
        )

    def _neighbours(self, collection: Collection) -> GroupNeighbours:
        found = self._group_neighbours.get(collection.name)
        if found is None or found.collection is not collection:
            found = self._group_neighbours[collection.name] = GroupNeighbours(collection)
        return found


async def _written(collection: Collection, change: Awaitable[Change]) -> ops.Written:
    return ops.Written(vectors_waiting=(await change).progress.waiting, epoch=collection.epoch)


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Yield the handlers once all databases are open."""
    settings = env.settings_as(RetrieveSettings)
    of_services, of_clients = places.engines(env, settings)
    collections = Collections(env, settings, of_services)
    clients = Collections(env, settings, of_clients)
    if settings.dsn_env or settings.store != "local":
        # A server may be away.
        env.background.start_soon(collections.open_all)
        env.background.start_soon(collections.keep_open)
        env.background.start_soon(clients.keep_open)
    else:
        await collections.open_all()
    for each in (collections, clients):
        env.at_rest(each.give_back)
    env.background.start_soon(collections.release)
    # Startup does not wait for these: a call opens the collection it needs.
    env.background.start_soon(clients.open_all)
    migrations = [
        Migration(each, engine)
        for each, engine in ((collections, of_services), (clients, of_clients))
        if isinstance(engine, places.Places)
    ]
    service = RetrieveService(env, settings, collections, migrations)
    try:
        yield Handlers(
            service,
            client_collections.ClientCollections(clients, service.find, settings, partial(measure, env.settings)),
            OutsideVectors(collections, clients),
        )
    finally:
        with trio.CancelScope(shield=True):
            await collections.close()
            await clients.close()
