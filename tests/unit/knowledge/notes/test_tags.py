"""Adding tags: the exact bytes, and a file that is whole at every moment."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from proto.errors import InvalidParams, OperationError
from services.knowledge.notes.tags import checked, tagged
from services.knowledge.operations.notes import SearchDocuments
from services.knowledge.operations.writing import InjectTags
from services.runtime.rewrite import rewrite
from services.runtime.roots import OutsideRoots, Roots
from tests.unit.knowledge.rig import notes_service, settled, write


@pytest.mark.parametrize(
    ("before", "tags", "after"),
    [
        ("# T", ["a", "b"], "# T\n\n<!-- tags: a, b -->\n"),
        ("# T\n\n\n", ["a"], "# T\n\n<!-- tags: a -->\n"),
        ("", ["a"], "\n\n<!-- tags: a -->\n"),
        ("# T\r\n\r\nx\r\n", ["a"], "# T\r\n\r\nx\r\n\r\n<!-- tags: a -->\r\n"),
        ("# T  \n", ["a"], "# T  \n\n<!-- tags: a -->\n"),
        ("x\n\n<!-- tags: a, b -->\n", ["b", "c"], "x\n\n<!-- tags: a, b, c -->\n"),
        ("x\n<!-- tags: a -->\ny\n<!--tags:b-->\nz", ["c"], "x\n<!-- tags: a -->\ny\n<!-- tags: b, c -->\nz"),
        ("x\n<!-- tags: [FOLLOWS: one] -->\n", ["a"], "x\n<!-- tags: [FOLLOWS: one], a -->\n"),
        (
            "x\n<!-- tags: a -->\n```\n<!-- tags: b -->\n```\n",
            ["c"],
            "x\n<!-- tags: a, c -->\n```\n<!-- tags: b -->\n```\n",
        ),
        ("```\n<!-- tags: b -->\n```\n", ["c"], "```\n<!-- tags: b -->\n```\n\n<!-- tags: c -->\n"),
        ("```\nopen\n\n<!-- tags: a -->\n", ["b"], "```\nopen\n\n<!-- tags: a, b -->\n"),
        ("x <!-- tags: never closed\n", ["a"], "x <!-- tags: never closed\n\n<!-- tags: a -->\n"),
        ("x\n\n<!-- tags: a -->\n", ["a"], "x\n\n<!-- tags: a -->\n"),
        ("\ufeffx\n", ["ü"], "\ufeffx\n\n<!-- tags: ü -->\n"),
    ],
)
def test_tags_are_appended_or_merged_with_every_other_byte_kept(before: str, tags: Sequence[str], after: str) -> None:
    assert tagged(before.encode(), tags).data.decode() == after


def test_invalid_bytes_are_kept() -> None:
    assert tagged(b"caf\xe9\xff\n", ["a"]).data == b"caf\xe9\xff\n\n<!-- tags: a -->\n"


@pytest.mark.parametrize("tag", [" ", "a,b", "a-->b", "a\nb", "a\u2028b", "[x", "x]y", "[a: b], c"])
def test_tag_that_would_not_be_read_back_is_refused_by_its_index(tag: str) -> None:
    with pytest.raises(InvalidParams) as caught:
        checked(["good", tag])
    assert caught.value.failure.field == "tags[1]"


async def test_injecting_returns_the_documented_answer_and_the_note_is_found_by_the_tag(tmp_path: Path) -> None:
    root = tmp_path / "root"
    file = write(root, "docs/a.md", "# Alpha\n\nSome words.\n")
    async with notes_service(tmp_path / "data", root) as bench:
        await settled(bench, 1)
        first = await bench.call(InjectTags(file_path=str(file), tags=["one", "two"]))
        assert first.message == f"Successfully injected 2 tags into {file}"
        second = await bench.call(InjectTags(file_path="docs/a.md", tags=["two", "three"]))
        assert second.message == "Successfully merged 2 tags into docs/a.md"
        assert file.read_text() == "# Alpha\n\nSome words.\n\n<!-- tags: one, two, three -->\n"
        await settled(bench, 1)
        found = await bench.call(SearchDocuments(query="words", tags=["three", "one"]))
        assert [hit.id for hit in found.results] == ["a"]
        again = await bench.call(InjectTags(file_path="docs/a.md", tags=["two"]))
        assert not again.changed


async def test_injecting_outside_the_roots_or_into_a_missing_file_changes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    outside = write(tmp_path, "outside.md", "x")
    (root / "link.md").symlink_to(outside)
    (root / "folder.md").mkdir()
    async with notes_service(tmp_path / "data", root) as bench:
        for path in (str(outside), "link.md", "../outside.md", "folder.md"):
            with pytest.raises(OperationError, match="cannot add tags to"):
                await bench.call(InjectTags(file_path=path, tags=["a"]))
        for path in ("missing.md", "no/folder.md", str(root / "missing.md")):
            with pytest.raises(OperationError, match=f"^File not found: {path}$"):
                await bench.call(InjectTags(file_path=path, tags=["a"]))
        with pytest.raises(InvalidParams, match="is not a Markdown file"):
            await bench.call(InjectTags(file_path=str(root / "x.txt"), tags=["a"]))
        with pytest.raises(InvalidParams, match="UTF-16"):
            await bench.call(InjectTags(file_path=str(write(root, "w.md", "") and utf16(root / "w.md")), tags=["a"]))
    assert outside.read_text() == "x"
    assert sorted(os.listdir(root)) == ["folder.md", "link.md", "w.md"]


def utf16(path: Path) -> Path:
    path.write_bytes("text".encode("utf-16"))
    return path


def test_link_to_a_file_below_the_roots_stays_a_link_and_mode_is_kept(tmp_path: Path) -> None:
    file = write(tmp_path, "real.md", "x")
    file.chmod(0o640)
    link = tmp_path / "link.md"
    link.symlink_to("real.md")
    assert rewrite(str(link), Roots([tmp_path]), lambda data: data + b"y")
    assert link.is_symlink()
    assert file.read_text() == "xy"
    assert file.stat().st_mode & 0o777 == 0o640


def test_writers_of_one_file_lose_nothing(tmp_path: Path) -> None:
    file = write(tmp_path, "a.md", "")
    errors: list[BaseException] = []

    def add(name: int) -> None:
        try:
            for _ in range(10):
                rewrite(str(file), Roots([tmp_path]), lambda data: data + b"%d\n" % name)
        except BaseException as error:  # noqa: BLE001  # a thread's own, told to the test
            errors.append(error)

    threads = [threading.Thread(target=add, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sorted(file.read_text().split()) == sorted(str(name) for name in range(4) for _ in range(10))


def test_write_of_another_program_in_between_is_noticed(tmp_path: Path) -> None:
    file = write(tmp_path, "a.md", "old\n")
    seen: list[bytes] = []

    def change(data: bytes) -> bytes:
        seen.append(data)
        if len(seen) == 1:
            file.write_bytes(b"theirs\n")
        return data + b"ours\n"

    rewrite(str(file), Roots([tmp_path]), change)
    assert seen == [b"old\n", b"theirs\n"]
    assert file.read_bytes() == b"theirs\nours\n"


def test_change_that_fails_leaves_the_file_and_no_litter(tmp_path: Path) -> None:
    file = write(tmp_path, "a.md", "x")

    def change(data: bytes) -> bytes:
        raise InvalidParams("no")

    with pytest.raises(InvalidParams):
        rewrite(str(file), Roots([tmp_path]), change)
    with pytest.raises(OutsideRoots):
        rewrite(str(file), Roots([tmp_path / "other"]), lambda data: b"y")
    assert (file.read_text(), os.listdir(tmp_path)) == ("x", ["a.md"])


_WRITER = """
import sys
from services.runtime.rewrite import rewrite
from services.runtime.roots import Roots
path, root = sys.argv[1:]
print("go", flush=True)
n = 0
while True:
    n += 1
    rewrite(path, Roots([root]), lambda data: (b"%d\\n" % n) * 20_000)
"""


@pytest.mark.slow
def test_killed_writer_leaves_the_old_or_the_new_file_whole(tmp_path: Path) -> None:
    file = write(tmp_path, "a.md", "0\n" * 20_000)
    for delay in range(8):
        child = subprocess.Popen([sys.executable, "-c", _WRITER, str(file), str(tmp_path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        threading.Event().wait(0.003 * delay)
        child.kill()
        child.wait()
        child.stdout.close()
        lines = file.read_bytes().split()
        assert len(lines) == 20_000
        assert len(set(lines)) == 1
    rewrite(str(file), Roots([tmp_path]), lambda data: b"end")
    assert os.listdir(tmp_path) == ["a.md"]
