"""The open collections, each with its background tasks.

A collection that cannot be opened fails only its own calls. A damaged one is recreated, and its corpus feeds it again.
The service is ready as soon as the databases are open. Words are checked and vectors loaded once a call needs them, or
a moment later.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import trio
from msgspec import Meta

from proto.errors import LinckiaError, Unavailable
from services.retrieve.collection import Collection
from services.retrieve.engine import Engine
from services.retrieve.index.segment import VectorLimits
from services.retrieve.vector_outbox import VectorFeed, run_outbox
from services.runtime.database import Kind
from services.runtime.handlers import Environment
from services.runtime.storage import retry_when_full

_log = logging.getLogger("linckia.retrieve")
REOPEN_S = 5.0
"""How often collections are opened that could not be."""

T = TypeVar("T")


class RetrieveSettings(VectorLimits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[services.retrieve]`."""

    readers: Annotated[int, Meta(ge=1, le=64, description="Threads that may read at once")] = 4
    query_embed_s: Annotated[float, Meta(gt=0, description="How long a search waits for its query's vector")] = 4.0
    rerank: Annotated[
        Literal["auto", "off", "maxsim"],
        Meta(description="auto: where `rerank` has a model; maxsim: by the embedder's own token vectors"),
    ] = "auto"
    rerank_s: Annotated[float, Meta(gt=0, description="How long a search waits for its reranking")] = 2.0
    # From about this size, a broad query takes FTS5 longer than all other steps of a search.
    large_words: Annotated[int, Meta(ge=1, description="Pieces from which tantivy is asked for words, not FTS5")] = (
        5_000
    )
    store: Annotated[
        Literal["local", "postgres"], Meta(description="Where new collections are kept: in files, or on a server")
    ] = "local"
    dsn_env: Annotated[
        str, Meta(description="Variable of the environment with the connection string of a PostgreSQL server")
    ] = ""
    schema: Annotated[
        str, Meta(pattern="^[a-z][a-z0-9_]{0,62}$", description="The server's schema that has Linckia's tables")
    ] = "linckia"
    server_index: Annotated[
        Literal["hnsw", "binary"],
        Meta(description="The server's index of vectors: of 16-bit numbers, or of one bit each, which are rescored"),
    ] = "hnsw"
    server_search: Annotated[
        int, Meta(ge=10, le=1000, description="Candidates that a search of the server's index keeps (hnsw.ef_search)")
    ] = 100
    server_build_memory: Annotated[
        str, Meta(pattern="^[0-9]+(MB|GB)$", description="The server's memory while it builds an index")
    ] = "1GB"
    machine: Annotated[str, Meta(description="Name of this machine on the server; default: its host name")] = ""
    passage_embed_s: Annotated[float, Meta(gt=0, description="How long the outbox waits for a batch")] = 120.0
    embedder: Annotated[dict[str, Any], Meta(description="Settings of `embed`, by which texts are cut")] = (
        msgspec.field(default_factory=dict)
    )
    collections: Annotated[int, Meta(ge=0, description="Collections that clients may create")] = 64
    collection_documents: Annotated[int, Meta(ge=0, description="Documents in each of these")] = 100_000
    collection_bytes: Annotated[int, Meta(ge=0, description="Bytes that each is given at most")] = 1 << 30


class Collections:
    """The collections of an engine by name.  Each is opened once, and reopened if it was found damaged."""

    def __init__(self, env: Environment, settings: RetrieveSettings, engine: Engine) -> None:
        self._env = env
        self._engine = engine
        self._settings = settings
        self._open: dict[str, Collection] = {}
        self._troubled: set[str] = set()
        self._opening = trio.Lock()
        self._workers: dict[str, tuple[trio.CancelScope, trio.Event]] = {}

    async def open_all(self) -> None:
        """Open all collections.  If one fails, each call for it tries again."""
        broken = []
        for name in await self._listed():
            try:
                await self.find(name)
            except LinckiaError as error:
                broken.append(name)
                _log.error("%s", error)
        self._show()
        self._env.info(**{self._label("broken"): ", ".join(broken)})

    async def _listed(self) -> list[str]:
        try:
            return await self.names()
        except LinckiaError as error:
            _log.error("%s", error)
            return []

    async def names(self) -> list[str]:
        """Return the names of all collections, sorted.  Raises Unavailable."""
        return await self._engine.names()

    async def keep_open(self) -> None:
        """Open collections that could not be opened, until cancelled: a server may be reached again."""
        while True:
            await trio.sleep(REOPEN_S)
            for name in await self._listed():
                if name not in self._open:
                    with contextlib.suppress(LinckiaError):
                        await self.find(name)

    def _label(self, what: str) -> str:
        return what if self._engine.kind is Kind.DERIVED else f"{what} of clients"

    def _show(self) -> None:
        none = "none" if self._engine.kind is Kind.DERIVED else ""
        self._env.info(**{self._label("collections"): ", ".join(sorted(self._open)) or none})

    async def find(self, name: str, *, make: bool = False) -> Collection | None:
        """Return the collection.  If it does not exist, create it if `make`, else return None.

        Raises:
            OperationError: it cannot be opened.
        """
        collection = self._open.get(name)
        if collection is not None and not collection.was_recreated:
            return collection
        async with self._opening:
            collection = self._open.get(name)
            if collection is not None and not collection.was_recreated:
                return collection
            # One that was recreated may have been removed, or moved, by another machine.
            exists = make or await self._engine.holds(name)
            if collection is not None:
                await self._close_one(collection)
            opened = await self._open_one(name, make=make) if exists else None
            if collection is not None:
                collection.ended.set()
        self._show()
        return opened

    async def remove(self, name: str) -> bool:
        """Close an unused collection and remove its files.  Returns whether it existed."""
        async with self._opening:
            if (collection := self._open.get(name)) is not None:
                await self._close_one(collection)
            self._show()
            return await self._engine.remove(name)

    async def swap(self, name: str, flip: Callable[[], Awaitable[None]]) -> None:
        """Freeze a collection while `flip` moves it, then open it where it is now.  Calls that come meanwhile wait."""
        async with self._opening:
            collection = self._open[name]
            await collection.freeze()
            # It must not use what `flip` closes.
            await self._stop(name)
            try:
                await flip()
            finally:
                with trio.CancelScope(shield=True):
                    await self._close_one(collection)
                    # `flip` may have failed at any step, so the engine says which place holds it. If that fails, the
                    # next call tries again.
                    with contextlib.suppress(LinckiaError):
                        await self._open_one(name, make=False)
                collection.ended.set()
        self._show()

    async def ask(self, name: str, question: Callable[[Collection], Awaitable[T]], otherwise: T | None = None) -> T:
        """Run `question` on a collection.

        If the collection does not exist, return `otherwise`, or create it if that is None. If it is found damaged
        meanwhile, it is recreated and `question` runs again.
        """
        if (collection := await self.find(name, make=otherwise is None)) is None:
            assert otherwise is not None
            return otherwise
        try:
            return await question(collection)
        except Unavailable:
            if not collection.was_recreated or (again := await self.find(name)) is None:
                raise
            return await question(again)

    async def _open_one(self, name: str, *, make: bool) -> Collection | None:
        reopen = partial(self._env.background.start_soon, self._reopen, name)
        collection = await (self._engine.open(name, reopen) if make else self._engine.open_existing(name, reopen))
        if collection is None:
            return None
        self._open[name] = collection
        self._workers[name] = (trio.CancelScope(), trio.Event())
        self.report(collection, "refilling", collection.refilling)
        self._env.backlogs[f"vectors of {name}"] = collection.backlog
        self._env.background.start_soon(self._keep_up, collection)
        return collection

    async def _reopen(self, name: str) -> None:
        if name in self._open:
            with contextlib.suppress(LinckiaError):  # The next call tries again and reports the error.
                await self.find(name)

    async def _keep_up(self, collection: Collection) -> None:
        scope, ended = self._workers[collection.name]
        try:
            with scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(collection.maintain, self)
                    await collection.loaded.wait()
                    await collection.leads.wait()
                    if not collection.has_client_vectors:
                        nursery.start_soon(run_outbox, self._env, collection, self._feed(collection))
        finally:
            ended.set()

    def _feed(self, collection: Collection) -> VectorFeed:
        embed = partial(self._env.call, timeout_s=self._settings.passage_embed_s)
        return VectorFeed(collection, embed, partial(self._env.call, timeout_s=self._settings.query_embed_s))

    async def wanted_or_calm(self, wanted: trio.Event) -> None:
        """Wait until a call needs it or the startup rush is over, since most calls need only one of the collections."""
        async with trio.open_nursery() as nursery:

            async def until(waited_for: Callable[[], Awaitable[None]]) -> None:
                await waited_for()
                nursery.cancel_scope.cancel()

            nursery.start_soon(until, wanted.wait)
            nursery.start_soon(until, self._env.after_the_rush)

    async def retry_when_full(self, collection: Collection, of: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work`, pausing while the disk is full.  If the database is recreated, its successor does the work."""
        try:
            await retry_when_full(self._env, f"{of}_{collection.name}", work)
        except Unavailable:
            if not collection.was_recreated:
                raise
            await trio.sleep_forever()

    def report(self, collection: Collection, of: str, trouble: str) -> None:
        name = f"{of}_{collection.name}"
        if trouble or name in self._troubled:
            self._troubled.add(name)
            self._env.info(**{name: trouble or "in order"})

    async def release(self) -> None:
        """When the service ends, release the calls that wait for a collection to be recreated."""
        await self._env.ending.wait()
        for collection in self._open.values():
            collection.ended.set()

    async def filled(self, collection: Collection) -> None:
        """Record that the corpus has finished refilling the collection."""
        await collection.filled()
        self.report(collection, "refilling", "")

    async def give_back(self) -> None:
        """See `Database.give_back`."""
        for collection in tuple(self._open.values()):
            await collection.give_back()

    async def close(self) -> None:
        """Stop the background tasks, then close the databases."""
        for collection in tuple(self._open.values()):
            await self._close_one(collection)
        await trio.to_thread.run_sync(self._engine.close)

    async def _close_one(self, collection: Collection) -> None:
        del self._open[collection.name]
        del self._env.backlogs[f"vectors of {collection.name}"]
        await self._stop(collection.name)
        await trio.to_thread.run_sync(collection.close)

    async def _stop(self, name: str) -> None:
        """End the background tasks of a collection."""
        scope, ended = self._workers[name]
        scope.cancel()
        await ended.wait()
