"""Collections move between files and a PostgreSQL server while they are used."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.lowlevel

from proto.errors import Unavailable
from proto.ops.retrieve import RetrieveSearch
from services.retrieve import migration
from services.retrieve.local_collection import LocalCollection
from tests.postgres import PostgresServer
from tests.store.migrations import GROUPS, kernel, moved, state
from tests.unit.retrieve.rig import WordEmbedder, ask, drained, group


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
