"""Client collections that several machines use on one server, each with a service of its own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from proto.errors import InvalidParams, LinckiaError
from services.retrieve.main import open_service
from services.retrieve.operations import (
    CollectionCount,
    CollectionCreate,
    CollectionDrop,
    CollectionListParams,
    CollectionUpsert,
    Document,
    RetrieveMigrate,
)
from tests.in_process import Bench, services_in_process
from tests.postgres import PostgresServer


@contextlib.asynccontextmanager
async def two_machines(
    folder: Path, server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch, store: str = "postgres"
) -> AsyncIterator[tuple[Bench, Bench]]:
    monkeypatch.setenv("SERVER_OF_TESTS", server.dsn)
    settings = {"rerank": "off", "store": store, "dsn_env": "SERVER_OF_TESTS", "schema": schema}
    async with (
        services_in_process({"retrieve": open_service}, folder / "desk", settings={"retrieve": settings}) as desk,
        services_in_process({"retrieve": open_service}, folder / "other", settings={"retrieve": settings}) as other,
    ):
        yield desk, other


async def upsert(bench: Bench, *ids: str) -> None:
    await bench.call(CollectionUpsert(collection="mine", documents=[Document(id=id_, text="piece") for id_ in ids]))


async def until_gone(bench: Bench) -> None:
    """Wait until this machine has noticed that the collection is gone."""
    with trio.fail_after(20):
        while True:
            try:
                await bench.call(CollectionCount(collection="mine"))
            except InvalidParams as error:
                if "there are: none" in error.failure.message:
                    return
            except LinckiaError:
                pass
            await trio.sleep(0.1)


async def test_a_collection_that_another_machine_dropped_stays_dropped_and_can_be_made_again(
    tmp_path: Path, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_machines(tmp_path, server, "dropped", monkeypatch, "local") as (desk, other):
        for round_ in range(2):
            await desk.call(CollectionCreate(collection="mine"))
            await upsert(desk, "a")
            await desk.call(RetrieveMigrate(to="postgres", collection="own.mine"))
            await upsert(other, "b")
            found = (await desk.call(CollectionListParams())).collections
            assert [(each.collection, each.documents) for each in found] == [("mine", 2)], round_
            assert (await desk.call(CollectionDrop(collection="mine"))).dropped
            await until_gone(other)
            assert list((tmp_path / "other" / "retrieve").glob("own.*")) == []


async def test_a_collection_that_another_machine_moved_away_is_not_recreated(
    tmp_path: Path, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_machines(tmp_path, server, "taken", monkeypatch) as (desk, other):
        await desk.call(CollectionCreate(collection="mine"))
        await upsert(other, "a")
        assert (await desk.call(RetrieveMigrate(to="local", collection="own.mine"))).left == []
        await until_gone(other)
        assert (await desk.call(CollectionCount(collection="mine"))).documents == 1


async def test_the_size_of_a_collection_is_right_when_many_write_at_once(
    tmp_path: Path, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_machines(tmp_path, server, "sizes", monkeypatch) as machines:
        await machines[0].call(CollectionCreate(collection="mine"))
        async with trio.open_nursery() as nursery:
            for n in range(20):
                nursery.start_soon(upsert, machines[n % 2], f"{n:02}", "same")
        (found,) = (await machines[1].call(CollectionListParams())).collections
        assert (found.documents, found.bytes) == (21, 20 * len("00piece{}") + len("samepiece{}"))


async def test_two_machines_that_create_a_collection_at_once_agree_what_it_takes(
    tmp_path: Path, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_machines(tmp_path, server, "created", monkeypatch) as machines:
        made: list[int | None] = []

        async def create(bench: Bench, dimensions: int) -> None:
            with contextlib.suppress(InvalidParams):
                made.append((await bench.call(CollectionCreate(collection="mine", dimensions=dimensions))).dimensions)

        async with trio.open_nursery() as nursery:
            for n, bench in enumerate(machines):
                nursery.start_soon(create, bench, n + 2)
        (found,) = (await machines[0].call(CollectionListParams())).collections
        assert made == [found.dimensions]


async def test_a_migration_of_an_unknown_collection_names_the_existing_ones(
    tmp_path: Path, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_machines(tmp_path, server, "misnamed", monkeypatch) as (desk, _):
        await desk.call(CollectionCreate(collection="mine"))
        with pytest.raises(InvalidParams, match=r"'mine' does not exist; there are: own\.mine"):
            await desk.call(RetrieveMigrate(to="local", collection="mine"))
