"""Files that are too large to be held: their lines are read in bounded memory, and edits are refused."""

from __future__ import annotations

import base64
import hashlib
import resource
from pathlib import Path

import pytest

from proto.errors import LinckiaError
from services.files.operations.text import EditFile, FileEdit, FileText, ReadFile, WriteFile
from services.files.text import large, operations
from services.files.text.extracting import ORIGINAL_BYTES
from services.runtime import rewrite
from tests.in_process import Bench
from tests.unit.files.rig import files_service
from tests.unit.files.text.test_text_files import read

CONTENTS = [
    "".join(f"line {number} é\n" for number in range(1, 5000)),
    "".join(f"line {number}\r\n" for number in range(1, 5000)),
    "a\nb\r\n" * 2000 + "no end",
    "x" * 9000 + "\n" + "y" * 100 + "\nz\n",
    "\n" * 3000,
    "\ufeffmarked\nlines\n" + "é" * 3000,
]
LINES = ["", "1", "2-3", "-4", "2500-", "4999-", "1-4999", "3", "1-2"]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file of more than 1000 bytes is large."""
    monkeypatch.setattr(large, "_PIECE_BYTES", 1009)
    monkeypatch.setattr(large, "SAMPLE_BYTES", 501)


async def one(bench: Bench, path: Path, lines: str) -> FileText | str:
    try:
        return await bench.call(ReadFile(path=str(path), lines=lines))
    except LinckiaError as error:
        return str(error)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("content", CONTENTS)
async def test_lines_of_a_large_file_are_those_of_a_small_one(
    tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a.txt").write_bytes(content.encode())
    async with files_service(tmp_path / "data", root) as bench:
        whole = [await one(bench, root / "a.txt", lines) for lines in LINES]
        with monkeypatch.context() as context:
            context.setattr(operations, "MAX_BYTES", 1000)
            assert [await one(bench, root / "a.txt", lines) for lines in LINES] == whole
            part = await read(bench, root / "a.txt", original=True, offset=777)
            assert base64.b64decode(part.text) == content.encode()[777 : 777 + ORIGINAL_BYTES]
            assert part.hash == hashlib.sha256(content.encode()).hexdigest()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.bin", b"\0" * 2000, "is binary"),
        ("a.pdf", b"%PDF-1.7\n" * 500, "set `original`"),
        ("a.txt", ("wide\n" * 500).encode("utf-16"), "utf-16-le is not supported"),
        ("a.txt", b"text\n" * 500, "no lines 900-; the file has 500"),
    ],
)
async def test_unreadable_files_are_refused_with_the_reason(
    tmp_path: Path, name: str, data: bytes, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "MAX_BYTES", 1000)
    root = tmp_path / "root"
    root.mkdir()
    (root / name).write_bytes(data)
    async with files_service(tmp_path / "data", root) as bench:
        with pytest.raises(LinckiaError, match=said):
            await read(bench, root / name, lines="900-")


async def test_a_file_of_200_mib_is_read_in_bounded_memory_and_not_edited(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    line = b"0123456789abcde\n"
    with (root / "big.log").open("wb") as file:
        for _ in range(200):
            file.write(line * 65536)
    total = 200 * 65536
    async with files_service(tmp_path / "data", root) as bench:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found = await read(bench, root / "big.log", lines=f"{total - 1}-")
        assert (found.text, found.total_lines, found.lines) == (2 * line.decode(), total, f"{total - 1}-{total}")
        assert (await read(bench, root / "big.log", lines="7000000-")).next_lines
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024
        changes = [
            EditFile(path=str(root / "big.log"), edits=[FileEdit(new="x\n", lines="1")]),
            WriteFile(path=str(root / "big.log"), content="x", overwrite=True),
        ]
        for change in changes:
            with pytest.raises(LinckiaError, match=f"209715200 bytes, more than the limit of {rewrite.MAX_BYTES}"):
                await bench.call(change)
        assert (root / "big.log").stat().st_size == total * len(line)
