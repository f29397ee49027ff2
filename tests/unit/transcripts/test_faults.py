"""A full disk and damaged pages: turns are served as far as they can be read, and nothing ends the service."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
import trio

from proto.errors import Executed, OperationError
from proto.ops.retrieve import RetrieveStatus
from services.runtime.storage import DiskFull
from services.transcripts.database import open_database
from services.transcripts.ingest import Ingest
from services.transcripts.messages import Stripper
from services.transcripts.operations.conversations import (
    SearchEverything,
    TranscriptCheckout,
    TranscriptDelete,
    TranscriptHistory,
    TranscriptSearchResult,
    TranscriptsSearch,
    TranscriptStats,
)
from services.transcripts.operations.intake import TranscriptIngest
from tests.in_process import Bench
from tests.unit.runtime.faults import damage_page, disk, page_count, pages_of
from tests.unit.transcripts.rig import payload, post, serving, user

LONG = " and what was said then" * 400


async def talk(bench: Bench, about: str) -> str:
    """A conversation of its own; its head."""
    return (await post(bench, payload([user(f"tell me of {about}{LONG}")], f"{about} it is{LONG}"))).head_hash


async def search(bench: Bench) -> TranscriptSearchResult:
    return await bench.call(TranscriptsSearch(query="otters"))


async def refusal(call: Awaitable[Any]) -> OperationError | None:
    """What a call was refused with, nothing being done; None where it was not."""
    try:
        await call
    except OperationError as error:
        return error
    return None


@pytest.mark.parametrize("statement", range(1, 8))
async def test_a_full_disk_at_any_statement_changes_nothing_and_reads_continue(tmp_path: Path, statement: int) -> None:
    async with serving(tmp_path) as bench:
        head = await talk(bench, "otters")
        await bench.call(TranscriptsSearch(query="otters"))
        await bench.finish("transcripts")
        with disk() as full:
            await bench.start("transcripts")
        full.fill(at=statement)
        error = await refusal(talk(bench, "walruses"))
        assert error is not None
        assert "nothing was done" in str(error)
        assert error.failure.executed is Executed.NO
        assert (await bench.call(TranscriptStats())).total_nodes == 2
        assert await bench.call(TranscriptHistory(hash=head)) is not None
        full.room()
        await talk(bench, "walruses")
        assert (await bench.call(TranscriptStats())).total_nodes == 4
        assert len((await bench.call(TranscriptsSearch(query="walruses"))).results) == 2
        assert not bench.failures


@pytest.mark.slow
async def test_the_feed_waits_for_free_space_and_delivers_everything(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await bench.finish("transcripts")
        with disk() as full:
            await bench.start("transcripts")
        await bench.stop("retrieve")
        await talk(bench, "otters")
        full.fill()
        await bench.start("retrieve")
        with trio.fail_after(20):
            while True:
                # The search received it, and a full disk cannot prevent that.
                if (await bench.call(RetrieveStatus(collection="transcripts"))).groups == 2 and full.struck:
                    break
                await trio.sleep(0.01)
        full.room()
        with trio.fail_after(20):
            while "index" in str((found := await search(bench)).degraded):
                continue
        assert len(found.results) == 2
        assert not bench.failures


async def test_full_disk_in_a_batch_fails_each_turn_of_it(tmp_path: Path) -> None:
    with disk() as full:
        database = open_database(tmp_path / "transcripts.db")
        ingest = Ingest(database, None, Stripper())
        turn = b'{"provider":"openai","request":{"messages":[{"role":"user","content":"x%d"}]},"response":{"choices":'
        turn += b'[{"message":{"role":"assistant","content":"y"},"finish_reason":"stop"}]}}'
        failed: list[int] = []

        async def client(number: int) -> None:
            try:
                await ingest.post(TranscriptIngest(body=turn % number))
            except DiskFull:
                failed.append(number)

        full.fill(at=5)
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(client, number)
        kept = await database.read(lambda db: db.execute("SELECT count(*) FROM node").get)
        assert kept == 2 * (20 - len(failed))
        assert failed
        database.close()


async def test_damaged_page_fails_what_is_on_it_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "transcripts/transcripts.db"
    animals = ("otters", "walruses", "herons", "badgers")
    async with serving(tmp_path) as bench:
        heads = {about: await talk(bench, about) for about in animals}
        await bench.call(TranscriptsSearch(query="otters"))
        await bench.finish("transcripts")
        # The last pages of the table hold the contents of some turns.
        for page in [page for page in pages_of(path, "node") if page > 2][-9:-1]:
            damage_page(path, page)
        await bench.start("transcripts")
        served, refused = [], []
        for about, head in heads.items():
            error = await refusal(bench.call(TranscriptCheckout(hash=head)))
            if error is None:
                served.append(about)
                continue
            assert str(path) in str(error)
            assert "sqlite3" in str(error)
            assert error.failure.executed is Executed.NO
            refused.append(about)
        assert served
        assert refused
        found = await bench.call(TranscriptsSearch(query=" ".join(animals), top_k=20))
        assert {hit.hash for hit in found.results} >= {heads[each] for each in served}
        assert any(str(path) in each for each in found.degraded)
        everything = await bench.call(SearchEverything(query=" ".join(animals)))
        assert any(str(path) in each for each in everything.degraded)
        assert (await bench.call(TranscriptCheckout(hash=heads[served[0]]))).depth == 2
        with pytest.raises(OperationError, match="is damaged"):
            await bench.call(TranscriptDelete(hash=heads[refused[0]]))
        assert not bench.failures


@pytest.mark.parametrize("page", [1, 2])
async def test_file_that_is_no_database_is_kept_and_the_service_starts(tmp_path: Path, page: int) -> None:
    path = tmp_path / "transcripts/transcripts.db"
    async with serving(tmp_path) as bench:
        await talk(bench, "otters")
        await bench.finish("transcripts")
        assert page_count(path) > 2
        damage_page(path, page)
        before = path.read_bytes()
        await bench.start("transcripts")
        for _ in range(2):
            with pytest.raises(OperationError, match=r"transcripts\.db is damaged"):
                await bench.call(TranscriptStats())
        assert not bench.failures
        assert path.read_bytes()[:8192] == before[:8192]
