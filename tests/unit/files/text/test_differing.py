"""`files_diff` compares files on disk and stored versions of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from proto.errors import Forbidden, InvalidParams, LinckiaError, OperationError
from services.decode.main import open_service as open_decode
from services.documents.main import open_service as open_documents
from services.documents.operations.adding import DocumentsAdd
from services.documents.operations.change import DocumentsDelete
from services.files.main import open_service
from services.files.operations.text import DiffFiles, DiffSide, FileDiff
from services.files.text import differing
from services.runtime.roots import Roots
from tests.in_process import Bench, services_in_process
from tests.unit.files.rig import files_service

SETTINGS = {"decode": {"memory_limit_bytes": 0}}


async def compare(bench: Bench, before: dict[str, Any], after: dict[str, Any]) -> FileDiff:
    return await bench.call(DiffFiles(before=DiffSide(**before), after=DiffSide(**after)))


async def test_two_files_on_disk_are_compared_line_by_line(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    one, two, crlf = (root / name for name in ("one", "two", "crlf"))
    one.write_text("a\nb\nc\n")
    two.write_text("a\nB\nc\n")
    crlf.write_bytes(b"a\r\nb\r\nc\r\n")
    (root / "binary").write_bytes(b"\0\1")
    async with files_service(tmp_path / "data", root) as bench:
        found = await compare(bench, {"path": str(one)}, {"path": str(two)})
        assert found.diff == f"--- {one}\n+++ {two}\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n"
        assert (found.equal, found.before_bytes, found.before_hash == found.after_hash) == (False, 6, False)
        same = await compare(bench, {"path": str(one)}, {"path": str(one)})
        assert (same.equal, same.diff, same.binary) == (True, "", "")
        ends = await compare(bench, {"path": str(one)}, {"path": str(crlf)})
        assert (ends.equal, ends.diff) == (False, "no line differs: only encoding or line ends do\n")
        binary = await compare(bench, {"path": str(one)}, {"path": str(root / "binary")})
        assert (binary.equal, binary.diff, binary.binary) == (False, "", f"{root / 'binary'} is not text")


async def test_a_side_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    (root / "secret").mkdir(parents=True)
    (root / "a").write_text("a\n" * 10)
    (root / "secret/s").write_text("s")
    here = {"path": str(root / "a")}
    monkeypatch.setattr(differing, "MAX_BYTES", 15)
    roots = Roots([root], denied=[str(root / "secret")])
    async with services_in_process({"files": open_service}, tmp_path / "data", roots=roots) as bench:
        cases: list[tuple[dict[str, Any], type[LinckiaError], str]] = [
            ({"path": str(root / "none")}, OperationError, "`after.path`: File not found"),
            ({"path": str(root)}, OperationError, "`after.path`: .*not a regular file"),
            ({"path": "/etc/passwd"}, InvalidParams, "`after.path`: .*outside the roots"),
            ({"path": "../a"}, InvalidParams, "`after.path`: .*outside the roots"),
            ({"path": str(root / "secret/s")}, Forbidden, "may not be reached"),
        ]
        for side, kind, pattern in cases:
            (root / "a").write_text("a\n")
            with pytest.raises(kind, match=pattern) as failed:
                await compare(bench, here, side)
            assert failed.value.failure.field == "after.path"
        (root / "a").write_text("a\n" * 10)
        with pytest.raises(OperationError, match=r"`before\.path`: .*20 bytes, more than the limit of 15"):
            await compare(bench, here, here)


def test_a_side_is_a_path_or_a_hash() -> None:
    for side in ({}, {"path": "/a", "hash": "0" * 64}):
        with pytest.raises(InvalidParams, match="`after`: give `path` or `hash`, one of them"):
            DiffFiles(before=DiffSide(path="/a"), after=DiffSide(**side)).check()
    with pytest.raises(InvalidParams, match="`after`: `snapshot` goes with `path`"):
        DiffFiles(before=DiffSide(path="/a"), after=DiffSide(hash="0" * 64, snapshot="s")).check()


async def test_stored_versions_are_compared_by_hash_and_by_snapshot(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "docs").mkdir(parents=True)
    file = root / "docs/a.txt"
    services = {"decode": open_decode, "documents": open_documents, "files": open_service}
    async with services_in_process(services, tmp_path / "data", roots=[root], settings=SETTINGS) as bench:
        hashes = []
        for number, text in enumerate(("one\n", "one\ntwo\n", "one\ntwo\nthree\n")):
            file.write_text(text)
            os.utime(file, ns=(0, (number + 1) * 10**9))
            await bench.call(DocumentsAdd(path=str(root / "docs"), recursive=True, snapshot_label=f"s{number}"))
            hashes.append((await compare(bench, {"path": str(file)}, {"path": str(file)})).after_hash)
        stored = await compare(bench, {"hash": hashes[0][:12]}, {"hash": f"sha256:{hashes[1]}"})
        assert stored.diff.splitlines()[2:] == ["@@ -1 +1,2 @@", " one", "+two"]
        disk = await compare(bench, {"path": "a.txt", "snapshot": "s1"}, {"path": str(file)})
        assert disk.diff.splitlines()[-1] == "+three"
        assert disk.diff.startswith(f"--- {file}@{hashes[1][:12]}\n+++ {file}\n")
        both = await compare(bench, {"path": str(file), "snapshot": "s0"}, {"path": "a.txt", "snapshot": "s2"})
        assert (both.diff.splitlines()[-2:], both.before_hash) == (["+two", "+three"], hashes[0])
        for side, pattern, field in (
            ({"hash": "0" * 64}, "`after.hash`: no stored content has the hash 0", "after.hash"),
            ({"hash": "xyz"}, "`after.hash`: .*not a hexadecimal", "after.hash"),
            ({"path": "b.txt", "snapshot": "s0"}, "`after.path`: the snapshot .* has no file 'b.txt'", "after.path"),
            ({"path": "a.txt", "snapshot": "s9"}, "`after.snapshot`: Snapshot not found: s9", "after.snapshot"),
        ):
            with pytest.raises(LinckiaError, match=pattern) as failed:
                await compare(bench, {"path": str(file)}, side)
            assert failed.value.failure.field == field


async def test_what_was_deleted_from_the_store_is_not_compared(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    services = {"decode": open_decode, "documents": open_documents, "files": open_service}
    async with services_in_process(services, tmp_path / "data", roots=[root], settings=SETTINGS) as bench:
        added = await bench.call(DocumentsAdd(name="n.txt", content="text"))
        assert (await compare(bench, {"hash": added.hash}, {"hash": added.hash})).equal
        await bench.call(DocumentsDelete(name="n.txt"))
        with pytest.raises(OperationError, match="no stored content"):
            await compare(bench, {"hash": added.hash}, {"hash": added.hash})
