"""The service `retrieve`: opens what collections there are, answers its operations, and keeps vectors coming.

A collection that cannot be opened fails its own calls and no other's. The service is ready as soon as its databases
are open; a collection's words are checked, and its vectors brought into memory, once a call waits for them, or else
a moment later.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import trio
from msgspec import Meta

from proto.errors import InvalidParams, LinckiaError
from proto.operation import Params
from proto.ops.embed import EmbedModel, EmbedModelParams, EmbedResult, EmbedTexts
from proto.ops.retrieve import (
    CollectionStatus,
    DeleteResult,
    Fusion,
    Group,
    GroupIds,
    Grouping,
    Item,
    Neighbours,
    Pairs,
    PutResult,
    RetrieveClusters,
    RetrieveDelete,
    RetrieveGroups,
    RetrievePairs,
    RetrievePut,
    RetrieveScrub,
    RetrieveSearch,
    RetrieveSimilar,
    RetrieveStatus,
    Scrubbed,
    SearchResult,
)
from services.retrieve.collection import Collection
from services.retrieve.neighbours import GroupNeighbours
from services.retrieve.outbox import run_outbox
from services.retrieve.reranking import LateReranker, Pace, Reranker
from services.retrieve.search import Patience, search
from services.retrieve.segmented import Limits
from services.retrieve.tending import run_tending, run_words
from services.runtime.handlers import Context, Environment, Handlers

_log = logging.getLogger("linckia.retrieve")
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")


class Settings(Limits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[services.retrieve]`."""

    readers: Annotated[int, Meta(ge=1, le=64, description="Threads that may read at once")] = 4
    query_embed_s: Annotated[float, Meta(gt=0, description="How long a search waits for its query's vector")] = 4.0
    rerank: Annotated[
        Literal["auto", "off", "maxsim"],
        Meta(description="auto: where `rerank` has a model; maxsim: by the embedder's own token vectors"),
    ] = "auto"
    rerank_s: Annotated[float, Meta(gt=0, description="How long a search waits for its reranking")] = 2.0
    large_words: Annotated[
        int,
        Meta(
            ge=1,
            description="Pieces of a collection from which words are looked up by tantivy instead of SQLite's FTS5; at "
            "the default a broad query begins to take longer there than all else that a search does",
        ),
    ] = 5_000
    passage_embed_s: Annotated[float, Meta(gt=0, description="How long the outbox waits for a batch")] = 120.0


class Collections:
    """The collections of one folder by name, opened once each."""

    def __init__(self, env: Environment, settings: Settings) -> None:
        self._env = env
        self._settings = settings
        self._folder: Path = env.data_dir
        self._readers = trio.CapacityLimiter(settings.readers)
        self._open: dict[str, Collection] = {}
        self._broken: dict[str, LinckiaError] = {}
        self._troubled: set[str] = set()
        self._opening = trio.Lock()
        self._workers: dict[str, tuple[trio.CancelScope, trio.Event]] = {}

    async def open_all(self) -> None:
        """Open what is there; a collection that cannot be is remembered with its reason."""
        for path in sorted(self._folder.glob("*.db")):
            if _NAME.fullmatch(path.stem):
                try:
                    await self._open_one(path.stem)
                except LinckiaError as error:
                    self._broken[path.stem] = error
        self._show()

    def existing(self, name: str) -> Collection | None:
        """None where the collection was never written.  Raises what kept it from being opened."""
        if name in self._broken:
            raise self._broken[name]
        return self._open.get(name)

    async def get_or_make(self, name: str) -> Collection:
        """The collection, made where it is not there yet."""
        async with self._opening:
            collection = self.existing(name) or await self._open_one(name)
        self._show()
        return collection

    async def _open_one(self, name: str) -> Collection:
        settings = self._settings
        collection = await trio.to_thread.run_sync(
            Collection.open, name, self._folder, self._readers, settings, settings.large_words
        )
        self._open[name] = collection
        self._workers[name] = (trio.CancelScope(), trio.Event())
        self._env.background.start_soon(self._keep_up, collection)
        return collection

    async def _keep_up(self, collection: Collection) -> None:
        scope, ended = self._workers[collection.name]
        try:
            with scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._keep_words, collection)
                    await self._wanted_or_calm(collection.vectors_wanted)
                    await collection.load()
                    nursery.start_soon(run_tending, collection, partial(self._tell, collection, "index"))
                    nursery.start_soon(run_outbox, collection, self._embed, self._model)
        finally:
            ended.set()

    async def _keep_words(self, collection: Collection) -> None:
        await self._wanted_or_calm(collection.words_wanted)
        report = partial(self._tell, collection, "words")
        if collection.words_settled.is_set():
            # FTS5 is asked, and searches wait for its check alone.
            await self._check_words(collection)
            await run_words(collection, report)
        else:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run_words, collection, report)
                nursery.start_soon(self._check_words, collection)

    async def _wanted_or_calm(self, wanted: trio.Event) -> None:
        """Until a call waits for it, or none has to be let go first: most calls ask for one collection of several."""
        async with trio.open_nursery() as nursery:

            async def until(waited_for: Callable[[], Awaitable[None]]) -> None:
                await waited_for()
                nursery.cancel_scope.cancel()

            nursery.start_soon(until, wanted.wait)
            nursery.start_soon(until, self._env.after_the_rush)

    async def _check_words(self, collection: Collection) -> None:
        if damage := await collection.check_words():
            _log.warning("the words of %s are made anew: %s", collection.name, damage)
            await self.repair(collection)

    async def _embed(self, params: EmbedTexts) -> EmbedResult:
        return await self._env.call(params, timeout_s=self._settings.passage_embed_s)

    async def _model(self, params: EmbedModelParams) -> EmbedModel:
        return await self._env.call(params, timeout_s=self._settings.query_embed_s)

    def _tell(self, collection: Collection, of: str, trouble: str) -> None:
        name = f"{of}_{collection.name}"
        if trouble or name in self._troubled:
            self._troubled.add(name)
            self._env.info(**{name: trouble or "in order"})

    def _show(self) -> None:
        self._env.info(collections=", ".join(sorted(self._open)) or "none", broken=", ".join(sorted(self._broken)))

    async def repair(self, collection: Collection) -> None:
        """Make the collection's word index anew; where that fails too, `status` says so and vectors go on answering."""
        try:
            await collection.rebuild_words()
        except (LinckiaError, sqlite3.DatabaseError) as error:
            self._env.info(damaged=f"{collection.name}: {error}")

    async def give_back(self) -> None:
        """See `Collection.give_back`."""
        for collection in tuple(self._open.values()):
            await collection.give_back()

    async def close(self) -> None:
        """End the work on the databases, then close them."""
        for collection in self._open.values():
            scope, ended = self._workers[collection.name]
            scope.cancel()
            await ended.wait()
            await trio.to_thread.run_sync(collection.close)


def rehearse(root: Path, settings: Mapping[str, Any]) -> Sequence[Params[Any]]:
    """Put a note, and find it by its words."""
    piece = Item(key="1", heading="Sea stars", text="A sea star grows back any arm that it has lost.", embed=False)
    note = Group(id="a", title="Sea stars", items=[piece])
    search = RetrieveSearch(collection="notes", query="what grows back an arm", fusion=Fusion(method="lexical"))
    return (RetrievePut(collection="notes", groups=[note]), search, RetrieveStatus(collection="notes"), search)


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Ready once all databases are open."""
    try:
        settings = msgspec.convert(env.settings, Settings)
    except msgspec.ValidationError as error:
        raise InvalidParams(f"settings of retrieve: {error}") from None
    collections = Collections(env, settings)
    await collections.open_all()
    env.at_rest(collections.give_back)
    patience = Patience(settings.query_embed_s)
    # Until the embedder has answered once it may well be loading its model, which takes seconds.
    patience.learn(answered=False)
    pace = Pace(settings.rerank_s)
    handlers = Handlers()

    @handlers.handle(RetrievePut)
    async def put(params: RetrievePut, ctx: Context) -> PutResult:
        collection = await collections.get_or_make(params.collection)
        change = await collection.put(params.groups)
        return PutResult(
            groups=change.groups,
            items_written=change.written,
            items_unchanged=change.unchanged,
            items_removed=change.removed,
            vectors_waiting=change.waiting,
        )

    @handlers.handle(RetrieveDelete)
    async def delete(params: RetrieveDelete, ctx: Context) -> DeleteResult:
        collection = collections.existing(params.collection)
        if collection is None:
            return DeleteResult(groups=0, items=0)
        change = await collection.delete(params.groups)
        return DeleteResult(groups=change.groups, items=change.removed)

    @handlers.handle(RetrieveScrub)
    async def scrub(params: RetrieveScrub, ctx: Context) -> Scrubbed:
        collection = collections.existing(params.collection)
        if collection is not None:
            await collection.scrub()
        return Scrubbed()

    @handlers.handle(RetrieveSearch)
    async def find(params: RetrieveSearch, ctx: Context) -> SearchResult:
        collection = collections.existing(params.collection)
        if collection is None:
            return SearchResult(hits=[], stages=["lexical"], source="lexical")

        async def embed(query: EmbedTexts, timeout_s: float) -> EmbedResult:
            return await ctx.call(query, timeout_s=timeout_s)

        def repair() -> None:
            env.background.start_soon(collections.repair, collection)

        reranker: Reranker | LateReranker | None = None
        if settings.rerank != "off":
            reranker = Reranker(ctx.call, pace) if settings.rerank == "auto" else LateReranker(ctx.call, pace)
        return await search(collection, params, embed, patience, repair, reranker)

    @handlers.handle(RetrieveStatus)
    async def status(params: RetrieveStatus, ctx: Context) -> CollectionStatus:
        collection = collections.existing(params.collection)
        if collection is None:
            return CollectionStatus(
                collection=params.collection,
                groups=0,
                items=0,
                vectors=0,
                vectors_waiting=0,
                fingerprint=None,
                size_bytes=0,
                index="none",
            )
        return await collection.status()

    @handlers.handle(RetrieveGroups)
    async def groups(params: RetrieveGroups, ctx: Context) -> GroupIds:
        collection = collections.existing(params.collection)
        if collection is None:
            return GroupIds(ids=[], more=False)
        return await collection.group_ids(params.after, params.limit)

    nearby: dict[str, GroupNeighbours] = {}

    def neighbours_in(name: str) -> GroupNeighbours | None:
        collection = collections.existing(name)
        return None if collection is None else nearby.setdefault(name, GroupNeighbours(collection))

    @handlers.handle(RetrieveSimilar)
    async def similar(params: RetrieveSimilar, ctx: Context) -> Neighbours:
        found = neighbours_in(params.collection)
        if found is None:
            return Neighbours(neighbours=[], has_vector=False)
        return await found.similar(params.group, params.limit, params.threshold)

    @handlers.handle(RetrievePairs)
    async def pairs(params: RetrievePairs, ctx: Context) -> Pairs:
        found = neighbours_in(params.collection)
        if found is None:
            return Pairs(pairs=[], more=False, groups=0)
        return await found.pairs(params.threshold, params.limit)

    @handlers.handle(RetrieveClusters)
    async def clusters(params: RetrieveClusters, ctx: Context) -> Grouping:
        found = neighbours_in(params.collection)
        if found is None:
            return Grouping(clusters=[], groups=0)
        return await found.clusters(params)

    try:
        yield handlers
    finally:
        with trio.CancelScope(shield=True):
            await collections.close()
