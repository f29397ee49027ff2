"""Several kernels share the collections on a server, and one of them moves some away."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.lowlevel

from proto.errors import OperationError, Unavailable
from services.retrieve import migration
from services.retrieve.migration import Migration
from services.retrieve.places import Places
from tests.postgres import PostgresServer
from tests.store.migrations import GROUPS, ending, kernel, moved, state
from tests.unit.retrieve.rig import WordEmbedder, group


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
                monkeypatch.setattr(Places, "freeze", ending(Places.freeze, Ended, after=True))
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
