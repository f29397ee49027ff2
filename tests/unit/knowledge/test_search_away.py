"""The index while the search, or its own database, fails: the answers meanwhile, and how both recover."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from proto.errors import Internal, LinckiaError, Unavailable
from services.knowledge.operations.notes import KnowledgeStatsSummary, KnowledgeStatus, SearchDocuments
from tests.unit.knowledge.rig import MemorySearch, found, notes_service, read, settled, until, write


async def test_search_fails_openly_while_the_search_is_down_and_the_rest_answers(tmp_path: Path, root: Path) -> None:
    write(root, "a.md", "zebra [[b]]")
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench, 1)
        await bench.stop("retrieve")
        with pytest.raises(Unavailable):
            await found(bench, "zebra")
        with pytest.raises(Unavailable):
            await bench.call(KnowledgeStatsSummary())
        write(root, "b.md", "giraffe")
        await until(bench, lambda status: (status.notes, status.pending) == (2, 1) and status.waiting is not None)
        assert await read(bench, "b") == "giraffe"
        await bench.start("retrieve")
        await settled(bench, 2)
        assert await found(bench, "giraffe") == ["b"]


@pytest.mark.slow
async def test_answer_says_how_far_the_ingest_is(tmp_path: Path, root: Path) -> None:
    search = MemorySearch()
    write(root, "a.md", "zebra")
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        await settled(bench, 1)
        search.refuse = lambda ids: Unavailable("starting", retry_after_ms=100)
        write(root, "b.md", "zebra")
        await until(bench, lambda status: status.waiting is not None)
        degraded = (await bench.call(SearchDocuments(query="zebra"))).metadata.degraded
        assert degraded == [
            "index: 1 of 2 notes are not indexed yet",
            "index: waiting: the search is not available: starting",
        ]
        search.refuse = lambda ids: None
        await settled(bench, 2)
        assert (await bench.call(SearchDocuments(query="zebra"))).metadata.degraded == []


async def test_note_that_the_search_refuses_is_named_and_stops_no_other(tmp_path: Path, root: Path) -> None:
    search = MemorySearch()
    search.refuse = lambda ids: Internal("cannot take it") if "poison" in ids else None
    for number in range(100):
        write(root, f"n{number}.md", f"zebra {number}")
    write(root, "poison.md", "zebra")
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        status = await until(bench, lambda status: status.notes == 101 and status.pending == 1)
        assert [(problem.path, problem.reason) for problem in status.problems] == [
            (str(root / "poison.md"), "rejected by the search: cannot take it")
        ]
        assert len(search.groups) == 100
        search.refuse = lambda ids: None
        write(root, "poison.md", "zebra mended")
        await settled(bench, 101)
        assert len(search.groups) == 101


async def test_search_that_refuses_everything_makes_the_ingest_wait(tmp_path: Path, root: Path) -> None:
    search = MemorySearch()
    search.refuse = lambda ids: Internal("disk full") if ids else None
    for number in range(40):
        write(root, f"n{number}.md", "zebra")
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        status = await until(bench, lambda status: status.waiting is not None)
        assert status.waiting is not None
        assert "it rejects every note: disk full" in status.waiting
        search.refuse = lambda ids: None
        await settled(bench, 40)
        assert len(search.groups) == 40


@pytest.mark.slow
@pytest.mark.parametrize("failures", [[Unavailable("down")] * 3, [Internal("odd")] * 2])
async def test_missing_and_leftover_groups_are_repaired_at_the_start(
    tmp_path: Path, root: Path, failures: Sequence[LinckiaError]
) -> None:
    search = MemorySearch()
    for name in "abc":
        write(root, f"{name}.md", f"zebra {name}")
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        await settled(bench, 3)
    search.groups["stray"] = search.groups.pop("b")
    coming = list(failures)
    search.refuse = lambda ids: coming.pop() if coming else None
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        await until(bench, lambda status: sorted(search.groups) == ["a", "b", "c"] and not status.pending)
    assert coming == []


async def test_a_damaged_database_is_set_aside_and_rebuilt(tmp_path: Path, root: Path) -> None:
    search = MemorySearch()
    write(root, "a.md", "zebra")
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        await settled(bench, 1)
    database = tmp_path / "data/knowledge/notes.db"
    write(database.parent, database.name, "rubbish" * 1000)
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        assert (await settled(bench, 1)).rebuilt
        assert await found(bench, "zebra") == ["a"]
    assert any(name.startswith("notes.db.damaged-") for name in os.listdir(tmp_path / "data/knowledge"))


@pytest.mark.slow
async def test_service_is_ready_and_answers_before_the_first_scan_is_through(tmp_path: Path, root: Path) -> None:
    search = MemorySearch()
    write(root, "a.md", "zebra")
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        await settled(bench, 1)
    gate = trio.Event()
    search.refuse = lambda ids: Unavailable("not yet") if not gate.is_set() else None
    for number in range(10):
        write(root, f"n{number}.md", "giraffe")
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        answer = await bench.call(SearchDocuments(query="zebra"))
        assert [hit.id for hit in answer.results] == ["a"]
        assert answer.metadata.degraded
        gate.set()
        await settled(bench, 11)
        assert (await bench.call(KnowledgeStatus())).waiting is None
