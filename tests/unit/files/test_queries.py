"""Saved queries: they find what their filter says, keep what an update does not name, and refuse what cannot run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proto.errors import InvalidParams
from proto.operation import Params
from proto.validation import validate
from services.files.operations.queries import (
    FilesFind,
    QueryCreate,
    QueryDelete,
    QueryExecute,
    QueryGet,
    QueryList,
    QueryUpdate,
)
from services.files.operations.shared import Filter
from tests.unit.files.rig import files_service, index


def make(root: Path) -> None:
    (root / "in").mkdir(parents=True)
    for number in range(10):
        (root / "in" / f"clip{number}.MP4").write_bytes(b"x" * (number * 100))
    (root / "note.txt").write_text("note")


async def test_a_query_returns_its_matches_page_by_page_and_after_a_restart(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    make(root)
    async with files_service(data, root) as bench:
        await index(bench, root)
        saved = await bench.call(
            QueryCreate(name="clips", description="long ones", query=Filter(extension=".mp4", min_size=300))
        )
        assert (saved.name, saved.description, saved.query.min_size) == ("clips", "long ones", 300)
        await bench.stop("files")
        await bench.start("files")
        first = await bench.call(QueryExecute(name="clips", limit=3))
        assert [entry.size for entry in first.entries] == [900, 800, 700]
        assert (first.total_count, first.returned_count, first.has_more) == (7, 3, True)
        last = await bench.call(QueryExecute(name="clips", limit=3, offset=6))
        assert ([entry.size for entry in last.entries], last.has_more) == ([300], False)
        (root / "in/clip9.MP4").unlink()
        await index(bench, root)
        assert (await bench.call(QueryExecute(name="clips"))).total_count == 6


async def test_update_keeps_what_it_does_not_name(tmp_path: Path) -> None:
    async with files_service(tmp_path / "data", tmp_path) as bench:
        await bench.call(QueryCreate(name="q", description="before", query=Filter(kind="file")))
        changed = await bench.call(QueryUpdate(name="q", query=Filter(name_contains="x")))
        assert (changed.description, changed.query) == ("before", Filter(name_contains="x"))
        changed = await bench.call(QueryUpdate(name="q", description=""))
        assert (changed.description, changed.query) == ("", Filter(name_contains="x"))
        assert changed == await bench.call(QueryGet(name="q"))
        assert changed.updated_at > changed.created_at


async def test_names_are_unique_and_errors_for_unknown_ones_list_the_known(tmp_path: Path) -> None:
    async with files_service(tmp_path / "data", tmp_path) as bench:
        with pytest.raises(InvalidParams, match=r"none; create one with queries_create"):
            await bench.call(QueryExecute(name="q"))
        await bench.call(QueryCreate(name="q", query=Filter()))
        with pytest.raises(InvalidParams, match="already") as taken:
            await bench.call(QueryCreate(name="q", query=Filter()))
        assert taken.value.failure.field == "name"
        await bench.call(QueryCreate(name="a", query=Filter()))
        calls: tuple[Params[Any], ...] = (
            QueryGet(name="x"), QueryUpdate(name="x"), QueryDelete(name="x"), QueryExecute(name="x"),
        )  # fmt: skip
        for call in calls:
            with pytest.raises(InvalidParams, match="there are: a, q"):
                await bench.call(call)
        assert (await bench.call(QueryDelete(name="q"))).deleted
        listing = await bench.call(QueryList())
        assert ([query.name for query in listing.queries], listing.total) == (["a"], 1)


async def test_query_that_cannot_run_is_refused_by_the_name_of_its_field(tmp_path: Path) -> None:
    async with files_service(tmp_path / "data", tmp_path) as bench:
        with pytest.raises(InvalidParams, match=r"`query\.min_mtime`") as refused:
            await bench.call(QueryCreate(name="q", query=Filter(min_mtime="soon")))
        assert refused.value.failure.field == "query.min_mtime"
        with pytest.raises(InvalidParams, match=r"`query\.sort_by`"):
            validate(QueryCreate, {"name": "q", "query": {"sort_by": "mood"}})
        with pytest.raises(InvalidParams, match=r"`query\.min_length`"):
            validate(QueryCreate, {"name": "q", "query": {"min_length": 1}})
        assert (await bench.call(QueryList())).queries == []


async def test_entries_of_the_whole_index_are_found_at_once(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "deep").mkdir(parents=True)
    (root / "deep/schema.sql").write_text("create")
    (root / "notes.txt").write_text("text")
    async with files_service(tmp_path / "data", root) as bench:
        with pytest.raises(InvalidParams, match="nothing is indexed yet"):
            await bench.call(FilesFind(extension="sql"))
        await index(bench, root)
        found = await bench.call(FilesFind(extension="sql"))
        assert [each.path for each in found.entries] == [str(root / "deep/schema.sql")]
        assert (await bench.call(FilesFind(name_contains="NOTES", limit=1))).total_count == 1
