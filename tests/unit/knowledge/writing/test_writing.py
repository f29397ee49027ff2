"""Notes written by clients: on disk and found by their words when they are answered, and nothing lost silently."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from proto.errors import LinckiaError
from services.knowledge.operations.notes import ReadNodeContent
from services.knowledge.operations.writing import EditNote, NoteWritten, Replacement, SectionText, WriteNote
from services.runtime.roots import Roots
from tests.unit.knowledge.rig import Bench, found, notes_service, settled, write


async def refused(bench: Bench, params: WriteNote | EditNote, field: str, said: str) -> None:
    with pytest.raises(LinckiaError, match=said) as error:
        await bench.call(params)
    assert error.value.failure.field == field


async def test_a_written_note_can_be_searched_when_the_call_returns(tmp_path: Path, root: Path) -> None:
    async with notes_service(tmp_path, root) as bench:
        made = await bench.call(WriteNote(path="new/Plan.md", content="zebra\n", front_matter={"tags": ["x"]}))
        data = (root / "new/Plan.md").read_bytes()
        assert data == b"---\ntags: [x]\n---\nzebra\n"
        assert made.change
        assert made == NoteWritten(
            path=str(root / "new/Plan.md"), hash=hashlib.sha256(data).hexdigest(), changed=True, id="plan",
            indexed=True, change=made.change,
        )  # fmt: skip
        assert await found(bench, "zebra") == ["plan"]
        read = await bench.call(ReadNodeContent(id="plan"))
        assert (read.hash, read.text) == (made.hash, data.decode())
        edited = await bench.call(EditNote(id="plan", replace=Replacement("zebra", "okapi"), if_match=made.hash))
        assert (edited.previous, edited.indexed) == (made.hash, True)
        assert (await found(bench, "okapi"), await found(bench, "zebra")) == (["plan"], [])
        await settled(bench, 1)
        assert await found(bench, "okapi") == ["plan"]


async def test_no_note_is_replaced_without_overwrite(tmp_path: Path, root: Path) -> None:
    note = write(root, "a.md", "mine")
    mine = hashlib.sha256(b"mine").hexdigest()
    async with notes_service(tmp_path, root) as bench:
        await settled(bench, 1)
        await refused(bench, WriteNote(path="a.md", content="x"), "path", f"its hash is {mine}")
        await refused(bench, WriteNote(path="a.md", content="x", if_match="0" * 64), "if_match", "has changed")
        await refused(bench, WriteNote(path="b.md", content="x", if_match=mine), "if_match", "does not exist")
        await refused(bench, EditNote(path="a.md", append="x", if_match="0" * 64), "if_match", "has changed")
        assert note.read_bytes() == b"mine"
        done = await bench.call(WriteNote(path="a.md", content="theirs", if_match=mine))
        assert (done.previous, note.read_bytes()) == (mine, b"theirs")
        # Written once more, as after a death of the service that had written it.
        again = await bench.call(WriteNote(path="a.md", content="theirs", if_match=mine))
        assert (again.changed, again.hash) == (False, done.hash)
        done = await bench.call(WriteNote(path=str(note), content="ours", overwrite=True))
        assert note.read_bytes() == b"ours"
        assert sorted(os.listdir(root)) == ["a.md"]


async def test_a_dry_run_returns_the_diff_and_writes_nothing(tmp_path: Path, root: Path) -> None:
    note = write(root, "a.md", "# A\n\nx\n")
    before = note.stat()
    async with notes_service(tmp_path, root) as bench:
        shown = await bench.call(EditNote(path="a.md", append="y", front_matter={"n": 1}, dry_run=True))
        assert shown.diff == "--- a.md\n+++ a.md\n@@ -1,3 +1,7 @@\n+---\n+n: 1\n+---\n # A\n \n x\n+y\n"
        assert not shown.changed
        assert (note.stat().st_ino, note.stat().st_ctime_ns) == (before.st_ino, before.st_ctime_ns)


async def test_mode_and_links_are_kept(tmp_path: Path, root: Path) -> None:
    target = write(root, "deep/a.md", "x\n")
    target.chmod(0o640)
    (root / "link.md").symlink_to("deep/a.md")
    async with notes_service(tmp_path, root) as bench:
        done = await bench.call(EditNote(path="link.md", append="y"))
        assert (done.path, target.read_text()) == (str(target), "x\ny\n")
        assert (root / "link.md").is_symlink()
        assert stat.S_IMODE(target.stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/etc/x.md", "outside the roots"),
        ("../x.md", "outside the roots"),
        ("out/x.md", "outside the roots"),
        ("x.txt", "not a Markdown file"),
        ("secret/x.md", "may not be reached"),
        ("locked/x.md", "is read-only"),
        ("folder.md", "not a regular file"),
        ("a.md/x.md", "Not a directory"),
    ],
)
async def test_invalid_paths_of_notes_are_refused_with_the_field(tmp_path: Path, path: str, said: str) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root / "locked", root / "folder.md", root / "secret", outside):
        folder.mkdir(parents=True)
    write(root, "a.md", "a")
    (root / "out").symlink_to(outside)
    roots = Roots((str(root), str(root / "locked")), read_only=[str(root / "locked")], denied=[str(root / "secret")])
    async with notes_service(tmp_path, roots=roots) as bench:
        before = sorted(os.walk(tmp_path / "root"))
        await refused(bench, WriteNote(path=path, content="x", overwrite=True), "path", said)
        await refused(bench, EditNote(path=path, append="x"), "path", f"{said}|not found")
        assert sorted(os.walk(tmp_path / "root")) == before


async def test_invalid_utf_8_and_invalid_front_matter_are_refused(tmp_path: Path, root: Path) -> None:
    note = root / "a.md"
    latin = b"caf\xe9\n"
    note.write_bytes(latin)
    write(root, "b.md", "---\na: [\n---\n")
    edits: list[tuple[dict[str, Any], str, str]] = [
        ({"path": "a.md", "append": "x"}, "path", r"not UTF-8 \(byte 4\)"),
        ({"path": "b.md", "front_matter": {"a": 1}}, "front_matter", "not valid YAML"),
        ({"path": "b.md", "section": SectionText("No", "x")}, "section.heading", "not found"),
        ({"path": "none.md", "append": "x"}, "path", "File not found: "),
        ({"id": "none", "append": "x"}, "id", "Node not found"),
        ({"id": "a", "path": "a.md", "append": "x"}, "path", "one of `path` and `id`"),
    ]
    async with notes_service(tmp_path, root) as bench:
        await settled(bench, 2)
        for asked, field, said in edits:
            await refused(bench, EditNote(**asked), field, said)
    assert (note.read_bytes(), (root / "b.md").read_text()) == (latin, "---\na: [\n---\n")


async def test_a_written_note_excluded_from_search_is_reported_as_not_indexed(tmp_path: Path, root: Path) -> None:
    write(root, ".gitignore", "drafts/\n")
    async with notes_service(tmp_path, root) as bench:
        done = await bench.call(WriteNote(path="drafts/x.md", content="quokka"))
        assert (done.changed, done.indexed, done.id) == (True, False, "")


@pytest.mark.parametrize(
    ("mark", "encoding", "ends"),
    [
        (b"\xef\xbb\xbf", "utf-8", "\r\n"), (b"", "utf-8", "\r\n"), (b"\xef\xbb\xbf", "utf-8", "\n"),
        (b"\xff\xfe", "utf-16-le", "\r\n"), (b"\xfe\xff", "utf-16-be", "\n"),
    ],
)  # fmt: skip
async def test_a_note_that_is_replaced_keeps_its_form(
    tmp_path: Path, root: Path, mark: bytes, encoding: str, ends: str
) -> None:
    async with notes_service(tmp_path, root) as bench:
        path = root / "One.md"
        path.write_bytes(mark + f"# One{ends}{ends}text é{ends}".encode(encoding))
        given = "# One\n\nother text\n"
        done = await bench.call(WriteNote(path=str(path), content=given, overwrite=True))
        assert path.read_bytes() == mark + given.replace("\n", ends).encode(encoding)
        assert done.changed
        assert not (await bench.call(WriteNote(path=str(path), content=given))).changed
        with pytest.raises(LinckiaError, match="exists"):
            await bench.call(WriteNote(path=str(path), content="other"))
