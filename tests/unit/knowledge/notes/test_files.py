"""Which files are notes, and what reading one promises."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from services.knowledge.ingest.note_walk import Walk, look
from services.knowledge.notes.files import Stamp, decode, digest, read
from services.runtime.roots import OutsideRoots, Roots
from tests.unit.knowledge.rig import MemorySearch, notes_service, settled, write


def paths(walk: Walk) -> list[str]:
    return sorted(place.path for place in walk.notes)


def walk(*roots: Path) -> Walk:
    return look(Roots(roots), (), map(str, roots))


def test_markdown_files_below_the_roots_are_notes(tmp_path: Path) -> None:
    for path in ("a.md", "B.MD", "sub/c.md", "sub/deep/d.md", "x.txt", "y.markdown", ".hidden.md", ".git/e.md",
                 "node_modules/f.md", "sub/__pycache__/g.md"):  # fmt: skip
        write(tmp_path, path, "x")
    write(tmp_path, "env/pyvenv.cfg", "")
    write(tmp_path, "env/lib/h.md", "x")
    assert paths(walk(tmp_path)) == ["B.MD", "a.md", "sub/c.md", "sub/deep/d.md"]


def test_ignore_files_are_honoured_with_the_deepest_rule_deciding(tmp_path: Path) -> None:
    write(tmp_path, ".gitignore", "*.tmp.md\n/build/\ndraft*\n!draft-keep.md\n# comment\n")
    write(tmp_path, "sub/.gitignore", "!draft-sub.md\r\nlocal.md\r\n/only-here.md\r\n")
    write(tmp_path, "sub/.ignore", "!local.md\n")
    for path in ("a.tmp.md", "a.md", "build/b.md", "sub/build/b.md", "draft-x.md", "draft-keep.md", "sub/draft-sub.md",
                 "sub/draft-y.md", "sub/local.md", "sub/only-here.md", "sub/in/only-here.md"):  # fmt: skip
        write(tmp_path, path, "x")
    assert paths(walk(tmp_path)) == [
        "a.md", "draft-keep.md", "sub/build/b.md", "sub/draft-sub.md", "sub/in/only-here.md", "sub/local.md"
    ]  # fmt: skip


def test_changed_ignore_file_counts_at_the_next_walk(tmp_path: Path) -> None:
    write(tmp_path, "a.md", "x")
    write(tmp_path, "sub/b.md", "x")
    assert paths(walk(tmp_path)) == ["a.md", "sub/b.md"]
    write(tmp_path, ".gitignore", "sub/")
    assert paths(walk(tmp_path)) == ["a.md"]
    write(tmp_path, ".gitignore", "a.md\n")
    assert paths(walk(tmp_path)) == ["sub/b.md"]
    (tmp_path / ".gitignore").unlink()
    assert paths(walk(tmp_path)) == ["a.md", "sub/b.md"]


def test_symbolic_links_are_not_followed(tmp_path: Path) -> None:
    write(tmp_path, "outside/secret.md", "x")
    root = tmp_path / "root"
    write(root, "a.md", "x")
    (root / "link.md").symlink_to(tmp_path / "outside/secret.md")
    (root / "folder").symlink_to(tmp_path / "outside")
    (root / "loop").symlink_to(root)
    assert paths(walk(root)) == ["a.md"]


def test_notes_of_a_nested_root_are_not_listed_by_the_outer_one(tmp_path: Path) -> None:
    write(tmp_path, "a.md", "x")
    write(tmp_path, "inner/b.md", "x")
    found = walk(tmp_path, tmp_path / "inner", tmp_path)
    assert sorted((place.root, place.path) for place in found.notes) == [
        (str(tmp_path), "a.md"),
        (str(tmp_path / "inner"), "b.md"),
    ]


def test_invalid_names_and_pipes_are_skipped_and_reported(tmp_path: Path) -> None:
    write(tmp_path, "good.md", "x")
    (tmp_path / os.fsdecode(b"bad\xff.md")).write_text("x")
    os.mkfifo(tmp_path / "pipe.md")
    found = walk(tmp_path)
    assert paths(found) == ["good.md"]
    assert list(found.problems.values()) == ["name is not valid UTF-8"]


def test_missing_root_hides_its_notes_instead_of_deleting_them(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(root, "a.md", "x")
    (place,) = walk(root).notes
    root.rename(tmp_path / "away")
    found = walk(root)
    assert not found.notes
    assert found.is_hidden_from_view(place)
    assert found.problems == {str(root): "folder cannot be read: No such file or directory"}


def test_ignore_file_that_is_a_pipe_or_leads_outside_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, "outside", "*.md")
    root = tmp_path / "root"
    write(root, "a.md", "x")
    write(root, "sub/b.md", "x")
    (root / ".gitignore").symlink_to(tmp_path / "outside")
    os.mkfifo(root / "sub/.gitignore")
    found = walk(root)
    assert paths(found) == ["a.md", "sub/b.md"]
    assert len(found.problems) == 2


def test_reading_stays_below_the_roots_and_refuses_pipes(tmp_path: Path) -> None:
    outside = write(tmp_path, "outside/a.md", "x")
    root = tmp_path / "root"
    inside = write(root, "a.md", "x")
    (root / "link.md").symlink_to(outside)
    os.mkfifo(root / "pipe.md")
    assert read(str(inside), Roots([root]), time.time_ns()).data == b"x"
    for path in (root / "link.md", outside, root / "pipe.md", root):
        with pytest.raises((OutsideRoots, IsADirectoryError)):
            read(str(path), Roots([root]), time.time_ns())


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"plain", "plain"),
        (b"\xef\xbb\xbfmark\r\n", "\ufeffmark\r\n"),
        (b"caf\xe9", "caf\ufffd"),
        ("\ufeffwide ü".encode("utf-16-le"), "wide ü"),
        ("\ufeffwide ü".encode("utf-16-be"), "wide ü"),
        (b"nul\0", "nul\0"),
        (b"", ""),
    ],
)
def test_any_bytes_are_decoded(data: bytes, text: str) -> None:
    assert decode(data) == text


def test_digest_is_of_the_trimmed_text() -> None:
    assert digest("\n a b \n\n") == digest("a b")
    assert digest("a b") != digest("a  b")


def test_file_written_a_moment_ago_is_not_settled(tmp_path: Path) -> None:
    path = write(tmp_path, "a.md", "x")
    changed = path.stat().st_ctime_ns
    assert not read(str(path), Roots([tmp_path]), changed + 1_000_000).settled
    assert read(str(path), Roots([tmp_path]), changed + 1_000_000_000).settled


def test_stamp_of_any_file_system_fits_the_database() -> None:
    status = os.stat_result((0o100644, 2**64 - 1, 0, 1, 0, 0, 5, 0, 0, 0, 0.0, 0.0, 0.0, 0, 2**64, -(2**64)))
    stamp = Stamp.of(status)
    assert all(-(2**63) < value < 2**63 for value in (stamp.inode, stamp.mtime_ns, stamp.ctime_ns))
    assert stamp.inode >= 0


async def test_note_older_than_time_itself_is_read_once(tmp_path: Path) -> None:
    root = tmp_path / "root"
    file = write(root, "a.md", "zebra")
    os.utime(file, ns=(-(10**18), -(10**18)))
    search = MemorySearch()
    for _ in range(2):
        async with notes_service(tmp_path / "data", root, search=search) as bench:
            await settled(bench, 1)
            await settled(bench, 1)
    assert search.put_ids == ["a"]
