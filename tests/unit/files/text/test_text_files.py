"""`files_read`, `files_edit` and `files_write`: a text is read unaltered, changed only as requested, and kept."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import apsw
import pytest

from proto.errors import InvalidParams, LinckiaError, OperationError
from services.files.operations.changes import ListTrash, RestoreFiles, RestoreItem
from services.files.operations.reading import Inspect
from services.files.operations.text import Edited, EditFile, FileEdit, FileText, ReadFile, WriteFile, Written
from services.files.text import editing
from services.runtime import rewrite
from services.runtime.replace import ChangedMeanwhile, replace_file
from services.runtime.rewrite import content_hash
from tests.in_process import Bench
from tests.unit.files.changing import members, put_into_set, small_tree
from tests.unit.files.rig import differences, files_service, index


async def read(bench: Bench, path: Path, **asked: Any) -> FileText:
    return await bench.call(ReadFile(path=str(path), **asked))


async def edit(bench: Bench, path: Path, *edits: dict[str, Any], **asked: Any) -> Edited:
    params = EditFile(path=str(path), edits=[FileEdit(**each) for each in edits], **asked)
    params.check()
    return await bench.call(params)


async def write(bench: Bench, path: Path, content: str, **asked: Any) -> Written:
    return await bench.call(WriteFile(path=str(path), content=content, **asked))


TEXT = "eins\nzwei ü\ndrei\n"
CRLF = TEXT.replace("\n", "\r\n")
ENCODINGS = (
    ("utf-8", "", TEXT.encode()), ("utf-8-sig", "", TEXT.encode("utf-8-sig")), ("utf-8", "crlf", CRLF.encode()),
    ("utf-16-le", "", b"\xff\xfe" + TEXT.encode("utf-16-le")), ("utf-8", "mixed", b"a\r\n" + TEXT.encode()),
    ("utf-16-be", "crlf", b"\xfe\xff" + CRLF.encode("utf-16-be")), ("utf-8", "", TEXT.encode()[:-1]),
    ("utf-32-le", "", b"\xff\xfe\0\0" + TEXT.encode("utf-32-le")), ("cp1252", "", TEXT.encode("cp1252")),
    ("latin-1", "", TEXT.encode("latin-1") + b"\x81"),
)  # fmt: skip


@pytest.mark.parametrize(("encoding", "line_ends", "data"), ENCODINGS)
async def test_encoding_mark_line_ends_and_last_line_stay(
    tmp_path: Path, encoding: str, line_ends: str, data: bytes
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    file = root / "a.txt"
    file.write_bytes(data)
    file.chmod(0o640)
    async with files_service(tmp_path / "data", root) as bench:
        was = await read(bench, file)
        assert (was.encoding, was.line_ends, was.hash, was.bytes) == (
            encoding,
            line_ends,
            content_hash(data),
            len(data),
        )
        assert "zwei ü\n" in was.text
        done = await edit(bench, file, {"old": "zwei ü\n", "new": "2 ü\nund\n"}, if_match=was.hash)
        now = await read(bench, file)
        assert now.text == was.text.replace("zwei ü\n", "2 ü\nund\n")
        assert (now.encoding, now.line_ends, now.hash) == (encoding, line_ends, done.hash)
        assert stat.S_IMODE(os.stat(file).st_mode) == 0o640
        await edit(bench, file, {"old": "2 ü\nund\n", "new": "zwei ü\n"})
    assert file.read_bytes() == data


async def test_the_requested_lines_are_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    root.mkdir()
    file = root / "a.txt"
    file.write_text("".join(f"{n}\n" for n in range(1, 101)) + "x" * 3_000)
    monkeypatch.setattr(editing, "MAX_LINES", 30)
    async with files_service(tmp_path / "data", root) as bench:
        for lines, text, said in (
            ("10-12", "10\n11\n12\n", "10-12"), ("99-", "99\n100\n" + "x" * 2_000 + "… 1000 more characters", "99-101"),
            ("-2", "1\n2\n", "1-2"), ("7", "7\n", "7-7"), ("101", "x" * 3_000, "101-101"),
        ):  # fmt: skip
            found = await read(bench, file, lines=lines)
            assert (found.text, found.lines, found.total_lines, found.next_lines) == (text, said, 101, "")
            assert found.cut_lines == ("more" in text)
        first = await read(bench, file)
        assert (first.lines, first.next_lines, first.text.count("\n")) == ("1-30", "31-", 30)
        for bad in ("x", "5-3", "102-", "0", "-"):
            with pytest.raises(InvalidParams) as refused:
                await read(bench, file, lines=bad)
            assert refused.value.failure.field == "lines"
        (root / "empty").touch()
        assert (await read(bench, root / "empty")).total_lines == 0


def test_an_offset_counts_bytes_of_the_original_only() -> None:
    with pytest.raises(InvalidParams) as caught:
        ReadFile(path="/a", offset=1).check()
    assert caught.value.failure.field == "offset"
    ReadFile(path="/a", offset=1, original=True).check()


async def test_binary_files_are_refused_with_their_type(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (root / "b.mp3").write_bytes(b"\0" * 10)
    (root / "c.txt").write_bytes("あ".encode("shift_jis"))
    os.mkfifo(root / "pipe")
    (root / "link").symlink_to(tmp_path)
    async with files_service(tmp_path / "data", root) as bench:
        for name, said in (("a", "image/png"), ("b.mp3", "audio/mpeg"), ("none", "not found"),
                           ("pipe", "not a regular"), ("link", "outside")):  # fmt: skip
            with pytest.raises(LinckiaError, match=f"(?i){said}") as refused:
                await read(bench, root / name)
            assert refused.value.failure.field == "path"
        assert (await read(bench, root / "c.txt", encoding="shift_jis")).text == "あ"
        for bad in ("utf-8", "no-such", "hex", "punycode"):
            with pytest.raises(InvalidParams) as unread:
                await read(bench, root / "c.txt", encoding=bad)
            assert unread.value.failure.field == "encoding"


async def test_edits_are_made_in_order_all_or_none(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    file = root / "a.txt"
    file.write_text("one\ntwo\ntwo\nfour")
    async with files_service(tmp_path / "data", root) as bench:
        for edits, field, said in (
            ([{"old": "two", "new": "2"}], "edits[0].old", "2 times, in lines 2, 3"),
            ([{"old": "one", "new": "1"}, {"old": "on", "new": ""}], "edits[1].old", "not found in the file"),
            ([{"old": "fuor", "new": "1"}], "edits[0].old", "line 4 is nearest: 'four'"),
            ([{"lines": "5", "new": "1"}], "edits[0].lines", "has 4"), ([{"new": "1"}], "edits[0]", "one of them"),
            ([{"old": "a", "lines": "1", "new": "1"}], "edits[0]", "one of them"),
        ):  # fmt: skip
            with pytest.raises(LinckiaError, match=said) as refused:
                await edit(bench, file, *edits)
            assert refused.value.failure.field == field
        assert file.read_text() == "one\ntwo\ntwo\nfour"
        dry = await edit(bench, file, {"old": "two", "new": "2", "all": True}, dry_run=True)
        assert (dry.replaced, dry.changed, dry.dry_run) == (2, True, True)
        assert file.read_text() == "one\ntwo\ntwo\nfour"
        done = await edit(bench, file, {"old": "f", "new": "F"}, {"old": "Four", "new": "end"},
                          {"lines": "1", "new": "1\n1b"}, {"lines": "2-3", "new": ""})  # fmt: skip
        assert file.read_text() == "1\n1b\nend"
        assert done.hash == content_hash(file.read_bytes())
        assert "-two\n-two\n" in done.diff
        assert "+1\n+1b\n" in done.diff
        same = await edit(bench, file, {"old": "end", "new": "end"})
        assert (same.changed, same.diff) == (False, "")


async def test_the_index_is_in_step_and_sets_keep_what_is_edited(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    small_tree(root)
    async with files_service(data, root) as bench:
        await index(bench, root)
        put_into_set(data, "mine", root / "a/one")
        (root / "a/one").write_text("old text")
        await index(bench, root)
        await edit(bench, root / "a/one", {"old": "old", "new": "quite new"})
        assert (await bench.call(Inspect(path=str(root / "a/one")))).size == len("quite new text")
        made = await write(bench, root / "new/folder/file.txt", "content")
        assert made.created
        assert differences(data, root) == []
        await write(bench, root / "a/one", "third", overwrite=True)
        assert differences(data, root) == []
        assert await members(bench, "mine") == [str(root / "a/one")]


async def test_no_existing_content_is_lost_silently(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    root.mkdir()
    file = root / "a.txt"
    file.write_text("mine")
    file.chmod(0o600)
    async with files_service(data, root) as bench:
        for asked, field in (
            ({}, "path"),
            ({"if_match": "0" * 64}, "if_match"),
            ({"if_match": "0", "overwrite": True}, "if_match"),
        ):
            with pytest.raises(OperationError) as refused:
                await write(bench, file, "yours", **asked)
            assert refused.value.failure.field == field
        assert file.read_text() == "mine"
        again = await write(bench, file, "mine")
        assert (again.changed, again.created) == (False, False)
        done = await write(bench, file, "yours", if_match=content_hash(b"mine"))
        assert (file.read_text(), stat.S_IMODE(os.stat(file).st_mode)) == ("yours", 0o600)
        assert done.trash_id is not None
        assert not done.permanent
        (kept,) = (await bench.call(ListTrash())).items
        assert (kept.path, kept.trash_id, kept.size) == (str(file), done.trash_id, 4)
        back = root / "back.txt"
        await bench.call(RestoreFiles(items=[RestoreItem(trash_id=done.trash_id, to=str(back))]))
        assert (back.read_text(), stat.S_IMODE(os.stat(back).st_mode)) == ("mine", 0o600)
        with pytest.raises(OperationError, match="directory"):
            await write(bench, root, "x", overwrite=True)
    async with files_service(data, root, trash=False) as bench:
        gone = await write(bench, file, "third", overwrite=True)
        assert (gone.permanent, gone.trash_id) == (True, None)


async def test_a_write_that_fails_leaves_file_index_and_trash_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    root.mkdir()
    file = root / "a.txt"
    file.write_text("mine")

    def fails(path: Path, before: bytes, after: bytes, **_: object) -> None:
        raise OSError(28, "No space left on device")

    async with files_service(data, root) as bench:
        with monkeypatch.context() as patch:
            patch.setattr(rewrite, "replace_file", fails)
            with pytest.raises(OperationError, match="No space left"):
                await write(bench, file, "yours", overwrite=True)
        assert (await bench.call(ListTrash())).total == 0
        assert os.listdir(data / "files/trash" if (data / "files/trash").exists() else data / "trash") == []
        times = 0
        real = replace_file

        def busy(path: Path, before: bytes, after: bytes, **_: object) -> None:
            nonlocal times
            times += 1
            if times < 3:
                raise ChangedMeanwhile("written by others")
            real(path, before, after)

        with monkeypatch.context() as patch:
            patch.setattr(rewrite, "replace_file", busy)
            await write(bench, file, "yours", overwrite=True)
        assert (await bench.call(ListTrash())).total == 1


async def test_nothing_is_written_where_it_may_not(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "way").symlink_to(outside)
    async with files_service(tmp_path / "data", root) as bench:
        for path in (outside / "x", root / "way/x", tmp_path / "data/files.db", Path("../relative")):
            with pytest.raises(LinckiaError) as refused:
                await write(bench, path, "x")
            assert refused.value.failure.field == "path"
            with pytest.raises(LinckiaError):
                await edit(bench, path, {"lines": "1", "new": ""})
    assert os.listdir(outside) == []


async def test_files_left_by_a_killed_process_are_indexed_at_the_next_start(tmp_path: Path) -> None:
    root, data = tmp_path / "root", tmp_path / "data"
    root.mkdir()
    (root / "a.txt").write_text("mine")
    async with files_service(data, root) as bench:
        await index(bench, root)
        database = next(data.rglob("files.db"))
    # As after a death between the file and the index, and one before the former content was in the trash.
    (root / "a.txt").write_text("longer than before")
    db = apsw.Connection(str(database))
    db.execute("INSERT INTO trash(path, kind, size, deleted) VALUES(?, 0, 4, 1)", (str(root / "a.txt"),))
    db.execute(
        "INSERT INTO intent(kind, source, target, inode, device, trash_id) VALUES('trash', ?, NULL, 0, 0, ?)",
        (str(root / "a.txt"), db.last_insert_rowid()),
    )
    db.close()
    async with files_service(data, root) as bench:
        assert (await bench.call(Inspect(path=str(root / "a.txt")))).size == len("longer than before")
        assert (await bench.call(ListTrash())).total == 0
        assert differences(data, root) == []
