"""Notes as their readers see them: the exact bytes of the file, its passages, and notes that are too large or cannot be
parsed.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from proto.errors import InvalidParams, OperationError
from services.knowledge.notes.files import Place
from services.knowledge.notes.markdown import MAX_INDEXED_CHARS, Note
from services.knowledge.notes.markdown import parse as true_parse
from services.knowledge.operations.notes import ListDirectoryStructure, SearchDocuments
from services.runtime.rewrite import MAX_BYTES
from services.shared.models.measure import Measure
from tests.unit.knowledge.rig import found, notes_service, read, settled, until, write


async def test_note_is_read_as_its_file_is_to_the_byte(tmp_path: Path, root: Path) -> None:
    text = "\ufeff---\r\ntitle: T\r\n---\r\n\r\n# Head\r\n\r\ntrailing  \n\n\n"
    write(root, "My Note_v2.md", text)
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench, 1)
        assert await read(bench, "my-note-v2") == text


async def test_an_unknown_note_and_a_vanished_file_are_distinguished(tmp_path: Path, root: Path) -> None:
    file = write(root, "docs/x.md", "text")
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench, 1)
        with pytest.raises(OperationError, match=r"^Node not found\.$"):
            await read(bench, "y")
        file.unlink()
        with pytest.raises(OperationError, match=r"^File not found: docs/x\.md$"):
            await read(bench, "x")
        await settled(bench, 0)
        with pytest.raises(OperationError, match=r"^File not found: docs/x\.md$"):
            await read(bench, "x")


async def test_note_replaced_by_a_link_out_of_the_roots_is_not_read(tmp_path: Path, root: Path) -> None:
    secret = write(tmp_path, "secret.md", "secret")
    file = write(root, "x.md", "text")
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench, 1)
        file.unlink()
        file.symlink_to(secret)
        with pytest.raises(OperationError, match=r"File cannot be read: x\.md|File not found: x\.md"):
            await read(bench, "x")


async def test_folders_that_hold_notes_are_listed(tmp_path: Path, root: Path) -> None:
    for path in ("top.md", "docs/deep/a.md", "briefs/b.md", "empty/x.txt"):
        write(root, path, "x")
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench, 3)
        assert await bench.call(ListDirectoryStructure()) == ["./", "briefs/", "docs/deep/"]
        shutil.rmtree(root / "briefs")
        await settled(bench, 2)
        assert await bench.call(ListDirectoryStructure()) == ["./", "docs/deep/"]


async def test_a_search_returns_passage_context_and_the_stages_that_ran(tmp_path: Path, root: Path) -> None:
    write(
        root,
        "g.md",
        "---\ntitle: Guide\ntags: [howto]\ndate: 2026-01-17\n---\n# Guide\n\n## Install\n\nGet the zebra.\n",
    )
    write(root, "sub/h.md", "# Other\n\nA zebra too.\n")
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench, 2)
        answer = await bench.call(SearchDocuments(query="zebra get"))
        hit = answer.results[0]
        assert (hit.id, hit.preview, hit.source, hit.context) == (
            "g",
            "Guide",
            "lexical",
            "Guide > Install (lines 8-10)",
        )
        assert "Get the zebra." in hit.snippet
        assert (answer.metadata.query, answer.metadata.sonar_enabled) == ("zebra get", False)
        assert (answer.metadata.stages, answer.metadata.degraded) == (["lexical"], [])
        for params, ids in (
            (SearchDocuments(query="zebra", tags=["HowTo"]), ["g"]),
            (SearchDocuments(query="zebra", path="sub/"), ["h"]),
            (SearchDocuments(query="zebra", until="2026-01-17"), ["g"]),
            (SearchDocuments(query="zebra", since="2026-01-18"), ["h"]),
            (SearchDocuments(query="zebra", limit=1), ["g"]),
        ):
            assert [hit.id for hit in (await bench.call(params)).results] == ids
        with pytest.raises(InvalidParams, match="query"):
            await bench.call(SearchDocuments(query=" \n"))


async def test_a_huge_note_is_searched_up_to_the_limit_read_whole_and_reported(tmp_path: Path, root: Path) -> None:
    text = "zebra\n\n" + "word " * (MAX_INDEXED_CHARS // 5) + "\n\nquagga"
    write(root, "big.md", text)
    async with notes_service(tmp_path / "data", root) as bench:
        status = await settled(bench, 1)
        assert [problem.reason for problem in status.problems] == [
            f"only the first {MAX_INDEXED_CHARS} of {len(text)} characters are searched"
        ]
        assert (await found(bench, "zebra"), await found(bench, "quagga")) == (["big"], [])
        assert await read(bench, "big") == text


async def test_file_too_large_to_read_is_named_and_stops_no_other(tmp_path: Path, root: Path) -> None:
    os.truncate(write(root, "big.md", "x"), MAX_BYTES + 1)
    write(root, "small.md", "zebra")
    async with notes_service(tmp_path / "data", root) as bench:
        status = await until(bench, lambda status: status.notes == 2 and status.pending == 1)
        assert [(problem.path, problem.reason) for problem in status.problems] == [
            (
                str(root / "big.md"),
                f"not indexed: {MAX_BYTES + 1} bytes, more than the limit of {MAX_BYTES}",
            )
        ]
        with pytest.raises(OperationError, match=r"^File cannot be read: big\.md: \d+ bytes"):
            await read(bench, "big")
        answer = await bench.call(SearchDocuments(query="zebra"))
        assert [hit.id for hit in answer.results] == ["small"]
        assert answer.metadata.degraded == ["index: 1 of 2 notes could not be indexed, see notes_status"]
        write(root, "big.md", "zebra now short")
        await settled(bench, 2)


async def test_note_the_parser_cannot_take_is_named_and_stops_no_other(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(text: str, place: Place, measure: Measure) -> Note:
        if "poison" in text:
            raise ZeroDivisionError("defect")
        return true_parse(text, place, measure)

    monkeypatch.setattr("services.knowledge.notes.markdown.parse", parse)
    write(root, "a.md", "poison")
    write(root, "b.md", "zebra")
    async with notes_service(tmp_path / "data", root) as bench:
        status = await until(bench, lambda status: status.notes == 2 and status.pending == 1)
        assert [problem.reason for problem in status.problems] == ["cannot be parsed: ZeroDivisionError: defect"]
        assert await found(bench, "zebra") == ["b"]
