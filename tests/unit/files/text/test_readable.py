"""Files in any character set, PDFs and office documents are read as text; an edit changes no other bytes."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from proto.errors import InvalidParams, OperationError
from services.decode.main import open_service as open_decode
from services.files.main import open_service
from services.files.operations.text import GrepFiles, ReadFile
from services.files.text import extracting, searching
from tests.in_process import services_in_process
from tests.unit.documents import formats
from tests.unit.documents.pdfs import pdf_of
from tests.unit.documents.test_charsets import DECLARED, DETECTED, files
from tests.unit.documents.test_texts import pdf
from tests.unit.files.rig import files_service
from tests.unit.files.text.test_text_files import edit, read

WIDE = {"utf-16": "utf-16-le", "utf-32": "utf-32-le"}
BOTH = {"decode": open_decode, "files": open_service}


async def test_a_text_is_read_edited_and_found_in_its_own_set(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for name, data in files().items():
        (root / name).write_bytes(data)
    async with files_service(tmp_path / "data", root) as bench:
        for name, (text, codec, word) in (DECLARED | DETECTED).items():
            was = await read(bench, root / name)
            assert (was.text, was.encoding) == (text, WIDE.get(codec, codec))
            assert was.encoding_from == ("declared" if name in DECLARED else "mark" if codec in WIDE else "detected")
            await edit(bench, root / name, {"old": word, "new": f"{word} {word}"})
            assert (await read(bench, root / name)).text == text.replace(word, f"{word} {word}")
            await edit(bench, root / name, {"old": f"{word} {word}", "new": word})
            assert (root / name).read_bytes() == files()[name]
            if codec != "utf-32":
                found = await bench.call(GrepFiles(pattern=word, path=str(root), literal=True))
                assert str(root / name) in {one.path for one in found.files}, name
        shown = await bench.call(GrepFiles(pattern="Gerät .* 5", path=str(root / "western.txt")))
        assert [match.text for match in shown.files[0].matches] == ["Das Gerät kostet 5 € in der Straße."]
        plain = await bench.call(GrepFiles(pattern="kostet", path=str(root / "western.txt")))
        assert [match.text for match in plain.files[0].matches] == ["Das Gerät kostet 5 € in der Straße."]


async def test_a_long_file_in_another_set_is_searched_in_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "WINDOW", 1 << 16)
    root = tmp_path / "root"
    root.mkdir()
    lines = [f"Zeile {number} der Größe nach" for number in range(20_000)]
    lines[15_000] += " Straße"
    (root / "long.txt").write_bytes("\n".join(lines).encode("cp1252"))
    async with files_service(tmp_path / "data", root) as bench:
        found = await bench.call(GrepFiles(pattern="Straße", path=str(root), context=1))
        (match,) = found.files[0].matches
        assert (match.line, match.text, match.before) == (15_001, lines[15_000], (lines[14_999],))
        counted = await bench.call(GrepFiles(pattern="Größe", path=str(root), count=True))
        assert counted.files[0].count == 20_000


async def test_an_encoding_that_cannot_be_written_back_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    # U+2252 has two codes in it, of which one is written.
    twice = "これは".encode("cp932") + b"\x81\xe0 \x87\x90\n"
    (root / "a.txt").write_bytes(twice)
    async with files_service(tmp_path / "data", root) as bench:
        await edit(bench, root / "a.txt", {"old": "\n", "new": "!\n"})
    assert (root / "a.txt").read_bytes() == twice.replace(b"\n", b"!\n")


async def test_documents_are_read_as_text_or_raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    root.mkdir()
    kinds = {name: one for name, one in formats.KINDS.items() if not name.endswith((".eml", ".mbox", ".ipynb"))}
    kinds["book.pdf"] = (pdf_of(["The reimburse-", "ment"], ["second page"]), "The reimbursement")
    for name, (data, _) in kinds.items():
        (root / name).write_bytes(data)
    (root / "scan.pdf").write_bytes(pdf(""))
    (root / "other.zip").write_bytes(formats.docx())
    monkeypatch.setattr(extracting, "ORIGINAL_BYTES", 300)
    settings = {"decode": {"memory_limit_bytes": 0}}
    async with services_in_process(BOTH, tmp_path / "data", roots=[root], settings=settings) as bench:
        for name, (data, begins) in kinds.items():
            text = await read(bench, root / name)
            assert (text.source, text.problem, text.bytes) == ("extracted_text", "", len(data))
            assert text.text.startswith(begins)
            if text.total_lines > 1:
                second = await read(bench, root / name, lines="2")
                assert (second.text, second.source) == (text.text.split("\n")[1] + "\n", "extracted_text")
            parts, offset = [], 0
            while True:
                part = await bench.call(ReadFile(path=str(root / name), original=True, offset=offset))
                assert (part.encoding, part.source, part.hash) == ("base64", "original", text.hash)
                parts.append(base64.b64decode(part.text))
                if not part.next_offset:
                    break
                offset = part.next_offset
            assert b"".join(parts) == data
        with pytest.raises(OperationError, match="not recognised \\(OCR\\); set `original` to read its bytes"):
            await read(bench, root / "scan.pdf")
        with pytest.raises(OperationError, match="is binary"):
            await read(bench, root / "other.zip")
        with pytest.raises(InvalidParams) as refused:
            await read(bench, root / "scan.pdf", original=True, offset=10**9)
        assert refused.value.failure.field == "offset"
        with pytest.raises(OperationError, match="is binary"):
            await edit(bench, root / "report.docx", {"old": "a", "new": "b"})
        await bench.stop("decode")
        with pytest.raises(Exception, match="decode"):
            await read(bench, root / "book.pdf")
