"""Collections move between files and a PostgreSQL server while they are used, whatever interrupts that."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.lowlevel

from proto.errors import LinckiaError, OperationError, Unavailable
from proto.ops.retrieve import RetrieveSearch
from services.retrieve import client_collections, migration
from services.retrieve.engine import NAMES, LocalEngine
from services.retrieve.index.segment import VectorLimits
from services.retrieve.local_collection import LocalCollection
from services.retrieve.migration import Migration
from services.retrieve.open_collections import Collections, RetrieveSettings
from services.retrieve.places import Places
from services.retrieve.postgres.engine import PostgresEngine
from services.retrieve.postgres.server import Server
from services.runtime.database import Kind
from tests.postgres import PostgresServer
from tests.store.rig import FLAT
from tests.unit.retrieve.rig import WordEmbedder, ask, drained, group
from tests.unit.runtime.environment import PlayedEnvironment

SCHEMAS = itertools.count()


@pytest.fixture
def schema() -> str:
    return f"moves_{next(SCHEMAS)}"


@contextlib.asynccontextmanager
async def kernel(
    folder: Path, server: PostgresServer, schema: str, embedder: WordEmbedder
) -> AsyncIterator[tuple[Collections, Places, Migration]]:
    """The collections of one service, as `retrieve` has them."""

    async def answer(params: Any) -> object:
        return await (embedder.embed(params) if hasattr(params, "texts") else embedder.model(params))

    await trio.Path(folder).mkdir(exist_ok=True)
    files = LocalEngine(folder, 4, VectorLimits(flat_vectors=FLAT), None, NAMES, Kind.SOURCE)
    on_server = PostgresEngine(Server(server.dsn, schema), "", "here", NAMES, 4, FLAT, "hnsw", 100, "64MB")
    places = Places(files, on_server, made_on_server=False)
    async with trio.open_nursery() as nursery:
        environment = PlayedEnvironment(nursery, answer)
        collections = Collections(environment, RetrieveSettings(), places)
        try:
            yield collections, places, Migration(collections, places)
        finally:
            with trio.CancelScope(shield=True):
                await collections.close()
            nursery.cancel_scope.cancel()


async def moved(migration: Migration, to_server: bool, name: str = "notes", for_s: float = 0.05) -> int:
    """Migrate to the end; return in how many calls."""
    calls = 0
    with trio.fail_after(60):
        while True:
            calls += 1
            try:
                if (await migration.work(name, to_server=to_server, until=trio.current_time() + for_s)).done:
                    return calls
            except Unavailable:
                await trio.sleep(0.05)


async def state(collections: Collections, name: str = "notes") -> list[tuple[object, ...]]:
    """Everything that a collection holds."""
    collection = await collections.find(name)
    assert collection is not None
    ids = await collection.read(lambda store: store.matching(()))
    return [*await collection.read(lambda store: store.contents(ids))]


GROUPS = [
    group(f"g{n:03}", f"piece number{n}", f"more of {n % 5}", title=f"title {n}", metadata={"n": n, "odd": "nul\0"})
    for n in range(700)
]


async def test_everything_moves_there_and_back_with_its_vectors(
    tmp_path: Path, server: PostgresServer, schema: str
) -> None:
    embedder = WordEmbedder()
    async with kernel(tmp_path / "data", server, schema, embedder) as (collections, places, migration):
        local = await collections.find("notes", make=True)
        assert local is not None
        await local.put(GROUPS)
        await drained(local)
        before = await state(collections)
        embedder.texts.clear()
        epoch = local.epoch
        for to_server in (True, False):
            assert await moved(migration, to_server) > 1
            assert await places.server.holds("notes") is to_server
            assert await places.local.holds("notes") is not to_server
            assert await migration.waiting(to_server=to_server, only="") == []
            assert await collections.names() == ["notes"]
            assert await state(collections) == before
            collection = await collections.find("notes")
            assert collection is not None
            assert collection.epoch == epoch
            await drained(collection)
            found = await ask(collection, embedder, RetrieveSearch(collection="notes", query="number7", limit=3))
            assert found.hits[0].group == "g007"
            assert set(found.stages) == {"lexical", "vector"}
        # Only queries were embedded.
        assert embedder.texts == ["number7"] * 2
        assert [path.name for path in (tmp_path / "data").glob("moving*")] == []


async def test_writes_during_a_migration_are_in_it(tmp_path: Path, server: PostgresServer, schema: str) -> None:
    embedder = WordEmbedder()
    expected: dict[str, int] = {}
    ending = trio.Event()
    async with kernel(tmp_path / "data", server, schema, embedder) as (collections, _places, migration):
        await collections.ask("notes", lambda each: each.put(GROUPS))

        async def write(writer: int) -> None:
            dice = random.Random(writer)
            version = 0
            while not ending.is_set():
                version += 1
                name = f"g{dice.randrange(0, 700, 4) + writer:03}"
                if dice.random() < 0.2:
                    await collections.ask("notes", lambda each: each.delete([name]))  # noqa: B023
                    expected.pop(name, None)
                    expected[name] = -1
                else:
                    new = group(name, f"piece version{version}", metadata={"version": version})
                    await collections.ask("notes", lambda each: each.put([new]))  # noqa: B023
                    expected[name] = version
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            for writer in range(4):
                nursery.start_soon(write, writer)
            for to_server in (True, False, True):
                await moved(migration, to_server)
                await trio.sleep(0.1)
            ending.set()
        found = {content.id: content.metadata for content in cast(list[Any], await state(collections))}
        assert len(expected) > 50
        for name, version in expected.items():
            assert (version == -1) is (name not in found), name
            if version != -1:
                assert found[name] == {"version": version}
        untouched = {each.id for each in GROUPS} - expected.keys()
        assert untouched <= found.keys()


@pytest.mark.parametrize("to_server", [True, False])
async def test_a_comparison_continues_in_the_next_call(
    tmp_path: Path, server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch, to_server: bool
) -> None:
    pages: list[int] = []
    compare = migration._compare

    async def noted(*args: Any) -> bool:
        pages.append(1)
        return await compare(*args)

    monkeypatch.setattr(migration, "_compare", noted)
    async with kernel(tmp_path / "data", server, schema, WordEmbedder()) as (collections, _, moving):
        await collections.ask("notes", lambda each: each.put(GROUPS))
        if not to_server:
            await moved(moving, to_server=True)
        pages.clear()
        # Calls that end at once: one step each.
        assert await moved(moving, to_server, for_s=0) >= len(pages)
        # Four pages each way, and the end of each.
        assert len(pages) == 10
        assert len(await state(collections)) == len(GROUPS)


async def test_changes_that_could_not_be_copied_are_copied_by_the_next_call(
    tmp_path: Path, server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = migration._copy
    failed: list[int] = []
    changed: list[object] = []

    async def failing(*args: Any, **named: Any) -> None:
        if changed and not failed:
            failed.append(1)
            raise Unavailable("the server is away", retry_after_ms=1)
        await copy(*args, **named)

    monkeypatch.setattr(migration, "FEW", 0)
    async with kernel(tmp_path / "data", server, schema, WordEmbedder()) as (collections, _, moving):
        await collections.ask("notes", lambda each: each.put(GROUPS))
        compared = migration._compare
        new = group("g000", "piece changed", "as many as before")

        async def change_meanwhile(*args: Any) -> bool:
            done = await compared(*args)
            if not changed:
                changed.append(await collections.ask("notes", lambda each: each.put([new])))
            return done

        monkeypatch.setattr(migration, "_compare", change_meanwhile)
        monkeypatch.setattr(migration, "_copy", failing)
        await moved(moving, to_server=True)
        assert failed
        (first, *_) = cast(list[Any], await state(collections))
        assert [piece.text for piece in first.pieces] == ["piece changed", "as many as before"]


async def test_a_collection_is_closed_once_its_background_work_has_ended(
    tmp_path: Path, server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, maintain = LocalCollection.close, LocalCollection.maintain
    working: set[str] = set()
    closed: list[bool] = []

    async def noted(self: LocalCollection, keeper: Any) -> None:
        working.add(self.name)
        try:
            await maintain(self, keeper)
            await trio.sleep_forever()
        finally:
            working.discard(self.name)

    def close_it(self: LocalCollection) -> None:
        closed.append(self.name in working)
        close(self)

    monkeypatch.setattr(LocalCollection, "maintain", noted)
    monkeypatch.setattr(LocalCollection, "close", close_it)
    async with kernel(tmp_path / "data", server, schema, WordEmbedder()) as (collections, _, moving):
        await collections.ask("notes", lambda each: each.put(GROUPS[:5]))
        assert working == {"notes"}
        await moved(moving, to_server=True)
        assert closed
        assert not any(closed)


async def test_a_collection_that_another_kernel_takes_during_opening_is_not_recreated(
    tmp_path: Path, server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        kernel(tmp_path / "first", server, schema, WordEmbedder()) as (collections, _, moving),
        kernel(tmp_path / "second", server, schema, WordEmbedder()) as (others, places, _),
    ):
        await collections.ask("notes", lambda each: each.put(GROUPS[:5]))
        await moved(moving, to_server=True)
        holds = places.holds

        async def take(name: str) -> bool:
            there = await holds(name)
            await moved(moving, to_server=False)
            return there

        monkeypatch.setattr(places, "holds", take)
        assert await others.find("notes") is None
        assert await others.names() == []


STEPS = ["_fill", "_last", "begin_copy", "take_place", "_finish", "set_state", "rename", "remove"]


@pytest.mark.parametrize("to_server", [True, False])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("after", [True, False])
async def test_a_migration_killed_at_any_step_loses_nothing_and_is_resumed(
    tmp_path: Path, server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch,
    to_server: bool, step: str, after: bool,
) -> None:  # fmt: skip
    embedder = WordEmbedder()
    groups = GROUPS[:250]
    async with kernel(tmp_path / "data", server, schema, embedder) as (collections, _, moving):
        await collections.ask("notes", lambda each: each.put(groups))
        if not to_server:
            await moved(moving, to_server=True)
        before = await state(collections)

    class Ended(BaseException):
        """The process is gone."""

    async def work(moving: Migration) -> None:
        with contextlib.suppress(Ended):
            await moved(moving, to_server)

    owners = [Migration, Places, LocalEngine, PostgresEngine]
    with monkeypatch.context() as patch:
        for owner in owners:
            if (original := owner.__dict__.get(step)) is not None:
                patch.setattr(owner, step, _ending(original, Ended, after=after))
        with contextlib.suppress(Ended, BaseExceptionGroup):
            async with kernel(tmp_path / "data", server, schema, embedder) as (collections, _, moving):
                await work(moving)
    async with kernel(tmp_path / "data", server, schema, embedder) as (collections, places, moving):
        assert await collections.names() == ["notes"]
        assert _without_vectors(await state(collections)) == _without_vectors(before)
        # A write now is not lost by what follows.
        await collections.ask("notes", lambda each: each.put([group("new", "piece new")]))
        if await migration_left(moving, to_server):
            await moved(moving, to_server)
        assert await places.server.holds("notes") is to_server
        assert len(await state(collections)) == len(before) + 1


async def migration_left(moving: Migration, to_server: bool) -> bool:
    return bool(await moving.waiting(to_server=to_server, only=""))


def _without_vectors(contents: list[Any]) -> list[Any]:
    """Some may wait to be embedded."""
    return [content._replace(pieces=[piece._replace(vector=None) for piece in content.pieces]) for content in contents]


def _ending(original: Any, ended: type[BaseException], *, after: bool) -> Any:
    """`original` as it is in a process that ends before it, or right after it, at its first call."""
    import inspect

    if inspect.iscoroutinefunction(original):

        async def patched(*args: Any, **named: Any) -> Any:
            if after:
                await original(*args, **named)
            raise ended

        return patched

    def patched_plain(*args: Any, **named: Any) -> Any:
        if after:
            original(*args, **named)
        raise ended

    return patched_plain


async def test_the_end_of_a_migration_is_left_to_the_engine_whose_collection_it_is(
    tmp_path: Path, server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended(BaseException):
        """The process is gone."""

    async def end(*_: object) -> None:
        raise Ended

    embedder = WordEmbedder()
    async with kernel(tmp_path, server, schema, embedder) as (collections, places, moving):
        await collections.ask("notes", lambda each: each.put([group("a", "piece")]))
        # It ends when the copy is live on the server, and the original is not removed yet.
        finish = places._finish
        monkeypatch.setattr(places, "_finish", lambda name: end() if places._marker(name).exists() else finish(name))
        with pytest.raises(Ended):
            await moved(moving, to_server=True)
        monkeypatch.undo()
        # The same folder contains collections of another kind.
        others = LocalEngine(tmp_path, 4, VectorLimits(flat_vectors=FLAT), None, client_collections.FILES, Kind.SOURCE)
        of_others = PostgresEngine(Server(server.dsn, schema), "x", "here", NAMES, 4, FLAT, "hnsw", 100, "64MB")
        assert await Places(others, of_others, made_on_server=False).names() == []
        await trio.to_thread.run_sync(of_others.close)
        assert await collections.names() == ["notes"]
        assert not await places.local.holds("notes")
        assert len(await state(collections)) == 1


async def test_writes_of_another_kernel_during_a_migration_are_in_the_copy(
    tmp_path: Path, server: PostgresServer, schema: str
) -> None:
    embedder = WordEmbedder()
    acknowledged: dict[str, int] = {}
    async with kernel(tmp_path / "first", server, schema, embedder) as (collections, _, moving):
        await collections.ask("notes", lambda each: each.put(GROUPS))
        await moved(moving, to_server=True)
        async with kernel(tmp_path / "second", server, schema, embedder) as (others, _, _):
            other = await others.find("notes")
            assert other is not None

            async def write(writer: int) -> None:
                version = 0
                with contextlib.suppress(Unavailable):
                    while True:
                        version += 1
                        name = f"g{(7 * version) % 100 + 100 * writer:03}"
                        await other.put([group(name, f"piece version{version}", metadata={"version": version})])
                        acknowledged[name] = version

            async with trio.open_nursery() as nursery:
                for writer in range(3):
                    nursery.start_soon(write, writer)
                await trio.sleep(0.2)
                await moved(moving, to_server=False)
                # The writers end, because the collection is gone.
            assert await others.names() == []
        found = {content.id: content.metadata for content in cast(list[Any], await state(collections))}
        assert len(acknowledged) > 50
        assert {name: found[name].get("version") for name in acknowledged} == acknowledged


async def test_only_one_kernel_at_a_time_moves_a_shared_collection_away(
    tmp_path: Path, server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration, "PAGE", 5)
    async with (
        kernel(tmp_path / "first", server, schema, WordEmbedder()) as (collections, places, moving),
        kernel(tmp_path / "second", server, schema, WordEmbedder()) as (others, elsewhere, taking),
    ):
        await collections.ask("notes", lambda each: each.put(GROUPS[:50]))
        await moved(moving, to_server=True)
        await others.find("notes")
        assert not (await moving.work("notes", to_server=False, until=0)).done
        with pytest.raises(OperationError, match="another machine is moving"):
            await moved(taking, to_server=False)
        # The first one gives it up, so the other one may.
        assert await moving.waiting(to_server=True, only="") == ["notes"]
        await moved(moving, to_server=True)
        assert await places.server.state("notes") == "live"
        assert await moving.waiting(to_server=True, only="") == []
        await moved(taking, to_server=False)
        assert await elsewhere.local.holds("notes")
        assert len(await state(others)) == 50


async def test_a_collection_frozen_by_a_kernel_that_died_is_written_by_the_others(
    tmp_path: Path, server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended(BaseException):
        """The process is gone."""

    async with kernel(tmp_path / "second", server, schema, WordEmbedder()) as (others, places, _):
        await others.ask("notes", lambda each: each.put(GROUPS[:5]))
        with contextlib.suppress(Ended, BaseExceptionGroup):
            async with kernel(tmp_path / "first", server, schema, WordEmbedder()) as (_, _, moving):
                await moved(Migration(others, places), to_server=True)
                monkeypatch.setattr(Places, "freeze", _ending(Places.freeze, Ended, after=True))
                await moved(moving, to_server=False)
        assert await places.server.state("notes") == "frozen"
        with trio.fail_after(20):
            while True:
                try:
                    await others.ask("notes", lambda each: each.put([group("new", "piece")]))
                    break
                except Unavailable:
                    await trio.sleep(0.05)
        assert len(await state(others)) == 6


async def test_leftovers_on_the_server_are_removed_later(
    tmp_path: Path, server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(name: str) -> bool:
        raise Unavailable("the server is away", retry_after_ms=1)

    async with kernel(tmp_path, server, schema, WordEmbedder()) as (collections, places, moving):
        await collections.ask("notes", lambda each: each.put(GROUPS[:5]))
        await moved(moving, to_server=True)
        with monkeypatch.context() as patch:
            patch.setattr(places.server, "remove", away)
            await moved(moving, to_server=False)
            assert await places.server.state("notes") == "left"
            # The files are used as long as that takes.
            assert len(await state(collections)) == 5
        await moved(moving, to_server=True)
        assert len(await state(collections)) == 5


async def test_another_collection_of_that_name_on_the_server_is_not_touched(
    tmp_path: Path, server: PostgresServer, schema: str
) -> None:
    embedder = WordEmbedder()
    async with kernel(tmp_path / "first", server, schema, embedder) as (collections, _, moving):
        await collections.ask("notes", lambda each: each.put([group("first", "piece")]))
        await moved(moving, to_server=True)
    async with kernel(tmp_path / "second", server, schema, embedder) as (collections, places, moving):
        # Another data directory had one of this name before it knew the server.
        made = await places.local.open("notes", lambda: None)
        await made.put([group("second", "piece")])
        await trio.to_thread.run_sync(made.close)
        with pytest.raises(OperationError, match="another collection"):
            await moved(moving, to_server=True)
        assert [each.id for each in cast(list[Any], await state(collections))] == ["second"]


async def test_a_server_that_goes_away_meanwhile_only_delays_it(
    tmp_path: Path, server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration, "PAGE", 20)
    embedder = WordEmbedder()
    async with kernel(tmp_path / "data", server, schema, embedder) as (collections, _, moving):
        await collections.ask("notes", lambda each: each.put(GROUPS))
        before = _without_vectors(await state(collections))
        async with trio.open_nursery() as nursery:

            async def restart() -> None:
                for _ in range(3):
                    await trio.sleep(0.15)
                    await trio.to_thread.run_sync(server.restart)

            nursery.start_soon(restart)
            with contextlib.suppress(LinckiaError):
                await moved(moving, to_server=True)
        await moved(moving, to_server=True)
        assert _without_vectors(await state(collections)) == before
