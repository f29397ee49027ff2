"""A collection on a PostgreSQL server, as one of the kernels that share it sees it.

What is in memory here (models, progress, statistics of words) is refreshed every few seconds, because other kernels
change it too. One kernel at a time embeds what waits, and builds indexes.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import trio
from psycopg import sql

from proto.errors import LinckiaError, Unavailable
from proto.ops.retrieve import Scrubbed
from services.retrieve.collection import Collection, Keeper
from services.retrieve.item_store import Change
from services.retrieve.postgres import staging, words
from services.retrieve.postgres.indexes import VectorIndexes
from services.retrieve.postgres.rows import Indexing, ServerVectors, WordCounts, given
from services.retrieve.postgres.server import READ_S, Connection, Gone, Lease, Server, parts
from services.retrieve.postgres.snapshot import ServerStore
from services.retrieve.postgres.staging import Staging
from services.retrieve.store import Snapshot, Transaction, VectorsLoading
from services.retrieve.vector_store import Model, Progress

T = TypeVar("T")

SMALL = 20_000
"""Up to this many items, words are counted at each search; beyond, they are taken from the server's statistics."""

REFRESH_S = 2.0
"""How often a kernel looks for what others changed."""

ANSWER_S = 20.0
"""How long the background work waits for the server."""

COUNT_S = 30.0
"""How often the statistics of a large collection are read."""

QUIET_S = 10.0
"""An index is built once nothing was written for so long: adding a million vectors to one takes several times as long
as building it from them."""

IMPATIENCE = 32
"""An index is built in spite of writes once there are so many times as many vectors as are compared one by one."""

SAMPLED = 20_000
"""Items whose average length stands for that of all."""

MOVE_S, MOVE_QUIET_S = 0.2, 1.0
"""How often a kernel looks for vectors to move into the index, and since when nothing was written. It waits for that
until half as many are staged as may be: a group that is replaced meanwhile is never moved."""

REINDEXED = 500
"""Items whose words are made again in one transaction."""


def moves(number: int) -> str:
    """Return the key of the lock of the kernel that moves this collection away."""
    return f"move {number}"


class PostgresCollection(Collection):
    """An open collection.  `PostgresEngine.open` makes it.

    Args:
        readers: limits concurrent reads across all collections.
        flat: number of vectors that are compared one by one before an index is built.
        kind: of that index, `hnsw` or `binary`.
        search: see `Indexing`.
        build_memory: `maintenance_work_mem` while an index is built.
    """

    def __init__(
        self, name: str, number: int, epoch: str, server: Server, readers: trio.CapacityLimiter,
        flat: int, kind: str, search: int, build_memory: str, on_recreated: Callable[[], object],
    ) -> None:  # fmt: skip
        super().__init__(name)
        self.number = number
        self.epoch = epoch
        self._server = server
        self._readers = readers
        self._writers = trio.CapacityLimiter(4)
        self._flat = flat
        self._indexes = VectorIndexes(server, number, kind, search, build_memory)
        self._staging = Staging(min(flat, staging.MOST))
        self._staged_at = -math.inf
        self._on_recreated = on_recreated
        self._gone = False
        self._model: Model | None = None
        self._indexing = Indexing("flat", search)
        self._counts: WordCounts | None = None
        self._counted_at = -COUNT_S
        self._written_at = -math.inf
        self._leading = False
        """Whether this kernel is the one that embeds and builds indexes, as of the last look."""
        self._words_version = words.VERSION
        self._state = ""
        self.loaded.set()

    @property
    def was_recreated(self) -> bool:
        return self._frozen or self._gone

    @property
    def model(self) -> Model | None:
        return self._model

    @property
    def vector_count(self) -> int:
        progress = self.progress
        return progress.made if self.coming is None else max(0, progress.waiting + progress.made - progress.lacking)

    def searched_vectors(self) -> ServerVectors:
        if self._model is None:
            raise VectorsLoading
        return ServerVectors(self._model, self.vector_count, self._indexing)

    async def version(self) -> object:
        def current(connection: Connection) -> Any:
            return connection.execute("SELECT pg_current_snapshot()::text").fetchone()

        return await self._in_thread(current)

    # Access

    def _store(self, connection: Connection) -> ServerStore:
        return ServerStore(connection, self._server.schema, self.number, self._counts, self._staging)

    async def read_frozen(self, work: Callable[[Snapshot], T]) -> T:
        return await self._in_thread(lambda connection: work(self._store(connection)))

    async def _in_thread(self, work: Callable[[Connection], T]) -> T:
        lease = Lease(READ_S)
        try:
            return await trio.to_thread.run_sync(
                partial(self._server.read, work, lease), limiter=self._readers, abandon_on_cancel=True
            )
        except trio.Cancelled:
            lease.abort()
            raise
        except Gone:
            self._note_gone()
            raise

    async def write_frozen(self, work: Callable[[Transaction], T]) -> T:
        return (await self._written(work))[0]

    async def _written(self, work: Callable[[Transaction], T]) -> tuple[T, ServerStore]:
        def run(connection: Connection) -> tuple[T, ServerStore]:
            store = self._store(connection)
            return work(store), store

        try:
            return await trio.to_thread.run_sync(self._server.write, run, limiter=self._writers)
        except Gone:
            self._note_gone()
            raise

    async def _apply(self, work: Callable[[Transaction], Change]) -> Change:
        change, store = await self._written(work)
        self._written_at = trio.current_time()
        waiting, made, lacking = self.progress
        # The next refresh counts exactly, with what other kernels changed.
        change.progress = Progress(
            max(0, waiting + store.queued), max(0, made + store.made), max(0, lacking + store.queued)
        )
        if self.coming is not None:
            change.progress = await self.read_frozen(lambda snapshot: snapshot.progress())
        return change

    async def changed_by_others(self) -> list[str]:
        def take(connection: Connection) -> list[str]:
            rows = connection.execute(
                "DELETE FROM changes WHERE collection = %s RETURNING id", (self.number,)
            ).fetchall()
            return [given(id_) for (id_,) in rows]

        return await trio.to_thread.run_sync(self._server.write, take, limiter=self._writers)

    def _note_gone(self) -> None:
        if not self._gone:
            self._gone = True
            self._on_recreated()

    # Background work

    async def maintain(self, keeper: Keeper) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._move_staged)
            await self._keep_up(keeper)

    async def _keep_up(self, keeper: Keeper) -> None:
        trouble = ""
        while True:
            try:
                with trio.fail_after(ANSWER_S):
                    await self.refresh()
                keeper.report(self, "staged", self._staging.trouble)
                await self._lead(keeper)
                now = ""
            except trio.TooSlowError:
                now = f"the PostgreSQL server has not answered for {ANSWER_S:g} s"
            except LinckiaError as error:
                now = error.failure.message
            if now != trouble:
                keeper.report(self, "server", now)
                trouble = now
            await trio.sleep(REFRESH_S)

    async def refresh(self) -> None:
        """Read what other kernels may have changed."""

        def look(connection: Connection) -> Any:
            store = self._store(connection)
            row = connection.execute(
                "SELECT epoch, words_version, state FROM collections WHERE number = %s", (self.number,)
            ).fetchone()
            if row is None or row[0] != self.epoch or row[2] == "left":
                raise Gone(f"collection {self.name} was removed", retry_after_ms=0)
            model = store.current_model()
            indexing = self._indexes.current(connection, model)
            self._count_staged(connection, model if indexing.stages else None)
            outbox = connection.execute(
                sql.SQL("SELECT 1 FROM {} LIMIT 1").format(parts(self._server.schema, self.number)["outbox"])
            ).fetchone()
            return model, store.coming_model(), indexing, outbox is not None, row[1:], store.meta("refilling")

        model, coming, self._indexing, waits, (version, self._state), reason = await self._in_thread(look)
        self.refilling = f"collection {self.name} {reason}" if reason else ""
        self._model, self.coming = model, coming
        if waits or self.progress.waiting or (model is not None and not self.progress.made):
            await self.count_waiting()
        if waits and self.leads.is_set():
            self.has_work.set()
        if trio.current_time() - self._counted_at >= COUNT_S:
            self._counts = await self._in_thread(self._count)
            self._counted_at = trio.current_time()
        self._words_version = version

    def _count(self, connection: Connection) -> WordCounts | None:
        """Read the statistics of a large collection."""
        tables = parts(self._server.schema, self.number)
        few = connection.execute(
            sql.SQL("SELECT count(*) FROM (SELECT 1 FROM {items} LIMIT %s) AS few").format(**tables), (SMALL + 1,)
        ).fetchone()
        if few is None or few[0] <= SMALL:
            return None
        name = f"items_{self.number}"
        row = connection.execute(
            "SELECT reltuples FROM pg_class WHERE oid = %s::regclass", (f"{self._server.schema}.{name}",)
        ).fetchone()
        items = int(row[0]) if row is not None else 0
        if items <= SMALL:
            counted = connection.execute(sql.SQL("SELECT count(*) FROM {items}").format(**tables)).fetchone()
            items = counted[0] if counted is not None else SMALL
        share = min(100.0, 100.0 * SAMPLED / items)
        average = connection.execute(
            sql.SQL("SELECT avg(length)::float8 FROM {items} TABLESAMPLE SYSTEM (%s)").format(**tables), (share,)
        ).fetchone()
        common = connection.execute(
            "SELECT most_common_elems::text::text[], most_common_elem_freqs FROM pg_stats "
            "WHERE schemaname = %s AND tablename = %s AND attname = 'words' AND most_common_elems IS NOT NULL",
            (self._server.schema, name),
        ).fetchone()
        # The frequencies are followed by the least and the greatest of them.
        held_by = dict(zip(common[0], common[1], strict=False)) if common is not None else {}
        return WordCounts(items, (average[0] if average is not None else None) or 1.0, held_by)

    async def _move_staged(self) -> None:
        """Move vectors into the index, in one kernel at a time, until cancelled."""
        while True:
            moved = 0
            with contextlib.suppress(LinckiaError):  # `maintain` reports it, as it uses the same server.
                moved = await self._move_some()
            if not moved:
                await trio.sleep(MOVE_S)

    async def _move_some(self) -> int:
        if time.monotonic() - self._staged_at > 2 * REFRESH_S:
            # As while an index is built.
            await self._in_thread(lambda db: self._count_staged(db, self._model if self._indexing.stages else None))
        staged, model_id = self._staging.staged, self._staging.model_id
        is_quiet = trio.current_time() - self._written_at >= MOVE_QUIET_S
        if not self._leading or model_id is None or staged <= (0 if is_quiet else self._staging.most // 2):
            return 0

        def some(connection: Connection) -> int:
            return staging.move(connection, self._server.schema, self.number, model_id)

        moved = await trio.to_thread.run_sync(self._server.write, some)
        self._staging.give_back(moved)
        return moved

    def _count_staged(self, connection: Connection, model: Model | None) -> None:
        self._staging.count(connection, self._server.schema, self.number, model)
        self._staged_at = time.monotonic()

    async def _lead(self, keeper: Keeper) -> None:
        """Do what one kernel at a time does."""
        key = f"lead {self.number}"
        self._leading = await trio.to_thread.run_sync(self._server.try_lock, key, limiter=self._writers)
        if not self._leading:
            return
        if not self.leads.is_set():
            self.leads.set()
        if self._state == "frozen" and not self._frozen:
            await trio.to_thread.run_sync(self._thaw, limiter=self._writers)
        if self._words_version != words.VERSION:
            await self._reindex_words()
        for model in (self._model, self.coming):
            # The next model's index is built once its vectors are complete.
            if model is not None and (model != self.coming or not self.progress.waiting):
                await self._build_index(model, keeper)

    def _thaw(self) -> None:
        """Let the collection be changed again if the kernel that froze it is gone.  Blocks."""

        def thaw(connection: Connection) -> None:
            connection.execute(
                "UPDATE collections SET state = 'leaving' WHERE number = %s AND state = 'frozen'", (self.number,)
            )

        if self._server.try_lock(moves(self.number)):
            try:
                self._server.write(thaw)
            finally:
                self._server.unlock(moves(self.number))

    async def _build_index(self, model: Model, keeper: Keeper) -> None:
        is_quiet = trio.current_time() - self._written_at >= QUIET_S

        def is_due(connection: Connection) -> bool:
            if self._indexes.is_built(connection, model):
                return self._indexes.is_left(connection, model)
            table = parts(self._server.schema, self.number)["vectors"]
            query = sql.SQL("SELECT count(*) FROM (SELECT 1 FROM {} WHERE model_id = %s LIMIT %s) AS few").format(table)
            most = self._flat * (1 if is_quiet else IMPATIENCE)
            row = connection.execute(query, (model.model_id, most + 1)).fetchone()
            return row is not None and row[0] > most

        if not await self._in_thread(is_due):
            return
        keeper.report(self, "index", f"an index of the vectors of {model.fingerprint} is being built")
        lease = Lease(math.inf)
        try:
            await trio.to_thread.run_sync(self._indexes.build, model, lease, abandon_on_cancel=True)
        except trio.Cancelled:
            # It may take hours, and the collection is to be closed, moved or dropped.
            lease.abort()
            raise
        keeper.report(self, "index", "")
        await self.refresh()

    async def _reindex_words(self) -> None:
        """Make the words of every item again, because this program makes them in another way."""
        after = 0
        while True:

            def some(connection: Connection, after: int = after) -> int | None:
                tables = parts(self._server.schema, self.number)
                rows = connection.execute(
                    sql.SQL(
                        "SELECT item_id, title || ' ' || names, heading, text FROM {items} "
                        "JOIN {groups} USING (group_id) WHERE item_id > %s ORDER BY item_id LIMIT %s"
                    ).format(**tables),
                    (after, REINDEXED),
                ).fetchall()
                with connection.cursor() as cursor:
                    cursor.executemany(
                        sql.SQL("UPDATE {items} SET words = %s::tsvector, length = %s WHERE item_id = %s").format(
                            **tables
                        ),
                        [(*words.entry(*map(given, texts)), item_id) for item_id, *texts in rows],
                    )
                return rows[-1][0] if rows else None

            last = await trio.to_thread.run_sync(self._server.write, some, limiter=self._writers)
            if last is None:
                break
            after = last

        def done(connection: Connection) -> None:
            connection.execute(
                "UPDATE collections SET words_version = %s WHERE number = %s", (words.VERSION, self.number)
            )

        await trio.to_thread.run_sync(self._server.write, done, limiter=self._writers)

    # Models

    async def adopt(self, fingerprint: str, dimensions: int) -> None:
        """See `Collection.adopt`.  Only the kernel that embeds may change the model, or two would do so for ever.

        Raises:
            Unavailable: another kernel embeds, with another model.
        """
        searched = self._model
        if searched is not None and not self._leading and fingerprint != searched.fingerprint:
            if self.coming is None or fingerprint != self.coming.fingerprint:
                raise Unavailable(
                    f"another machine embeds this collection with the model {searched.fingerprint}; "
                    f"the model of this machine is {fingerprint}",
                    retry_after_ms=60_000,
                )
            return
        await super().adopt(fingerprint, dimensions)

    async def _adopt(self, fingerprint: str, dimensions: int) -> None:
        await self.write(lambda store: store.adopt_model(fingerprint, dimensions))
        await self._follow_models()

    async def _follow_models(self) -> None:
        def look(connection: Connection) -> tuple[Model | None, Model | None, Progress]:
            store = self._store(connection)
            return store.current_model(), store.coming_model(), store.progress()

        self._model, self.coming, self.progress = await self._in_thread(look)

    async def switch(self) -> None:
        if (model := self.coming) is None:
            return
        before = self._model

        def switch(connection: Connection) -> bool:
            return self._store(connection).switch(model)

        if await trio.to_thread.run_sync(self._server.write, switch, limiter=self._writers):
            await self._follow_models()
            if before is not None:
                await trio.to_thread.run_sync(self._indexes.forget, before, limiter=self._writers)
        await self.refresh()

    # The rest

    async def filled(self) -> None:
        if self.refilling:
            await self.write(lambda store: store.forget("refilling"))
            self.refilling = ""

    async def rebuild_words(self) -> None:
        await self._reindex_words()

    async def scrub(self) -> Scrubbed:
        """Free the space of what was deleted.

        The server's log, its replicas and its backups keep traces for as long as its administrator has chosen.
        """

        def vacuum() -> None:
            with self._server.unbounded() as connection:
                for name in ("groups", "group_values", "items", "vectors", "outbox"):
                    table = parts(self._server.schema, self.number)[name]
                    connection.execute(sql.SQL("VACUUM {}").format(table))

        await trio.to_thread.run_sync(vacuum, limiter=self._writers)
        return Scrubbed()

    async def give_back(self) -> None:
        self._server.rest()
        await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """The server's connections belong to the engine."""

    async def _shape(self) -> tuple[int, str, str]:
        def size(connection: Connection) -> int:
            names = [
                f"{self._server.schema}.{name}_{self.number}" for name in ("groups", "group_values", "items", "vectors")
            ]
            row = connection.execute(
                "SELECT sum(pg_total_relation_size(name::regclass))::bigint FROM unnest(%s::text[]) AS name", (names,)
            ).fetchone()
            return int(row[0]) if row is not None else 0

        kind = "none" if self._model is None else self._indexing.kind
        return await self._in_thread(size), kind, "postgres"
