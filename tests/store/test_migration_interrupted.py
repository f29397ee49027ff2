"""A migration that is killed, or loses its server, loses nothing and is resumed."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel

from proto.errors import LinckiaError, Unavailable
from services.retrieve import client_collections, migration
from services.retrieve.engine import NAMES, LocalEngine
from services.retrieve.index.segment import VectorLimits
from services.retrieve.migration import Migration
from services.retrieve.places import Places
from services.retrieve.postgres.engine import PostgresEngine
from services.retrieve.postgres.server import Server
from services.runtime.database import Kind
from tests.postgres import PostgresServer
from tests.store.migrations import GROUPS, ending, kernel, moved, state
from tests.store.rig import FLAT
from tests.unit.retrieve.rig import WordEmbedder, group

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
                patch.setattr(owner, step, ending(original, Ended, after=after))
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
