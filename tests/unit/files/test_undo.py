"""Undo: what clients changed in files comes back, and nothing that others wrote since is lost."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from pathlib import Path
from typing import Any

import apsw
import pytest

from proto.errors import InvalidParams, OperationError
from services.files.operations.changes import (
    CopyFiles,
    CreateFolders,
    DeleteFiles,
    Duplicate,
    EmptyTrash,
    MoveFiles,
    Relocation,
    RestoreFiles,
)
from services.files.operations.text import EditFile, FileEdit, WriteFile
from services.files.operations.undo import ListChanges, ShowChange, UndoChanges, UndoResult
from tests.in_process import Bench
from tests.unit.files.rig import files_service


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    return root


def state(root: Path) -> dict[str, tuple[int, bytes | str | None]]:
    """Return mode and content of everything below a folder; of a link, its target."""
    found: dict[str, tuple[int, bytes | str | None]] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(root))] = stat.S_IMODE(status.st_mode), content
    return found


async def edit(bench: Bench, path: Path, old: str, new: str) -> str:
    """Replace a text, and return the id of the change."""
    return (await bench.call(EditFile(path=str(path), edits=[FileEdit(old=old, new=new)]))).change


async def undo(bench: Bench, **which: Any) -> UndoResult:
    return await bench.call(UndoChanges(**which))


def reasons(result: UndoResult) -> list[str]:
    return [each.reason for each in result.results if each.status == "skipped"]


async def test_everything_comes_back_and_can_be_done_again(tmp_path: Path, root: Path) -> None:
    (root / "plain").write_text("one\ntwo\n")
    (root / "plain").chmod(0o640)
    (root / "link").symlink_to("nowhere")
    tree = root / "tree"
    tree.mkdir(mode=0o700)
    (tree / "inside").write_bytes(b"\0\xff")
    first = state(root)
    async with files_service(tmp_path / "data", root) as bench:
        begun = time.time()
        await edit(bench, root / "plain", "two", "three")
        await bench.call(WriteFile(path=str(root / "new/deep/file"), content="x"))
        await bench.call(WriteFile(path=str(root / "plain"), content="all\n", overwrite=True))
        await bench.call(
            MoveFiles(moves=[Relocation(from_=str(tree), to=str(root / "a/b/tree"))], make_directories=True)
        )
        await edit(bench, root / "new/deep/file", "x", "y")
        await bench.call(CopyFiles(copies=[Duplicate(from_=str(root / "a"), to=str(root / "copy"))]))
        gone = await bench.call(DeleteFiles(paths=[str(root / "link"), str(root / "a"), str(root / "new")], force=True))
        await bench.call(CreateFolders(paths=[str(root / "empty/folder"), str(root / "empty/other")]))
        await bench.call(RestoreFiles(paths=[str(root / "link")]))
        assert (gone.succeeded, gone.failed) == (3, 0)
        last = state(root)
        undone = await undo(bench, since=begun)
        assert (reasons(undone), state(root)) == ([], first)
        again = await undo(bench, id=undone.change)
        assert (reasons(again), state(root)) == ([], last)
        once_more = await undo(bench, id=again.change)
        assert (reasons(once_more), state(root)) == ([], first)
        await bench.stop("files")
        await bench.start("files")
        back = await undo(bench, id=once_more.change)
        assert (reasons(back), state(root)) == ([], last)


async def test_dry_run_says_what_would_happen_and_changes_nothing(tmp_path: Path, root: Path) -> None:
    async with files_service(tmp_path / "data", root) as bench:
        await bench.call(WriteFile(path=str(root / "new/file"), content="x"))
        await edit(bench, root / "new/file", "x", "y")
        await bench.call(
            MoveFiles(
                moves=[Relocation(from_=str(root / "new/file"), to=str(root / "there/file"))], make_directories=True
            )
        )
        await bench.call(DeleteFiles(paths=[str(root / "there")], force=True))
        before = state(root)
        would = await undo(bench, path=str(root), dry_run=True)
        assert state(root) == before
        done = await undo(bench, path=str(root))
        assert [(each.kind, each.path) for each in would.results] == [(each.kind, each.path) for each in done.results]
        assert {each.status for each in would.results} == {"preview"}
        assert not state(root)


async def test_changes_are_chosen_by_client_and_by_the_end_of_a_time(tmp_path: Path, root: Path) -> None:
    async with files_service(tmp_path / "data", root) as bench:
        await bench.call(WriteFile(path=str(root / "first"), content="x"))
        (first,) = (await bench.call(ListChanges())).changes
        await bench.call(WriteFile(path=str(root / "second"), content="x"))
        (second, _) = (await bench.call(ListChanges())).changes
        assert [each.id for each in (await bench.call(ListChanges(until=second.at))).changes] == [first.id]
        assert (await bench.call(ListChanges(client="nobody"))).changes == []
        assert (await undo(bench, client="nobody", since=first.at)).results == []
        await undo(bench, client=first.client, until=second.at, since=first.at)
        assert os.listdir(root) == ["second"]


async def test_what_others_changed_since_is_skipped_or_merged(tmp_path: Path, root: Path) -> None:
    path = root / "file"
    path.write_text("1\n2\n3\n4\n5\n6\n7\n8\n")
    async with files_service(tmp_path / "data", root) as bench:
        change = await edit(bench, path, "2", "two")
        path.write_text(path.read_text().replace("8", "eight"))
        (reason,) = reasons(await undo(bench, id=change))
        assert "changed since by another program" in reason
        other = await edit(bench, path, "7", "seven")
        (reason,) = reasons(await undo(bench, id=change))
        assert f"files_edit of client (change {other})" in reason or other in reason
        shown = await bench.call(ShowChange(id=change))
        assert "-2\n+two" in shown.files[0].diff
        (merged,) = (await undo(bench, id=change, merge=True)).results
        assert (merged.status, path.read_text()) == ("merged", "1\n2\n3\n4\n5\n6\nseven\neight\n")
        same = await edit(bench, path, "seven", "SEVEN")
        path.write_text(path.read_text().replace("SEVEN", "Seven"))
        (reason,) = reasons(await undo(bench, id=same, merge=True))
        assert "in the same lines" in reason
        assert path.read_text() == "1\n2\n3\n4\n5\n6\nSeven\neight\n"


async def test_a_created_file_that_was_changed_stays(tmp_path: Path, root: Path) -> None:
    async with files_service(tmp_path / "data", root) as bench:
        change = (await bench.call(WriteFile(path=str(root / "new"), content="mine"))).change
        (root / "new").write_text("theirs")
        (reason,) = reasons(await undo(bench, id=change))
        assert "changed since" in reason
        assert (root / "new").read_text() == "theirs"


async def test_an_edit_is_undone_where_its_file_is_now(tmp_path: Path, root: Path) -> None:
    (root / "old").mkdir()
    (root / "old/file").write_text("a")
    async with files_service(tmp_path / "data", root) as bench:
        change = await edit(bench, root / "old/file", "a", "b")
        await bench.call(MoveFiles(moves=[Relocation(from_=str(root / "old"), to=str(root / "new"))]))
        (done,) = (await undo(bench, id=change)).results
        assert (done.status, done.path) == ("undone", str(root / "new/file"))
        assert (root / "new/file").read_text() == "a"
        (reason,) = reasons(await undo(bench, id=change))
        assert "has undone it already" in reason


async def test_what_is_not_kept_is_said(tmp_path: Path, root: Path) -> None:
    for name in (".env", "private.notes"):
        (root / name).write_text("PASSPHRASE=1")
    async with files_service(tmp_path / "data", root, undo_exclude=[".env*", "private.*"]) as bench:
        for name in (".env", "private.notes"):
            done = await bench.call(EditFile(path=str(root / name), edits=[FileEdit(old="1", new="2")]))
            assert "excluded" in done.not_kept
            assert "excluded" in reasons(await undo(bench, id=done.change))[0]
            (listed,) = (await bench.call(ListChanges(id=done.change))).changes
            assert "excluded" in listed.files[0].lost
        kept = "".join(str(path.read_bytes()) for path in (tmp_path / "data/files").glob("changes.*"))
        assert "PASSPHRASE" not in kept


async def test_the_oldest_contents_leave_room_for_later_ones(tmp_path: Path, root: Path) -> None:
    path = root / "file"
    async with files_service(tmp_path / "data", root, undo_max_mb=1) as bench:
        texts = [os.urandom(200_000).hex() for _ in range(8)]
        path.write_text(texts[0])
        changes = [
            (await bench.call(WriteFile(path=str(path), content=text, overwrite=True))).change for text in texts[1:]
        ]
        assert (await undo(bench, id=changes[-1])).undone == 1
        assert path.read_text() == texts[-2]
        (listed,) = (await bench.call(ListChanges(id=changes[0]))).changes
        assert "no room" in listed.files[0].lost
        with apsw.Connection(str(tmp_path / "data/files/changes.db")) as db:
            rows = db.execute("SELECT sum(length(data)) <= 1 << 20 FROM content").fetchall()
        assert rows == [(1,)]


async def test_emptying_the_trash_is_for_good(tmp_path: Path, root: Path) -> None:
    (root / "file").write_text("secret")
    async with files_service(tmp_path / "data", root) as bench:
        written = await bench.call(WriteFile(path=str(root / "file"), content="other", overwrite=True))
        deleted = await bench.call(DeleteFiles(paths=[str(root / "file")]))
        ids = [written.trash_id, deleted.results[0].trash_id]
        await bench.call(EmptyTrash(trash_ids=[each for each in ids if each is not None]))
        for change in (deleted.change, written.change):
            assert "for good" in reasons(await undo(bench, id=change))[0]
        with apsw.Connection(str(tmp_path / "data/files/changes.db")) as db:
            assert db.execute("SELECT count(*) FROM content").fetchall() == [(0,)]


async def test_trash_from_before_the_journal_can_be_undone(tmp_path: Path, root: Path) -> None:
    (root / "file").write_text("a")
    async with files_service(tmp_path / "data", root) as bench:
        await bench.call(DeleteFiles(paths=[str(root / "file")]))
        await bench.stop("files")
        for path in (tmp_path / "data/files").glob("changes.*"):
            path.unlink()
        await bench.start("files")
        ((change,),) = [[each.id] for each in (await bench.call(ListChanges())).changes]
        assert (await undo(bench, id=change)).undone == 1
        assert (root / "file").read_text() == "a"


async def test_what_an_interrupted_write_left_in_the_trash_is_no_deletion(tmp_path: Path, root: Path) -> None:
    data = tmp_path / "data"
    async with files_service(data, root) as bench:
        await bench.call(WriteFile(path=str(root / "file"), content="x"))
        first = await bench.call(WriteFile(path=str(root / "file"), content="y", overwrite=True))
        assert first.trash_id is not None
        await bench.call(DeleteFiles(paths=[str(root / "file")]))
        # As if the second write were the repetition of one that a kill interrupted.
        with contextlib.closing(apsw.Connection(str(next(data.rglob("files.db"))))) as db:
            db.execute(
                "INSERT INTO trash(id, path, kind, size, deleted)"
                " SELECT id + 100, path, kind, size, deleted + 1 FROM trash WHERE id = ?",
                (first.trash_id,),
            )
        trash = next(data.rglob("trash"))
        (trash / f"{first.trash_id + 100}").write_text("x")
        undone = await undo(bench, path=str(root))
        assert (reasons(undone), state(root)) == ([], {})


async def test_wrong_arguments_are_named(tmp_path: Path, root: Path) -> None:
    async with files_service(tmp_path / "data", root) as bench:
        with pytest.raises(InvalidParams, match="`id`"):
            await bench.call(UndoChanges())
        with pytest.raises(OperationError, match="no change zzz"):
            await undo(bench, id="zzz")
        with pytest.raises(InvalidParams, match="`session`"):
            await undo(bench, session="this")
        with pytest.raises(InvalidParams, match="since"):
            await undo(bench, since="never ever")
        assert (await undo(bench, task="nothing")).results == []


async def test_nothing_is_recorded_if_there_is_no_room_for_anything(tmp_path: Path, root: Path) -> None:
    (root / "file").write_text("a")
    async with files_service(tmp_path / "data", root, undo_max_mb=0) as bench:
        assert not await edit(bench, root / "file", "a", "b")
        assert (await bench.call(ListChanges())).changes == []
        assert not (tmp_path / "data/files/changes.log").exists()
