"""Files that clients write: whole or not at all, never over another file, nowhere outside the roots."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from proto.errors import OperationError
from services.runtime import replace
from services.runtime.rewrite import Contended, TooLarge, content_hash, create, naming_errors, read_whole, rewrite
from services.runtime.roots import Denied, OutsideRoots, Roots
from services.shared.text.lines import MAX_CHARACTERS, shortly, unified

NO_NAMES = pytest.mark.parametrize("unnamed", [True, False], indirect=True, ids=["unnamed files", "named ones"])


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    return Roots([tmp_path])


@pytest.fixture
def unnamed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system with unnamed files, or without."""
    if not request.param:
        monkeypatch.setattr(replace, "_unnamed", lambda directory: None)


@NO_NAMES
def test_a_new_file_is_made_with_its_folders_and_nothing_beside_it(tmp_path: Path, roots: Roots, unnamed: None) -> None:
    create(str(tmp_path / "a/b/new.txt"), roots, b"text")
    assert (tmp_path / "a/b/new.txt").read_bytes() == b"text"
    assert stat.S_IMODE((tmp_path / "a/b/new.txt").stat().st_mode) == 0o644
    assert os.listdir(tmp_path / "a/b") == ["new.txt"]


@NO_NAMES
def test_creating_never_replaces(tmp_path: Path, roots: Roots, unnamed: None) -> None:
    (tmp_path / "there").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "folder").mkdir()
    for name in ("there", "link", "folder"):
        with pytest.raises(FileExistsError):
            create(str(tmp_path / name), roots, b"yours")
    assert (tmp_path / "there").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["folder", "link", "there"]


def test_nothing_is_made_outside_the_roots_or_where_it_may_not(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (inside / "way").symlink_to(outside)
    for path in (outside / "x", inside / "way" / "x"):
        with pytest.raises((OutsideRoots, OSError)):
            create(str(path), Roots([inside]), b"")
    with pytest.raises(Denied, match="read-only"):
        create(str(inside / "x"), Roots([inside], read_only=[str(inside)]), b"")
    with pytest.raises(Denied):
        create(str(inside / "no/x"), Roots([inside], denied=[str(inside / "no")]), b"")
    assert os.listdir(outside) == []
    assert os.listdir(inside) == ["way"]


def test_a_hash_says_which_content_is_meant(tmp_path: Path, roots: Roots) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"one")
    old = content_hash(b"one")
    done = rewrite(str(file), roots, lambda data: data + b"!", if_match=f"sha256:{old.upper()}")
    assert (done.before, done.after) == (b"one", b"one!")
    with pytest.raises(OperationError, match="has changed") as refused:
        rewrite(str(file), roots, lambda data: b"", if_match=old)
    assert refused.value.failure.field == "if_match"
    assert refused.value.failure.data["found"] == content_hash(b"one!")
    assert file.read_bytes() == b"one!"


def test_a_dry_run_and_no_change_leave_the_file_itself(tmp_path: Path, roots: Roots) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"one")
    inode = file.stat().st_ino
    assert rewrite(str(file), roots, lambda data: b"two", dry_run=True).after == b"two"
    assert rewrite(str(file), roots, lambda data: data).after == b"one"
    assert (file.stat().st_ino, file.read_bytes()) == (inode, b"one")


def test_forbidden_writes_are_refused_with_the_field(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"one")
    with pytest.raises(Denied) as refused:
        rewrite(str(file), Roots([tmp_path], read_only=[str(tmp_path)]), lambda data: b"", field="file")
    assert refused.value.failure.field == "file"
    for path, roots in ((str(tmp_path / "none"), Roots([tmp_path])), (str(tmp_path), Roots([tmp_path]))):
        with pytest.raises(OperationError) as failed, naming_errors(path, "file"):
            rewrite(path, roots, lambda data: b"")
        assert failed.value.failure.field == "file"


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, roots: Roots) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"123456")
    with pytest.raises(TooLarge):
        read_whole(str(file), roots, 5)
    assert read_whole(str(file), roots, 6) == b"123456"


def test_a_folder_that_is_swapped_for_a_link_meanwhile_is_not_followed(tmp_path: Path, roots: Roots) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "other").mkdir()
    for name in ("folder", "other"):
        (tmp_path / name / "a").write_bytes(b"one")

    def swap(data: bytes) -> bytes:
        (tmp_path / "folder").rename(tmp_path / "moved")
        (tmp_path / "folder").symlink_to("other")
        return b"two"

    with pytest.raises((Contended, OSError)):
        rewrite(str(tmp_path / "folder/a"), Roots([tmp_path]), lambda data: b"two" if data != b"one" else swap(data))
    assert (tmp_path / "moved/a").read_bytes() == b"one"


def test_a_long_diff_is_cut_and_says_so() -> None:
    assert shortly("a\n", "b\n", "f") == unified("a\n", "b\n", "f")
    assert shortly("a\n", "a\n", "f") == ""
    long = shortly("".join(f"{n}\n" for n in range(9000)), "".join(f"{n}!\n" for n in range(9000)), "f")
    assert len(long) < MAX_CHARACTERS + 100
    assert long.endswith("more characters\n")
    huge = "x\n" * 40_000
    assert shortly(huge, huge.replace("x", "y"), "f") == "f differs in more than 20000 lines\n"
    assert "+new" in shortly(huge, huge[:40_000] + "new\n" + huge[40_000:], "f")
