"""A server that restarts, dies, hangs or refuses: nothing acknowledged is lost, and nobody waits for ever."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import psycopg
import pytest
import trio

from proto.errors import LinckiaError, OperationError, Unavailable
from proto.ops.retrieve import RetrieveSearch
from services.retrieve.postgres import server as postgres_server
from services.retrieve.postgres.engine import PostgresEngine
from services.retrieve.postgres.server import Server
from tests.postgres import PostgresServer
from tests.store.rig import ANY_NAME, FLAT, Keeper, ServerStore, opened
from tests.unit.retrieve.rig import WordEmbedder, ask, embedded, group
from tests.waiting import until

MANY = 60
"""Acknowledged writes before the server goes away, and after it has come back."""

POSTGRES: dict[str, str] = {}
"""Use its own settings: acknowledged writes are on disk."""


@pytest.fixture
def store(server: PostgresServer) -> Iterator[ServerStore]:
    made = ServerStore(server)
    yield made
    made.close()


def _engine(server: Server) -> PostgresEngine:
    return PostgresEngine(server, "", "here", ANY_NAME, 4, FLAT, "hnsw", 100, "64MB")


@pytest.mark.parametrize("how", ["restart", "kill"])
async def test_acknowledged_writes_survive_the_loss_of_the_server_during_many_writes(
    store: ServerStore, server: PostgresServer, how: str
) -> None:
    acknowledged: dict[str, int] = {}
    writes = 0
    ending = trio.Event()

    async def many_writes() -> None:
        most = writes + MANY
        await until(lambda: writes >= most)

    async with opened(store.engine()) as collection:

        async def write(writer: int) -> None:
            nonlocal writes
            version = 0
            while not ending.is_set():
                version += 1
                name = f"g{writer}-{version % 7}"
                try:
                    await collection.put([group(name, f"piece version{version}", metadata={"version": version})])
                except Unavailable:
                    # Perhaps it was carried out all the same; the next one replaces it.
                    acknowledged.pop(name, None)
                    await trio.sleep(0.02)
                else:
                    acknowledged[name] = version
                    writes += 1

        async with trio.open_nursery() as nursery:
            for writer in range(6):
                nursery.start_soon(write, writer)
            for _ in range(2):
                await many_writes()
                if how == "kill":
                    await trio.to_thread.run_sync(server.kill)
                    await trio.to_thread.run_sync(server.start)
                else:
                    await trio.to_thread.run_sync(server.restart)
            await many_writes()
            ending.set()
        assert len(acknowledged) > 20
        contents = await collection.read(lambda snapshot: snapshot.contents([*acknowledged]))
        found = {content.id: content.metadata["version"] for content in contents}
        assert found == acknowledged
        for content in contents:
            assert [piece.text for piece in content.pieces] == [f"piece version{content.metadata['version']}"]


async def test_a_transaction_with_an_unanswered_commit_is_neither_repeated_nor_reported_as_failed(
    store: ServerStore, server: PostgresServer
) -> None:
    async with opened(store.engine()) as collection:
        ran: list[int] = []

        def break_at_commit(connection: psycopg.Connection[tuple[object, ...]]) -> None:
            connection.execute("INSERT INTO meta VALUES (%s, %s, 'x')", (collection.number, f"key{len(ran)}"))  # type: ignore[attr-defined]
            ran.append(connection.info.backend_pid)
            if len(ran) == 1:
                # A deferred trigger runs within COMMIT, after which the answer is lost.
                connection.execute(
                    "CREATE FUNCTION pg_temp.pause() RETURNS trigger LANGUAGE plpgsql AS "
                    "$$ BEGIN PERFORM pg_sleep(1); RETURN NULL; END $$"
                )
                connection.execute(
                    "CREATE CONSTRAINT TRIGGER pause AFTER INSERT ON meta DEFERRABLE INITIALLY DEFERRED "
                    "FOR EACH ROW EXECUTE FUNCTION pg_temp.pause()"
                )
                connection.execute("INSERT INTO meta VALUES (%s, 'last', 'x')", (collection.number,))  # type: ignore[attr-defined]
                threading.Timer(0.5, _cut, (connection,)).start()

        server_of = collection._server  # type: ignore[attr-defined]
        await trio.to_thread.run_sync(server_of.write, break_at_commit)
        keys = await collection.read(lambda snapshot: [snapshot.meta(f"key{n}") for n in range(3)])
        # Committed or not, it was done once.
        assert [key for key in keys if key] == ["x"]
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(f"DROP TRIGGER IF EXISTS pause ON {store.schema}.meta")


def _cut(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    with socket.socket(fileno=os.dup(connection.fileno())) as twin:
        twin.shutdown(socket.SHUT_RDWR)


async def test_a_server_that_hangs_makes_nobody_wait_beyond_the_deadline_and_serves_again(
    store: ServerStore, server: PostgresServer
) -> None:
    embedder = WordEmbedder()
    async with opened(store.engine()) as collection:
        await collection.put([group("a", "piece one")])
        await embedded(collection, embedder)
        server.hang()
        try:
            started = trio.current_time()
            with trio.move_on_after(1.0):
                await collection.items([1, 2, 3])
            assert trio.current_time() - started < 3
        finally:
            server.go_on()
        with trio.fail_after(20):
            while True:
                try:
                    assert len((await collection.find_words("piece", 10, ())).hits) == 1
                    break
                except Unavailable:
                    await trio.sleep(0.05)
        await collection.put([group("b", "piece two")])


async def test_a_server_that_cannot_be_reached_is_unavailable_at_once() -> None:
    server = Server("postgresql://nobody@127.0.0.1:1/none")
    engine = _engine(server)
    with trio.fail_after(5):
        with pytest.raises(Unavailable, match="not available") as raised:
            await engine.open("notes", lambda: None)
        assert raised.value.failure.retry_after_ms
        with pytest.raises(Unavailable, match="not available"):
            await engine.names()


async def test_a_collection_that_another_kernel_drops_is_gone_here_too(store: ServerStore) -> None:
    async with opened(store.engine()) as collection:
        await collection.put([group("a", "piece one")])
        other = store.engine()
        assert await other.remove("notes")
        with pytest.raises(Unavailable, match="removed"):
            await collection.put([group("b", "piece two")])
        assert collection.was_recreated


async def test_one_kernel_embeds_and_another_takes_over_when_it_ends(store: ServerStore) -> None:
    first, second = store.engine(), store.engine()
    async with opened(first):
        other = await second.open("notes", lambda: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other.maintain, Keeper())
            await trio.sleep(0.5)
            assert not other.leads.is_set()
            await trio.to_thread.run_sync(first.close)
            with trio.fail_after(20):
                await other.leads.wait()
            nursery.cancel_scope.cancel()


async def test_a_collection_closes_while_its_index_is_built(store: ServerStore, server: PostgresServer) -> None:
    keeper = Keeper()
    async with opened(store.engine(), keeper=keeper) as collection:
        with psycopg.connect(server.dsn) as connection:
            # An index is not built as long as this transaction may change the table.
            number = collection.number  # type: ignore[attr-defined]
            connection.execute(f"LOCK TABLE {store.schema}.vectors_{number} IN ROW EXCLUSIVE MODE")
            await collection.put([group(f"g{n}", f"piece number{n}") for n in range(FLAT + 1)])
            await embedded(collection, WordEmbedder())
            with trio.fail_after(20):
                while not keeper.troubles.get("index"):  # noqa: ASYNC110  # nobody is told
                    await trio.sleep(0.05)
            await trio.sleep(0.2)
            with trio.fail_after(5):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(collection._build_index, collection.model, keeper)  # type: ignore[attr-defined]
                    await trio.sleep(0.5)
                    nursery.cancel_scope.cancel()
            started = psycopg.connect(server.dsn, autocommit=True)
            with started, trio.fail_after(20):
                building = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX CONC%%'"
                while started.execute(building).fetchone() == (2,):  # noqa: ASYNC110  # nobody is told
                    await trio.sleep(0.1)


async def test_a_kernel_with_another_model_searches_by_words_and_changes_nothing(store: ServerStore) -> None:
    ours, theirs = WordEmbedder("words:1"), WordEmbedder("words:2")
    async with opened(store.engine()) as collection:
        await collection.put([group("a", "piece one")])
        await embedded(collection, ours)
        other = await store.engine().open("notes", lambda: None)
        asked = RetrieveSearch(collection="notes", query="piece")
        found = await ask(other, theirs, asked)
        assert (found.stages, len(found.hits)) == (["lexical"], 1)
        assert "another machine embeds this collection" in found.degraded[0]
        await collection.refresh()  # type: ignore[attr-defined]
        assert (collection.fingerprint, collection.coming) == ("words:1", None)
        assert (await ask(collection, ours, asked)).stages == ["lexical", "vector"]


async def test_settings_that_cannot_work_are_refused_with_the_reason(server: PostgresServer) -> None:
    engine = _engine(Server(server.dsn_of("nowhere")))
    with pytest.raises(LinckiaError, match="nowhere"):
        await engine.names()
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("CREATE ROLE reader LOGIN")
    engine = _engine(Server(server.dsn_of(user="reader"), "closed"))
    with pytest.raises(OperationError, match="permission denied"):
        await engine.names()


async def test_a_dump_of_the_server_restores_every_collection(store: ServerStore, server: PostgresServer) -> None:
    embedder = WordEmbedder()
    async with opened(store.engine()) as collection:
        await collection.put([group(f"g{n}", f"piece number{n}") for n in range(3 * FLAT // 2)])
        await embedded(collection, embedder)
        before = await collection.read(lambda snapshot: snapshot.contents(["g7"]))
    await trio.to_thread.run_sync(server.copy, store.schema, "restored")
    engine = _engine(Server(server.dsn_of("restored"), store.schema))
    async with opened(engine) as collection:
        assert await collection.read(lambda snapshot: snapshot.contents(["g7"])) == before
        status = await collection.status()
        assert (status.groups, status.vectors, status.vectors_waiting) == (300, 300, 0)


@pytest.mark.parametrize(
    ("cause", "is_lost"),
    [
        (psycopg.OperationalError("server closed the connection unexpectedly"), True),
        (psycopg.errors.AdminShutdown("terminating connection due to administrator command"), True),
        (psycopg.OperationalError('connection to server at "db" failed: Connection refused'), False),
        (psycopg.errors.LockNotAvailable("canceling statement due to lock timeout"), False),
        (psycopg.errors.QueryCanceled("canceling statement due to statement timeout"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_transaction_is_tried_again_at_once_only_if_its_connection_was_lost(
    cause: psycopg.Error, is_lost: bool
) -> None:
    error = Unavailable("not available")
    error.__cause__ = cause
    assert postgres_server._was_lost(error) is is_lost
