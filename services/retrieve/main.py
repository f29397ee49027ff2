"""The service `retrieve`: opens what collections there are, answers its operations, and keeps vectors coming.

A collection that cannot be opened fails its own calls and no other's; one that is found damaged is begun again, and its
corpus feeds it again. The service is ready as soon as its databases are open; words are checked, and vectors brought
into memory, once a call waits for them, or else a moment later.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import trio
from msgspec import Meta

from proto.errors import LinckiaError, Unavailable
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
from services.retrieve.outbox import VectorFeed, run_outbox
from services.retrieve.patience import Patience
from services.retrieve.queries import QueryVectors
from services.retrieve.reranking import LateReranker, Pace, Reranker
from services.retrieve.search import QueryCall, search
from services.retrieve.segment import Limits
from services.runtime.database import Kind
from services.runtime.handlers import Context, Environment, Handlers, handles
from services.runtime.models.measure import measure
from services.runtime.storage import patiently

_log = logging.getLogger("linckia.retrieve")
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
T = TypeVar("T")


class Settings(Limits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[services.retrieve]`."""

    readers: Annotated[int, Meta(ge=1, le=64, description="Threads that may read at once")] = 4
    query_embed_s: Annotated[float, Meta(gt=0, description="How long a search waits for its query's vector")] = 4.0
    rerank: Annotated[
        Literal["auto", "off", "maxsim"],
        Meta(description="auto: where `rerank` has a model; maxsim: by the embedder's own token vectors"),
    ] = "auto"
    rerank_s: Annotated[float, Meta(gt=0, description="How long a search waits for its reranking")] = 2.0
    # From about here on a broad query takes FTS5 longer than all else that a search does.
    large_words: Annotated[int, Meta(ge=1, description="Pieces from which tantivy is asked for words, not FTS5")] = (
        5_000
    )
    passage_embed_s: Annotated[float, Meta(gt=0, description="How long the outbox waits for a batch")] = 120.0
    embedder: Annotated[dict[str, Any], Meta(description="Settings of `embed`, by which texts are cut")] = (
        msgspec.field(default_factory=dict)
    )
    collections: Annotated[int, Meta(ge=0, description="Collections that clients may create")] = 64
    collection_documents: Annotated[int, Meta(ge=0, description="Documents in each of these")] = 100_000
    collection_bytes: Annotated[int, Meta(ge=0, description="Bytes that each is given at most")] = 1 << 30


class Collections:
    """The collections of one folder by name, opened once each, and again where one was found damaged.

    Args:
        files: what the names of their files are like, and `kind`, whether these can be fed again.
    """

    def __init__(
        self, env: Environment, settings: Settings, files: re.Pattern[str] = _NAME, kind: Kind = Kind.DERIVED
    ) -> None:
        self._env = env
        self._files = files
        self._kind = kind
        self._settings = settings
        self._folder: Path = env.data_dir
        self._readers = trio.CapacityLimiter(settings.readers)
        self._open: dict[str, Collection] = {}
        self._troubled: set[str] = set()
        self._opening = trio.Lock()
        self._workers: dict[str, tuple[trio.CancelScope, trio.Event]] = {}

    async def open_all(self) -> None:
        """Open what is there; one that cannot be opened is tried again by each call for it."""
        broken = []
        for name in self.names():
            try:
                await self.find(name)
            except LinckiaError as error:
                broken.append(name)
                _log.error("%s", error)
        self._show()
        self._env.info(**{self._label("broken"): ", ".join(broken)})

    def names(self) -> list[str]:
        """Of those that there are."""
        return sorted(path.stem for path in self._folder.glob("*.db") if self._files.fullmatch(path.stem))

    def _label(self, what: str) -> str:
        return what if self._kind is Kind.DERIVED else f"{what} of clients"

    def _show(self) -> None:
        none = "none" if self._kind is Kind.DERIVED else ""
        self._env.info(**{self._label("collections"): ", ".join(sorted(self._open)) or none})

    async def find(self, name: str, *, make: bool = False) -> Collection | None:
        """The collection; None where it was never written, unless it is to be made.

        Raises:
            OperationError: what keeps it from being opened.
        """
        collection = self._open.get(name)
        if collection is not None and not collection.begun_again:
            return collection
        async with self._opening:
            collection = self._open.get(name)
            if collection is not None and not collection.begun_again:
                return collection
            if collection is not None:
                await self._close_one(collection)
            elif not make and not (self._folder / f"{name}.db").exists():
                return None
            opened = await self._open_one(name)
            if collection is not None:
                collection.ended.set()
        self._show()
        return opened

    async def remove(self, name: str) -> bool:
        """Close a collection that nothing uses and remove its files; whether there was one."""
        async with self._opening:
            if (collection := self._open.get(name)) is not None:
                await self._close_one(collection)
            self._show()
            return await trio.to_thread.run_sync(own.remove_files, self._folder, name)

    async def ask(self, name: str, question: Callable[[Collection], Awaitable[T]], otherwise: T | None = None) -> T:
        """The answer of a collection, or `otherwise` where it was never written; with none it is made.

        One that is found damaged meanwhile is begun again, and answers `question` as it is then.
        """
        if (collection := await self.find(name, make=otherwise is None)) is None:
            assert otherwise is not None
            return otherwise
        try:
            return await question(collection)
        except Unavailable:
            if not collection.begun_again or (again := await self.find(name)) is None:
                raise
            return await question(again)

    async def _open_one(self, name: str) -> Collection:
        settings = self._settings
        reopen = partial(self._env.background.start_soon, self._reopen, name)
        collection = await trio.to_thread.run_sync(
            Collection, name, self._folder, self._readers, settings, settings.large_words, reopen, self._kind
        )
        self._open[name] = collection
        self._workers[name] = (trio.CancelScope(), trio.Event())
        self._tell(collection, "refilling", collection.refilling)
        self._env.backlogs[f"vectors of {name}"] = collection.backlog
        self._env.background.start_soon(self._keep_up, collection)
        return collection

    async def _reopen(self, name: str) -> None:
        if name in self._open:
            with contextlib.suppress(LinckiaError):  # The next call tries again, and answers it.
                await self.find(name)

    async def _keep_up(self, collection: Collection) -> None:
        scope, ended = self._workers[collection.name]
        try:
            with scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._keep_words, collection)
                    await self._wanted_or_calm(collection.vectors_wanted)
                    await self.patiently(collection, "vectors", collection.load)
                    nursery.start_soon(collection.vectors.keep, collection, partial(self._tell, collection, "index"))
                    if not collection.is_given:
                        nursery.start_soon(run_outbox, self._env, collection, self._feed(collection))
        finally:
            ended.set()

    def _feed(self, collection: Collection) -> VectorFeed:
        embed = partial(self._env.call, timeout_s=self._settings.passage_embed_s)
        return VectorFeed(collection, embed, partial(self._env.call, timeout_s=self._settings.query_embed_s))

    async def _keep_words(self, collection: Collection) -> None:
        await self._wanted_or_calm(collection.words.wanted)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collection.words.keep, collection, partial(self._tell, collection, "words"))
            await self.patiently(collection, "words", partial(self._check_words, collection))

    async def _wanted_or_calm(self, wanted: trio.Event) -> None:
        """Until a call waits for it, or none has to be let go first: most calls ask for one collection of several."""
        async with trio.open_nursery() as nursery:

            async def until(waited_for: Callable[[], Awaitable[None]]) -> None:
                await waited_for()
                nursery.cancel_scope.cancel()

            nursery.start_soon(until, wanted.wait)
            nursery.start_soon(until, self._env.after_the_rush)

    async def _check_words(self, collection: Collection) -> None:
        if damage := await collection.words.check():
            _log.warning("the words of %s are rebuilt: %s", collection.name, damage)
            await collection.rebuild_words()

    async def patiently(self, collection: Collection, of: str, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work`, pausing while the disk is full; where the database is begun again, its successor does it."""
        try:
            await patiently(self._env, f"{of}_{collection.name}", work)
        except Unavailable:
            if not collection.begun_again:
                raise
            await trio.sleep_forever()

    def _tell(self, collection: Collection, of: str, trouble: str) -> None:
        name = f"{of}_{collection.name}"
        if trouble or name in self._troubled:
            self._troubled.add(name)
            self._env.info(**{name: trouble or "in order"})

    async def release(self) -> None:
        """At the service's end, answer the calls that wait for a collection to be begun again."""
        await self._env.ending.wait()
        for collection in self._open.values():
            collection.ended.set()

    async def filled(self, collection: Collection) -> None:
        """The corpus says that the collection has all that it should."""
        await collection.filled()
        self._tell(collection, "refilling", "")

    async def give_back(self) -> None:
        """See `Database.give_back`."""
        for collection in tuple(self._open.values()):
            await collection.give_back()

    async def close(self) -> None:
        """End the work on the databases, then close them."""
        for collection in tuple(self._open.values()):
            await self._close_one(collection)

    async def _close_one(self, collection: Collection) -> None:
        del self._open[collection.name]
        del self._env.backlogs[f"vectors of {collection.name}"]
        scope, ended = self._workers[collection.name]
        scope.cancel()
        await ended.wait()
        await trio.to_thread.run_sync(collection.close)


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
        async def put(collection: Collection) -> Written:
            change = await collection.put(params.groups)
            return Written(vectors_waiting=change.progress.waiting, epoch=collection.epoch)

        return await self._collections.ask(params.collection, put)

    @handles(RetrieveDelete)
    async def delete(self, params: RetrieveDelete, ctx: Context) -> Written:
        async def delete(collection: Collection) -> Written:
            change = await collection.delete(params.groups)
            return Written(vectors_waiting=change.progress.waiting, epoch=collection.epoch)

        return await self._collections.ask(params.collection, delete, Written())

    @handles(RetrieveScrub)
    async def scrub(self, params: RetrieveScrub, ctx: Context) -> Scrubbed:
        async def scrub(collection: Collection) -> Scrubbed:
            await collection.scrub()
            return Scrubbed()

        return await self._collections.ask(params.collection, scrub, Scrubbed())

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
        def find(collection: Collection) -> Awaitable[SearchResult]:
            return self.find(collection, params, ctx)

        return await self._collections.ask(params.collection, find, SearchResult(stages=["lexical"]))

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
