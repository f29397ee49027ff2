"""Entries, resource sets and jobs as resources: each URI that is named is found, and reads as the tools answer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import apsw
import pytest

from proto import ops
from proto.errors import InvalidParams, LinckiaError
from services.files.index.tree import find
from services.files.operations.index import Index
from services.files.operations.reading import Inspect
from services.files.query import sets
from services.front.surfaces.surface import Surface
from tests.in_process import Bench
from tests.unit.files.rig import files_service, index

SURFACE = Surface("files", ops.load())


async def read(bench: Bench, uri: str) -> Any:
    """As the gateway does."""
    found = SURFACE.find_resource(uri)
    assert found is not None, uri
    operation, arguments = found
    return await bench.call(operation.parse(arguments, strict=False))


def test_the_uris_are_listed() -> None:
    static = {resource["uri"] for resource in SURFACE.listed_resources}
    assert {"synthesis://nodes", "synthesis://resource-sets", "synthesis://jobs", "synthesis://jobs/failed"} <= static
    templates = {resource["uriTemplate"] for resource in SURFACE.listed_templates}
    assert {
        "synthesis://nodes/{+path}", "synthesis://resource-sets/{name}/metrics/{metric}", "synthesis://jobs/{id}",
    } <= templates  # fmt: skip


async def test_an_entry_is_read_by_the_uri_that_inspect_returns(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    names = ["plain", "a b%20c", "what?#x", "ü+é", "100%"]
    for name in names:
        (root / name).mkdir(parents=True)
        (root / name / name).write_bytes(name.encode())
    (root / os.fsdecode(b"not utf-8 \xff")).write_bytes(b"1")
    async with files_service(data, root) as bench:
        await index(bench, root)
        for path in (root, *(root / name / name for name in names), f"{root}/not utf-8 \U0010feff"):
            inspected = await bench.call(Inspect(path=str(path)))
            assert await read(bench, inspected.resource_uri) == inspected
        with pytest.raises(InvalidParams, match="is not indexed"):
            await read(bench, f"synthesis://nodes{root}/none")
        with pytest.raises(InvalidParams, match="outside the roots"):
            await read(bench, "synthesis://nodes/")


async def test_lists_are_read_page_by_page(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    for number in range(25):
        (root / f"d{number % 3}").mkdir(parents=True, exist_ok=True)
        (root / f"d{number % 3}" / f"f{number}").write_bytes(b"x")
    async with files_service(data, root) as bench:
        await index(bench, root)
        uri = "synthesis://nodes?limit=7"
        seen: list[str] = []
        while uri:
            page = await read(bench, uri)
            assert (page.total, page.offset) == (29, len(seen))
            seen += [entry.path for entry in page.entries]
            uri = page.next
        assert len(set(seen)) == len(seen) == 29
        with pytest.raises(InvalidParams, match="unknown parameter `size`"):
            await read(bench, "synthesis://nodes?size=7")
        with pytest.raises(InvalidParams, match="limit"):
            await read(bench, "synthesis://nodes?limit=0")


async def test_sets_are_read_with_entries_neighbours_and_numbers(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_bytes(b"x" * 10)
    (root / "sub/b.TXT").write_bytes(b"x" * 32)
    async with files_service(data, root) as bench:
        await index(bench, root)
        db = apsw.Connection(str(data / "files/files.db"))
        db.set_busy_timeout(10_000)  # the service writes to it, too
        with db:
            upper, lower = sets.make(db, "all of/it", "everything"), sets.make(db, "part")
            db.execute("INSERT INTO edge VALUES(?,?)", (upper, lower))
            for id_, path in ((upper, "a.txt"), (lower, "sub"), (lower, "sub/b.TXT")):
                entry = find(db, str(root / path))
                assert entry is not None
                sets.add(db, id_, [entry.id])
        db.close()
        base = "synthesis://resource-sets"
        listed = await read(bench, base)
        assert [(each.name, each.entry_count, each.child_count) for each in listed.resource_sets] == [
            ("all of/it", 1, 1), ("part", 2, 0),
        ]  # fmt: skip
        named = f"{base}/all%20of%2Fit"
        assert (await read(bench, named)).description == "everything"
        assert [entry.path for entry in (await read(bench, f"{named}/entries")).entries] == [str(root / "a.txt")]
        assert [child.name for child in (await read(bench, f"{named}/children")).children] == ["part"]
        assert [parent.name for parent in (await read(bench, f"{base}/part/parents")).parents] == ["all of/it"]
        stats = await read(bench, f"{named}/stats")
        assert (stats.entry_count, stats.count, stats.files, stats.directories, stats.size) == (1, 3, 2, 1, 42)
        assert stats.extensions == {"txt": 2}
        assert stats.largest.size == 32
        assert (await read(bench, f"{named}/metrics/size")).value == 42
        with pytest.raises(InvalidParams, match="there are: count, directories, files, size"):
            await read(bench, f"{named}/metrics/colour")
        with pytest.raises(InvalidParams, match="resource-set not found"):
            await read(bench, f"{base}/none/stats")


async def test_jobs_are_read_by_number_and_status(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    root.mkdir()
    async with files_service(data, root) as bench:
        await index(bench, root)
        job = await bench.call(Index(root=str(root), force=True))
        assert job.status_url is not None
        assert (await read(bench, job.status_url)).root == str(root)
        await index(bench, root)
        assert [job.status for job in (await read(bench, "synthesis://jobs/completed?limit=1")).jobs] == ["completed"]
        assert (await read(bench, "synthesis://jobs/failed")).jobs == []
        assert (await read(bench, "synthesis://jobs")).total >= 2
        with pytest.raises(LinckiaError, match="no job 999"):
            await read(bench, "synthesis://jobs/999")
        with pytest.raises(InvalidParams, match="id"):
            await read(bench, "synthesis://jobs/what")


async def test_plans_and_their_executions_are_read(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    root.mkdir()
    async with files_service(data, root) as bench:
        db = apsw.Connection(str(data / "files/files.db"))
        db.set_busy_timeout(10_000)  # the service writes to it, too
        for name in ("daily", "in/out"):
            db.execute("INSERT INTO plan VALUES(?, '{\"mode\": \"oneshot\"}', 0, 0, 'active')", (name,))
        for number in range(3):
            db.execute(
                "INSERT INTO execution(plan, definition, status, started, finished, processed, matched)"
                " VALUES('in/out', '{}', 'completed', 5000000000, 7000000000, ?, 1)",
                (number,),
            )
        db.close()
        assert [plan.name for plan in (await read(bench, "synthesis://plans")).plans] == ["daily", "in/out"]
        assert (await read(bench, "synthesis://plans/in%2Fout")).definition == {"mode": "oneshot"}
        page = await read(bench, "synthesis://plans/in%2Fout/executions?limit=2")
        assert [(run.entries_processed, run.started_at, run.completed_at) for run in page.executions] == [
            (2, 5, 7), (1, 5, 7),
        ]  # fmt: skip
        assert [run.entries_processed for run in (await read(bench, page.next)).executions] == [0]
        assert (await read(bench, "synthesis://plan-executions")).total == 3
        assert (await read(bench, "synthesis://plans/daily/executions")).executions == []
        with pytest.raises(InvalidParams, match="there are: daily, in/out"):
            await read(bench, "synthesis://plans/weekly")
