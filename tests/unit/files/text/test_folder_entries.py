"""`files_read` of a folder lists what is on disk, whether it is indexed or not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from proto.errors import Forbidden, InvalidParams
from services.files.main import open_service
from services.files.operations.text import FileSource, ReadFile
from services.files.text import editing
from services.runtime.roots import Roots
from tests.in_process import services_in_process
from tests.unit.files.rig import files_service


async def test_entries_are_listed_with_their_kind_and_size(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "Sub").mkdir(parents=True)
    (root / "a.txt").write_bytes(b"12345")
    (root / "b").symlink_to("nowhere")
    os.mkfifo(root / "pipe")
    (root / "two\nlines").write_bytes(b"")
    (root / "way out").symlink_to("/etc")
    async with files_service(tmp_path / "data", root) as bench:
        found = await bench.call(ReadFile(path=str(root)))
        empty = await bench.call(ReadFile(path=str(root / "Sub")))
        with pytest.raises(InvalidParams, match="outside the roots"):
            await bench.call(ReadFile(path=str(root / "way out")))
        for field, given in (("original", True), ("encoding", "utf-8")):
            with pytest.raises(InvalidParams, match=f"`{field}`: .*is a directory, not a file"):
                await bench.call(ReadFile(path=str(root), **{field: given}))  # type: ignore[arg-type]  # of each kind
    assert found.text.splitlines() == [
        "file 5 a.txt", "symlink - b -> nowhere", "other - pipe", "directory - Sub/", 'file 0 "two\\nlines"',
        "symlink - way out -> /etc",
    ]  # fmt: skip
    assert (found.source, found.lines, found.total_lines, found.next_lines) == (FileSource.FOLDER, "1-6", 6, "")
    assert (empty.text, empty.total_lines) == ("", 0)


async def test_a_long_folder_is_listed_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for number in range(25):
        (root / f"{number:02}").touch()
    monkeypatch.setattr(editing, "MAX_CHARACTERS", 100)
    found: list[str] = []
    async with files_service(tmp_path / "data", root) as bench:
        page = await bench.call(ReadFile(path=str(root)))
        found += page.text.splitlines()
        while page.next_lines:
            page = await bench.call(ReadFile(path=str(root), lines=page.next_lines))
            found += page.text.splitlines()
        with pytest.raises(InvalidParams, match="`lines`: no lines 26-; the folder has 25 entries"):
            await bench.call(ReadFile(path=str(root), lines="26-"))
        assert (await bench.call(ReadFile(path=str(root), lines="3-4"))).text == "file 0 02\nfile 0 03\n"
    assert found == [f"file 0 {number:02}" for number in range(25)]


async def test_denied_entries_are_not_listed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("kept", "secret"):
        (root / name).mkdir(parents=True)
    roots = Roots([root], denied=[str(root / "secret")])
    async with services_in_process({"files": open_service}, tmp_path / "data", roots=roots) as bench:
        assert (await bench.call(ReadFile(path=str(root)))).text == "directory - kept/\n"
        with pytest.raises(Forbidden):
            await bench.call(ReadFile(path=str(root / "secret")))
