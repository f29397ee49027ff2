"""Names are found in any Unicode form and get no twin; inserted lines end as their neighbours; edits count links."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from proto.errors import LinckiaError, OperationError
from services.files import paths
from services.files.operations.changes import DeleteFiles, ListTrash, MoveFiles, Relocation, RenameFiles, RestoreFiles
from services.files.operations.reading import Inspect, Navigate
from services.files.operations.text import GrepFiles
from tests.in_process import Bench
from tests.unit.files.rig import files_service, index
from tests.unit.files.text.test_text_files import edit, read, write

NAMES = ("Übung é.txt", "한국어 문서.md", "Ǻ-ö.csv", "が.txt")
FORMS = (("NFD", "NFC"), ("NFC", "NFD"))


def form(kind: str, text: str) -> str:
    return unicodedata.normalize(kind, text)  # type: ignore[arg-type]  # one of its literals


@asynccontextmanager
async def stored(tmp_path: Path, kind: str) -> AsyncIterator[tuple[Bench, Path]]:
    """Files of `NAMES` in a folder `é`, all in one form."""
    root = tmp_path / "root"
    folder = root / form(kind, "é")
    folder.mkdir(parents=True)
    for name in NAMES:
        (folder / form(kind, name)).write_text("one\ntwo\n")
    async with files_service(tmp_path / "data", root) as bench:
        await index(bench, root)
        yield bench, root


@pytest.mark.parametrize(("kept", "asked"), FORMS)
async def test_each_operation_finds_a_name_in_another_form(tmp_path: Path, kept: str, asked: str) -> None:
    async with stored(tmp_path, kept) as (bench, root):
        folder = root / form(kept, "é")
        for name in NAMES:
            path = root / form(asked, "é") / form(asked, name)
            real = folder / form(kept, name)
            assert (await read(bench, path)).text == "one\ntwo\n"
            assert (await edit(bench, path, {"old": "two", "new": "2"})).path == str(real)
            with pytest.raises(OperationError, match="exists"):
                await write(bench, path, "twin")
            written = await write(bench, path, "new\n", overwrite=True)
            assert (written.path, written.created, real.read_text()) == (str(real), False, "new\n")
            found = await bench.call(GrepFiles(pattern="new", path=str(path)))
            assert [one.path for one in found.files] == [str(real)]
            assert (await bench.call(Inspect(path=str(path)))).path == str(real)
        assert len((await bench.call(Navigate(path=str(root / form(asked, "é"))))).entries) == len(NAMES)
        assert sorted(os.listdir(root)) == [form(kept, "é")]
        assert sorted(os.listdir(folder)) == sorted(form(kept, name) for name in NAMES)
        # A new file goes into the folder that is there.
        made = await write(bench, root / form(asked, "é") / "new.txt", "x")
        assert made.path == str(folder / "new.txt")


@pytest.mark.parametrize(("kept", "asked"), FORMS)
@pytest.mark.parametrize("dry_run", [True, False])
async def test_files_are_moved_and_deleted_by_another_form(
    tmp_path: Path, kept: str, asked: str, *, dry_run: bool
) -> None:
    async with stored(tmp_path, kept) as (bench, root):
        folder, other = root / form(kept, "é"), root / form(asked, "é")
        first, second, third, last = (form(asked, name) for name in NAMES)
        moves = [
            Relocation(from_=str(other / first), to=str(root / "moved.txt")),
            # Nothing gets a twin,
            Relocation(from_=str(other / second), to=str(other / third)),
            # but a name may get another form.
            Relocation(from_=str(folder / form(kept, last)), to=str(folder / last)),
        ]
        done = await bench.call(MoveFiles(moves=moves, dry_run=dry_run))
        assert [one.error is None for one in done.results] == [True, False, True]
        assert "already exists" in (done.results[1].error or "")
        renamed = await bench.call(
            RenameFiles(renames=[Relocation(from_=str(other / third), to=str(other / "r.csv"))], dry_run=dry_run)
        )
        gone = await bench.call(DeleteFiles(paths=[str(other / second)], dry_run=dry_run))
        assert (renamed.failed, gone.failed) == (0, 0)
        if dry_run:
            assert sorted(os.listdir(folder)) == sorted(form(kept, name) for name in NAMES)
            return
        assert sorted(os.listdir(folder)) == sorted(["r.csv", last])
        assert (root / "moved.txt").exists()
        (item,) = (await bench.call(ListTrash())).items
        await bench.call(RestoreFiles(paths=[item.path]))
        assert (folder / form(kept, NAMES[1])).exists()


async def test_the_exact_name_comes_first_and_new_names_are_created_as_written(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    both = [root / form(kind, "é.txt") for kind in ("NFC", "NFD")]
    for path in both:
        path.write_text(path.name)
    (root / "e.txt").write_text("plain")
    async with files_service(tmp_path / "data", root) as bench:
        for path in both:
            assert (await read(bench, path)).text == path.name
        for kind in ("NFC", "NFD"):
            path = root / form(kind, f"ñ {kind}.txt")
            assert (await write(bench, path, "x")).path == str(path)
            assert path.exists()
        with pytest.raises(LinckiaError, match="not found"):
            await read(bench, root / "ê.txt")
    odd = str(root / "\udcff-é")
    os.mkdir(odd)
    assert paths.spelled(paths.to_text(odd) + "/x") == paths.to_text(odd) + "/x"


ENDS: dict[str, tuple[str, dict[str, Any], str]] = {
    "before a bare one": ("a\r\nb\nc\r\nd\r\n", {"old": "c", "new": "c\nx"}, "a\r\nb\nc\r\nx\r\nd\r\n"),
    "by lines": ("a\r\nb\nc\r\nd\r\n", {"lines": "3", "new": "c\nx\n"}, "a\r\nb\nc\r\nx\r\nd\r\n"),
    "a line of its own end": ("a\r\nb\nc\r\nd\r\n", {"lines": "2", "new": "b\nx"}, "a\r\nb\r\nx\nc\r\nd\r\n"),
    "all": ("a\r\nx\r\nb\nx\r\n", {"old": "x", "new": "y\nz", "all": True}, "a\r\ny\r\nz\r\nb\ny\r\nz\r\n"),
    "among bare ones": ("a\nb\nc\nd\r\n", {"old": "b", "new": "b\r\nx"}, "a\nb\nx\nc\nd\r\n"),
    "at the top": ("a\r\nb\n", {"lines": "1", "new": "x\na"}, "x\r\na\r\nb\n"),
    "at the end": ("a\nb\r\nc\r\nd", {"old": "d", "new": "d\ne"}, "a\nb\r\nc\r\nd\r\ne"),
    "across lines": ("a\r\nb\r\nc\nd\n", {"old": "a\nb", "new": "a\nx\nb"}, "a\r\nx\r\nb\r\nc\nd\n"),
    "ends alone": ("a\r\nb\r\nc\n", {"old": "c\n", "new": "c\r\n"}, "a\r\nb\r\nc\r\n"),
    "bare ones alone": ("a\nb\n", {"old": "b", "new": "b\r\nx"}, "a\nb\nx\n"),
    "no line at all": ("a", {"old": "a", "new": "a\r\nb"}, "a\r\nb"),
    "pairs alone": ("a\r\nb\r\n", {"old": "a\nb", "new": "a\nx\nb"}, "a\r\nx\r\nb\r\n"),
}


@pytest.mark.parametrize("name", ENDS)
async def test_inserted_lines_end_as_their_neighbours(tmp_path: Path, name: str) -> None:
    before, how, after = ENDS[name]
    root = tmp_path / "root"
    root.mkdir()
    (root / "a.txt").write_bytes(before.encode())
    async with files_service(tmp_path / "data", root) as bench:
        await edit(bench, root / "a.txt", how)
    assert (root / "a.txt").read_bytes() == after.encode()


async def test_an_edit_says_how_many_other_names_keep_the_former_content(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a.txt").write_text("one\n")
    for name in ("b.txt", "c.txt"):
        os.link(root / "a.txt", root / name)
    async with files_service(tmp_path / "data", root) as bench:
        tried = await edit(bench, root / "a.txt", {"old": "one", "new": "1"}, dry_run=True)
        same = await edit(bench, root / "a.txt", {"old": "one", "new": "one"})
        done = await edit(bench, root / "a.txt", {"old": "one", "new": "1"})
        again = await edit(bench, root / "a.txt", {"old": "1", "new": "2"})
        assert [each.links_left for each in (tried, same, done, again)] == [2, 0, 2, 0]
        assert (await write(bench, root / "b.txt", "other", overwrite=True)).links_left == 1
    assert [(root / name).read_text() for name in ("a.txt", "b.txt", "c.txt")] == ["2\n", "other", "one\n"]
