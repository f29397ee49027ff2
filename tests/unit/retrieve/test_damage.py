"""A damaged page costs one collection its content until its corpus has fed it again, and no other anything; a full disk
is said as such, and nothing dies of it."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path

import apsw
import pytest
import trio
import trio.testing

from proto.errors import Unavailable
from proto.ops.documents.reading import CORPUS
from proto.ops.retrieve import (
    Fusion,
    Group,
    Item,
    RetrieveEpoch,
    RetrievePut,
    RetrieveSearch,
    RetrieveStatus,
    SearchResult,
)
from services.documents.main import open_service as open_documents
from services.documents.operations.adding import DocumentsAdd
from services.retrieve.main import open_service
from services.runtime.storage import DiskFull
from tests.in_process import Bench, services_in_process
from tests.unit.retrieve.rig import WordEmbedder, drained, group, opened, worked
from tests.unit.runtime.faults import damage_page, disk, pages_of

NOTES, TURNS = "notes", "turns"


def piece(name: str) -> Group:
    return Group(id=name, items=[Item(key="0", text=f"zebra {name} " * 400, embed=False)])


async def put(bench: Bench, collection: str, count: int = 40) -> str:
    groups = [piece(f"{collection}-{n}") for n in range(count)]
    return (await bench.call(RetrievePut(collection=collection, groups=groups))).epoch


async def find(bench: Bench, collection: str) -> SearchResult:
    query = RetrieveSearch(collection=collection, query="zebra", limit=100, fusion=Fusion(method="lexical"))
    return await bench.call(query)


def harm(path: Path, table: str) -> None:
    """Overwrite every page of a table; the log is moved into the file first."""
    with closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    for page in pages_of(path, table):
        damage_page(path, page)


@pytest.mark.slow
@pytest.mark.parametrize("running", [True, False])
async def test_a_damaged_collection_alone_starts_again_and_is_filled_again(tmp_path: Path, running: bool) -> None:
    path = tmp_path / "retrieve" / "notes.db"
    async with services_in_process({"retrieve": open_service}, tmp_path) as bench:
        epoch = await put(bench, NOTES)
        others = await put(bench, TURNS)
        assert (await bench.call(RetrieveEpoch(collection=NOTES, filled=epoch))).epoch == epoch
        told: list[str] = []
        async with trio.open_nursery() as nursery:

            async def follow() -> None:
                told.append((await bench.call(RetrieveEpoch(collection=NOTES, filled=epoch, wait_s=60))).epoch)

            if running:
                nursery.start_soon(follow)
                await trio.testing.wait_all_tasks_blocked()
                harm(path, "items")
                # Pages that a connection holds are not read again.
                for collection in (NOTES, TURNS):
                    await bench.call(RetrieveStatus(collection=collection))
            else:
                await bench.stop("retrieve")
                harm(path, "items")
                await bench.start("retrieve")
            found = await find(bench, NOTES)
            assert found.hits == []
            assert "is being refilled" in found.degraded[0]
            if not running:
                told.append((await bench.call(RetrieveEpoch(collection=NOTES))).epoch)
        assert told[0] not in ("", epoch)
        assert len((await find(bench, TURNS)).hits) == 40
        assert (await bench.call(RetrieveEpoch(collection=TURNS))).epoch == others

        assert await put(bench, NOTES) == told[0]
        found = await find(bench, NOTES)
        assert (len(found.hits), len(found.degraded)) == (40, 1)
        assert (await bench.call(RetrieveEpoch(collection=NOTES, filled=told[0]))).epoch == told[0]
        found = await find(bench, NOTES)
        assert (len(found.hits), found.degraded) == (40, [])
        assert (await bench.call(RetrieveStatus(collection=NOTES))).degraded == []
    assert len(list((tmp_path / "retrieve").glob("*.damaged-*"))) == 1


async def test_damaged_pages_of_the_word_index_cost_that_index_alone(tmp_path: Path) -> None:
    path = tmp_path / "retrieve" / "notes.db"
    async with services_in_process({"retrieve": open_service}, tmp_path) as bench:
        epoch = await put(bench, NOTES)
        await bench.stop("retrieve")
        harm(path, "words_data")
        await bench.start("retrieve")
        with trio.fail_after(20):
            while True:
                # Words alone are asked for, and are being rebuilt.
                with suppress(Unavailable):
                    found = await find(bench, NOTES)
                    if len(found.hits) == 40 and not found.degraded:
                        break
        assert await put(bench, NOTES) == epoch
    assert not list((tmp_path / "retrieve").glob("*.damaged-*"))


async def test_a_put_on_a_damaged_word_index_rebuilds_it_on_the_way(tmp_path: Path) -> None:
    async with opened(tmp_path) as collection:
        await collection.put([group(str(n), f"cat number {n} " * 50) for n in range(50)])
        await collection.on_writer(lambda db: db.execute("UPDATE words_data SET block = x'ffffffffffffffffffff'"))
        await collection.put([group("new", "cat of today")])
        assert len((await collection.find_words("cat", 100, ())).hits) == 51


@pytest.mark.slow
async def test_a_full_disk_is_reported_reads_continue_and_vectors_follow_once_there_is_room(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    with disk() as full:
        async with opened(tmp_path) as collection:
            await collection.put([group("a", "cat one", "cat two")])
            for at in range(1, 8):
                full.fill(at)
                with pytest.raises(DiskFull, match="nothing was done"):
                    await collection.put([group("b", "dog one"), group("a", "cat three")])
                full.room()
                assert (await collection.status()).items == 2
            full.fill()
            async with worked(collection, embedder):
                await embedder.until_called(2)
                assert collection.waiting == 2
                assert len((await collection.find_words("cat", 10, ())).hits) == 2
                full.room()
                await drained(collection)
            assert len(collection.vectors) == 2
            await collection.put([group("b", "dog one")])
            assert (await collection.status()).items == 3


async def test_documents_fill_a_collection_that_started_again_by_themselves(tmp_path: Path) -> None:
    path = tmp_path / "retrieve" / f"{CORPUS}.db"
    services = {"retrieve": open_service, "documents": open_documents}
    status = RetrieveStatus(collection=CORPUS)
    async with services_in_process(services, tmp_path) as bench:
        for n in range(3):
            await bench.call(DocumentsAdd(name=f"{n}.txt", content=f"The sea star number {n} grows back its arm."))
        with trio.fail_after(30):
            while (before := await bench.call(status)).groups < 3:  # noqa: ASYNC110  # another service's state
                await trio.sleep(0.01)
            harm(path, "groups")
            while (after := await bench.call(status)).epoch == before.epoch or after.degraded:
                await bench.call(RetrieveSearch(collection=CORPUS, query="sea", fusion=Fusion(method="lexical")))
                await trio.sleep(0.01)
        assert after.groups == 3


async def test_a_call_that_waits_for_another_epoch_is_answered_when_the_service_ends(tmp_path: Path) -> None:
    async with services_in_process({"retrieve": open_service}, tmp_path) as bench:
        epoch = await put(bench, NOTES)
        answers: list[str] = []

        async def wait() -> None:
            answers.append((await bench.call(RetrieveEpoch(collection=NOTES, filled=epoch, wait_s=60))).epoch)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            await bench.finish("retrieve")
        assert answers == [epoch]
