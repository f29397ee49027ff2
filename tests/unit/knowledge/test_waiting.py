"""Waiting for the ingest: the call returns once everything found is indexed, reports progress, and refuses other
folders.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from proto.errors import InvalidParams, LinckiaError, Unavailable
from services.knowledge.operations.notes import KnowledgeIngest, KnowledgeIngestResult, SearchDocuments
from tests.unit.knowledge.rig import MemorySearch, notes_service, settled, write


async def test_notes_written_before_the_call_are_found_after_it(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    async with notes_service(tmp_path / "data", root) as bench:
        for n in range(3):
            for m in range(20):
                write(root, f"d{n}/n{n}-{m}.md", f"# N\n\nzebra{n}x{m}\n")
            done = await bench.call(KnowledgeIngest())
            assert (done.notes, done.indexed, done.failed_count, done.vectors_waiting) == (20 * (n + 1), 20, 0, 0)
            assert len((await bench.call(SearchDocuments(query=f"zebra{n}x7"))).results) == 1
        again = await bench.call(KnowledgeIngest(paths=[str(root / "d1")]))
        assert (again.notes, again.indexed) == (20, 0)


@pytest.mark.slow
async def test_ingest_waits_while_the_search_is_away_and_says_why(tmp_path: Path) -> None:
    root, search = tmp_path / "root", MemorySearch()
    write(root, "a.md", "# A\n")
    failing = True

    def refuse(ids: list[str]) -> LinckiaError | None:
        return Unavailable("it is being started") if failing else None

    async with notes_service(tmp_path / "data", root, search=search) as bench:
        await settled(bench, 1)
        search.refuse = refuse
        write(root, "b.md", "# B\n")
        done: list[KnowledgeIngestResult] = []

        async def wait() -> None:
            done.append(await bench.call(KnowledgeIngest()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            with pytest.raises(LinckiaError):
                await bench.call(KnowledgeIngest(), timeout_s=0.3)
            assert done == []
            failing = False
        assert (done[0].notes, done[0].indexed) == (2, 1)


async def test_note_that_cannot_be_indexed_is_named(tmp_path: Path) -> None:
    root, search = tmp_path / "root", MemorySearch()
    write(root, "good.md", "# Good\n")
    write(root, "bad.md", "# Bad\n")
    search.refuse = lambda ids: InvalidParams("not this one") if "bad" in ids else None
    async with notes_service(tmp_path / "data", root, search=search) as bench:
        done = await bench.call(KnowledgeIngest())
        # The good one may have been indexed before the call came.
        assert (done.notes, done.failed_count) == (2, 1)
        assert (done.failed[0].path, "not this one" in done.failed[0].reason) == (str(root / "bad.md"), True)


@pytest.mark.parametrize("path", ["/etc", "{root}/../other", "{root}-beside", "{root}/missing"])
async def test_other_folders_are_refused_by_name(tmp_path: Path, path: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    async with notes_service(tmp_path / "data", root) as bench:
        with pytest.raises(InvalidParams, match=r"paths\[1\]"):
            await bench.call(KnowledgeIngest(paths=[str(root), path.format(root=root)]))
