"""New vectors on a server wait outside its index: whatever happens meanwhile, each is found, and found once."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
import trio

from proto.errors import LinckiaError, OperationError
from proto.ops.retrieve import Filter, Group
from services.retrieve.item_store import ItemWithVector
from services.retrieve.postgres import collection as collection_module
from services.retrieve.postgres import server as server_module
from services.retrieve.postgres import staging
from services.retrieve.postgres.collection import PostgresCollection
from services.retrieve.store import Snapshot
from tests.postgres import PostgresServer
from tests.store.rig import FLAT, Keeper, ServerStore, indexed, opened, words
from tests.waiting import until

POSTGRES: dict[str, str] = {}
"""Use its own settings: acknowledged writes are on disk."""

SIZE = 8
NEAR = 60
"""Groups that are nearer to the query than all others."""

QUERY = np.eye(SIZE, dtype=np.float32)[0]

_dice = np.random.default_rng(5)


@pytest.fixture(params=["hnsw", "binary"])
def store(request: pytest.FixtureRequest, server: PostgresServer) -> Iterator[ServerStore]:
    made = ServerStore(server, request.param)
    yield made
    made.close()


def made(name: str, version: int = 1, *, near: bool = True) -> Group:
    vector = _dice.normal(size=SIZE) * 0.2
    vector[0] = 1 if near else -1
    packed = (vector / np.linalg.norm(vector)).astype("<f2").tobytes()
    item = ItemWithVector(key="0", text=f"piece {name} version{version}", vector=packed)
    return Group(id=name, items=[item], metadata={"version": version, "kind": "near" if near else "far"})


@contextlib.asynccontextmanager
async def filled(store: ServerStore, keeper: Keeper | None = None) -> AsyncIterator[PostgresCollection]:
    """A collection with an index, into which nothing is moved for the time being."""
    async with opened(store.engine(), keeper=keeper) as collection:
        assert isinstance(collection, PostgresCollection)
        await adopt(collection)
        await collection.put([made(f"far{n}", near=False) for n in range(FLAT + NEAR)])
        await indexed(collection)
        yield collection


async def adopt(collection: PostgresCollection) -> None:
    await collection.write(lambda each: each.adopt_model(f"given:{SIZE}", SIZE))
    await collection.adopt(f"given:{SIZE}", SIZE)


@pytest.fixture(autouse=True)
def held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is moved before `move_now`."""
    monkeypatch.setattr(collection_module, "MOVE_QUIET_S", float("inf"))
    monkeypatch.setattr(collection_module, "MOVE_S", 0.01)
    monkeypatch.setattr(staging, "BATCH", 1)


def move_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection_module, "MOVE_QUIET_S", 0.0)


def rows(store: ServerStore, query: str) -> list[Any]:
    with psycopg.connect(store.postgres.dsn) as connection:
        connection.execute("SELECT set_config('search_path', %s, false)", (f"{store.schema}, public",))
        return connection.execute(query.encode()).fetchall()


def staged(store: ServerStore) -> int:
    return int(rows(store, "SELECT count(*) FROM vectors WHERE staged")[0][0])


async def until_staged(store: ServerStore, least: int, most: int) -> None:
    await until(lambda: least <= staged(store) <= most)


async def nearest(collection: PostgresCollection, filters: Sequence[Filter] = ()) -> list[tuple[str, str]]:
    """Groups and texts of the nearest pieces."""
    index = collection.searched_vectors()

    def search(snapshot: Snapshot) -> list[tuple[str, str]]:
        hits = [item for item, _ in snapshot.nearest(index, QUERY, NEAR, filters)]
        assert len(hits) == len(set(hits))
        items = snapshot.items(hits)
        return sorted((items[item].group, items[item].text) for item in hits)

    return await collection.read(search)


@contextlib.asynccontextmanager
async def connected(server: PostgresServer) -> AsyncIterator[psycopg.Connection]:
    """Connect once the server, of which a process was killed, has recovered."""
    with trio.fail_after(60):
        while True:
            try:
                connection = psycopg.connect(server.dsn, autocommit=True)
                break
            except psycopg.OperationalError:
                await trio.sleep(0.05)
    with connection:
        yield connection


def expected(versions: dict[str, int]) -> list[tuple[str, str]]:
    return sorted((name, f"piece {name} version{version}") for name, version in versions.items())


async def test_new_vectors_are_found_beside_the_index_and_in_it(
    store: ServerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with filled(store) as collection:
        versions = {f"near{n}": 1 for n in range(NEAR + 1)}
        await collection.put([made(name) for name in versions])
        assert staged(store) == NEAR + 1
        # Replaced and deleted before they are moved.
        versions["near3"] = 2
        del versions["near4"]
        await collection.put([made("near3", 2)])
        await collection.delete(["near4"])
        assert staged(store) == NEAR
        kind = Filter(field="kind", any_of=["near"])
        for _ in range(2):
            assert await nearest(collection) == expected(versions)
            assert await nearest(collection, [kind]) == expected(versions)
            assert await words(collection, "near3") == ["near3"]
            status = await collection.status()
            assert (status.groups, status.vectors, status.vectors_waiting) == (FLAT + 2 * NEAR, FLAT + 2 * NEAR, 0)
            move_now(monkeypatch)
            await until_staged(store, 0, 0)


async def test_a_search_finds_every_group_once_while_groups_are_moved_and_replaced(
    store: ServerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with filled(store) as collection:
        names = [f"near{n}" for n in range(NEAR)]
        acknowledged = dict.fromkeys(names, 1)
        sent = dict(acknowledged)
        await collection.put([made(name) for name in names])
        move_now(monkeypatch)
        searches = 0
        async with trio.open_nursery() as nursery:

            async def replace() -> None:
                for n in itertools.count():
                    name = names[n * 7 % NEAR]
                    sent[name] += 1
                    await collection.put([made(name, sent[name])])
                    acknowledged[name] = sent[name]

            nursery.start_soon(replace)
            with trio.fail_after(120):
                while searches < 100:
                    before = dict(acknowledged)
                    found = await nearest(collection)
                    searches += 1
                    assert [name for name, _ in found] == sorted(names)
                    for name, text in found:
                        assert before[name] <= int(text.rsplit("version")[1]) <= sent[name]
            nursery.cancel_scope.cancel()
        await until_staged(store, 0, 0)
        assert [name for name, _ in await nearest(collection)] == sorted(names)


def intact(store: ServerStore) -> None:
    """Each item has one vector, and each vector an item."""
    assert rows(store, "SELECT item_id FROM items FULL JOIN vectors USING (item_id) WHERE items IS NULL") == []
    assert rows(store, "SELECT item_id FROM vectors GROUP BY item_id HAVING count(*) > 1") == []
    assert rows(store, "SELECT count(*) FROM vectors") == rows(store, "SELECT count(*) FROM items")


@pytest.mark.parametrize("how", ["backend", "server"])
async def test_nothing_is_lost_or_doubled_when_the_server_dies_during_a_move(
    store: ServerStore, server: PostgresServer, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    async with filled(store) as collection:
        versions = {f"near{n}": 1 for n in range(NEAR)}
        await collection.put([made(name) for name in versions])
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            # The move stops in the middle of its transaction.
            connection.execute(
                f"CREATE FUNCTION {store.schema}.pause() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                f"IF NEW.item_id % 20 = 0 THEN PERFORM pg_sleep(100); END IF; RETURN NEW; END $$"
            )
            connection.execute(
                f"CREATE TRIGGER pause BEFORE UPDATE ON {store.schema}.vectors "
                f"FOR EACH ROW EXECUTE FUNCTION {store.schema}.pause()"
            )
            move_now(monkeypatch)
            asked = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
            await until(lambda: connection.execute(asked).fetchone())
            found = connection.execute(asked).fetchone()
            assert found is not None
        if how == "backend":
            os.kill(found[0], signal.SIGKILL)
        else:
            await trio.to_thread.run_sync(server.kill)
            await trio.to_thread.run_sync(server.start)
        with trio.fail_after(60):
            while True:
                try:
                    assert await nearest(collection) == expected(versions)
                    break
                except LinckiaError:
                    await trio.sleep(0.05)
        async with connected(server) as connection:
            # Without a lock on the table, which the next move has, where it pauses again.
            connection.execute(
                f"CREATE OR REPLACE FUNCTION {store.schema}.pause() RETURNS trigger LANGUAGE plpgsql AS $$ "
                "BEGIN RETURN NEW; END $$"
            )

            def is_moved() -> bool:
                # A statement that began before may pause still.
                connection.execute(f"SELECT pg_terminate_backend(pid) FROM ({asked}) AS paused")
                return staged(store) == 0

            await until(is_moved)
        intact(store)
        assert await nearest(collection) == expected(versions)


KERNEL = """
import sys, trio
from services.retrieve.postgres import collection, staging
from services.retrieve.postgres.engine import PostgresEngine
from services.retrieve.postgres.server import Server
from tests.store.rig import ANY_NAME, FLAT, opened

collection.MOVE_QUIET_S, staging.BATCH = 0.0, 1

async def main():
    dsn, schema, index = sys.argv[1:]
    async with opened(PostgresEngine(Server(dsn, schema), "", "here", ANY_NAME, 8, FLAT, index, 200, "64MB")):
        await trio.sleep_forever()

trio.run(main)
"""


async def test_another_kernel_goes_on_with_the_move_when_one_is_killed(
    store: ServerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = {f"near{n}": 1 for n in range(NEAR)}
    async with filled(store) as collection:
        await collection.put([made(name) for name in versions])
    arguments = [store.postgres.dsn, store.schema, store.index]
    async with trio.open_nursery() as nursery:
        start = partial(trio.run_process, cwd=Path(__file__).parents[2], check=False)
        kernel = await nursery.start(start, [sys.executable, "-c", KERNEL, *arguments])
        try:
            await until_staged(store, 1, NEAR - 5)
        finally:
            kernel.kill()
    assert staged(store) > 0
    async with opened(store.engine()) as collection:
        assert isinstance(collection, PostgresCollection)
        assert await nearest(collection) == expected(versions)
        move_now(monkeypatch)
        await until_staged(store, 0, 0)
        intact(store)
        assert await nearest(collection) == expected(versions)


async def test_when_too_many_wait_writes_go_into_the_index_and_the_status_says_so(
    store: ServerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with filled(store):
        pass
    first, second, keeper = store.engine(), store.engine(), Keeper()
    monkeypatch.setattr(collection_module, "MOVE_S", 1000.0)
    async with opened(first):
        # It goes on to hold the lock, and moves nothing.
        monkeypatch.setattr(collection_module, "MOVE_S", 0.01)
        collection = await second.open("notes", lambda: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collection.maintain, keeper)
            for start in range(0, FLAT + 50, 10):
                await collection.put([made(f"near{n}") for n in range(start, start + 10)])
            # A count leaves out the write that is not committed yet.
            assert FLAT <= staged(store) <= FLAT + 10
            await until(lambda: "new vectors wait for the index" in keeper.troubles.get("staged", ""))
            await trio.to_thread.run_sync(first.close)
            move_now(monkeypatch)
            await until(lambda: staged(store) == 0)
            await until(lambda: not keeper.troubles["staged"])
            assert (await collection.status()).vectors == 2 * FLAT + NEAR + 50
            nursery.cancel_scope.cancel()


async def test_tables_of_version_1_are_used_at_once_and_their_index_is_replaced_later(
    store: ServerStore, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with filled(store) as collection:
        versions = {f"near{n}": 1 for n in range(NEAR)}
        await collection.put([made(name) for name in versions])
        number, model = collection.number, collection.model
        assert model is not None
    whole = f"vectors_{number}_{model.model_id}_{store.index}"
    of = f"(binary_quantize(vector::halfvec({SIZE}))::bit({SIZE}))" if store.index == "binary" else None
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("SELECT set_config('search_path', %s, false)", (f"{store.schema}, public",))
        # Its indexes go with the column.
        connection.execute("ALTER TABLE vectors DROP COLUMN staged")
        connection.execute(
            f"CREATE INDEX {whole} ON vectors_{number} USING hnsw "
            f"({of or f'(vector::halfvec({SIZE}))'} {'bit_hamming_ops' if of else 'halfvec_ip_ops'}) "
            f"WHERE model_id = {model.model_id}"
        )
        connection.execute("UPDATE tables_version SET version = 1")
        monkeypatch.setattr(collection_module, "QUIET_S", float("inf"))
        keeper = Keeper()
        async with opened(store.engine(), keeper=keeper) as collection:
            assert isinstance(collection, PostgresCollection)
            assert (await collection.status()).index == store.index
            assert await nearest(collection) == expected(versions)
            versions["near7"] = 2
            await collection.put([made("near7", 2)])
            assert (staged(store), await nearest(collection)) == (0, expected(versions))
            monkeypatch.setattr(collection_module, "QUIET_S", 0.0)
            await until(lambda: rows(store, f"SELECT to_regclass('{whole}')") == [(None,)])
            await until(lambda: collection.searched_vectors().indexing.stages)
            assert await nearest(collection) == expected(versions)
            versions["near8"] = 2
            await collection.put([made("near8", 2)])
            assert (staged(store), await nearest(collection)) == (1, expected(versions))
            intact(store)


async def test_a_program_of_version_1_refuses_tables_of_version_2(
    store: ServerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.engine().names()
    monkeypatch.setattr(server_module, "TABLES_VERSION", 1)
    monkeypatch.setattr(server_module, "UPGRADES", {})
    with pytest.raises(OperationError, match="have version 2, but this program needs 1"):
        await store.engine().names()
