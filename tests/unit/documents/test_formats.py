"""Office documents, books, mail and notebooks become text with headings; files without text say why."""

from __future__ import annotations

import base64
import io
import random
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from proto.errors import InvalidParams, Unavailable
from proto.operation import operation_of
from proto.ops.decode import DecodedText, DecodeText
from proto.ops.documents.reading import DocumentsGet
from services.decode import main as decode
from services.decode import results
from services.decode.text import office
from services.decode.text.documents import text_of
from services.documents.operations.adding import DocumentsAdd
from services.documents.operations.find import DocumentsGrep, DocumentsSearch
from services.documents.operations.listing import DocumentsStatus
from services.documents.text.passages import passages
from services.retrieve.main import open_service as open_retrieve
from services.runtime.handlers import Context, Environment, Handlers
from services.shared.models.measure import ROUGH
from services.shared.text import cutting
from services.shared.text.html import plain
from tests.unit.documents import formats
from tests.unit.documents.rig import documents, tree
from tests.unit.documents.test_texts import pdf
from tests.waiting import until

LIMIT_S = 60.0
OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


@pytest.mark.parametrize("name", formats.KINDS)
def test_the_text_of_each_kind_has_its_headings_and_rows(name: str) -> None:
    data, begins = formats.KINDS[name]
    made = text_of(data, LIMIT_S)
    assert made.problem is None
    assert made.text is not None
    assert made.text.startswith(begins)
    assert "secret" not in made.text


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<dl><dt>Coffee</dt><dd>Black</dd><dt>Tea</dt><dd>Green</dd></dl>", "Coffee\n\nBlack\n\nTea\n\nGreen"),
        ("<dl><dt>Coffee<dd>Black<dt>Tea<dd>Green</dl>", "Coffee\nBlack\nTea\nGreen"),
        ("<nav>Home</nav><main>Text</main><aside>Side</aside>", "Home\n\nText\n\nSide"),
        ("<figure>A<figcaption>Caption</figcaption></figure>B<hr>C", "A\nCaption\n\nB\nC"),
        ("<label>Colour</label><select><option>Red<option>Blue</select>", "Colour \n\nRed\nBlue"),
        (
            "<address>1 First Street</address><details><summary>More</summary>Inside</details>",
            "1 First Street\n\nMore\nInside",
        ),
        ("<table><tr><th>Region<th>Units<tr><td>EU<td>12</table>after", "Region | Units | \nEU | 12 | \nafter"),
        ("<table><tr><td>a</td><td>b</td></tr></table>", "a | b |"),
        ("<del><p>out</p></del><ins>in</ins> w<b>or</b>d<wbr>s", "out\nin words"),
    ],
)
def test_words_of_different_elements_are_not_joined(page: str, text: str) -> None:
    assert plain(page) == text


def test_headings_and_tables_of_html_are_kept() -> None:
    page = (
        "<head><title>Reefs</title><style>h1 {}</style></head><h1 class=x>\n Corals</h1><p>grow<br>slowly</p>"
        "<template><h2>no</h2></template><h3>Sums</h3><table><tr><th>a</th><th>b</th></tr><tr><td>1</td></tr></table>"
    )
    assert plain(page) == "# Reefs\n\n# Corals\n\ngrow\nslowly\n\n### Sums\n\na | b | \n\n1 |"
    (passage,) = passages(plain(page), "text/html; charset=utf-8", "reefs.html", ROUGH)
    assert [part.path for part in passage.parts] == [("Reefs",), ("Corals",), ("Corals", "Sums")]


def test_mail_names_its_attachments_and_reads_the_readable_ones() -> None:
    text = text_of(formats.mail(), LIMIT_S).text or ""
    places = [
        text.index(said)
        for said in ("The plain body.", "report.docx (application/octet-stream,", "## Revenue", "Attached: bad.xlsx",
                     "(not read: it is damaged", "Attached: picture.png (image/png, 4 bytes)", "## Within",
                     "The inner text.")
    ]  # fmt: skip
    assert places == sorted(places)
    assert "The other body" not in text
    both = text_of(formats.mbox(), LIMIT_S).text or ""
    assert [line for line in both.split("\n") if line.startswith("# ")] == [
        "# Grüße vom Riff", "# Annual report", "# Later"
    ]  # fmt: skip


def _locked() -> bytes:
    data = bytearray(formats.docx())
    for info in zipfile.ZipFile(io.BytesIO(bytes(data))).infolist():
        data[info.header_offset + 6] |= 1
    at = -1
    while (at := data.find(b"PK\x01\x02", at + 1)) >= 0:
        data[at + 8] |= 1
    return bytes(data)


ENTITIES = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]>'
REFUSED = {
    "a PDF of pictures": (pdf(""), "1 pages are images"),
    "no PDF": (b"%PDF-1.7 and nothing", "not a readable PDF"),
    "a Word file with a password": (OLE + bytes(504) + "EncryptedPackage".encode("utf-16-le"), "password-protected"),
    "a zip file with a password": (_locked(), "password-protected"),
    "an ODT with a password": (formats.odt("<encryption-data/>"), "password-protected"),
    "a book with DRM": (formats.epub(rights="<rights/>"), "locked by its publisher"),
    "an old Word file": (OLE + bytes(504) + "WordDocument".encode("utf-16-le"), "save it as .docx"),
    "another zip file": (formats.zipped({"a.txt": "a"}), "not a supported type of document"),
    "a damaged XLS": (OLE + bytes(504) + "Workbook".encode("utf-16-le") * 50, "damaged"),
    "half a zip file": (formats.docx()[:700], "damaged"),
    "no words": (formats.zipped({"content.xml": "<x/>"}), "only pictures"),
    "deep XML": (formats.docx("<w:p>" * 5000), "nested too deeply"),
    "entities": (
        formats.zipped({"_rels/.rels": formats.relations(officeDocument="word/document.xml"),
                        "word/document.xml": f"{ENTITIES}<x>&b;</x>"}), "declares entities",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_files_without_text_say_why(what: str) -> None:
    data, reason = REFUSED[what]
    made = text_of(data, LIMIT_S)
    assert made.text is None
    assert reason in (made.problem or "")


def test_a_document_that_expands_beyond_the_limit_is_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    long = formats.docx("<w:p><w:r><w:t>word</w:t></w:r></w:p>" * 5000)
    monkeypatch.setattr(results, "MAX_TEXT_CHARACTERS", 3000)
    made = text_of(long, LIMIT_S)
    assert (len(made.text or ""), made.problem) == (3000, "its text is truncated before its end")
    made = text_of(long, -1.0)
    assert (made.text, made.problem) == (None, "its text is truncated before its end")
    monkeypatch.setattr(office, "MAX_UNFOLDED_BYTES", 500)
    for data in (formats.docx(), formats.xlsx(), formats.odt()):
        assert "decompresses to more" in (text_of(data, LIMIT_S).problem or "")


@pytest.mark.parametrize("name", formats.KINDS)
def test_truncated_or_corrupted_files_yield_text_or_a_reason(name: str) -> None:
    data, _ = formats.KINDS[name]
    chosen = random.Random(18)
    for _ in range(15):
        broken = bytearray(data[: chosen.randrange(len(data))])
        made = text_of(bytes(broken), LIMIT_S)
        assert made.text or made.problem
        flipped = bytearray(data)
        for _ in range(chosen.choice((1, 30))):
            flipped[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
        made = text_of(bytes(flipped), LIMIT_S)
        assert made.text or made.problem


async def test_documents_of_each_kind_are_found_and_those_without_text_reported(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {name: data for name, (data, _) in formats.KINDS.items()}
    files |= {"scanned.pdf": pdf(""), "old.doc": REFUSED["an old Word file"][0], "plain.zip": formats.docx()}
    files["bad.ipynb"] = "{ a notebook that is not closed"
    tree(tmp_path / "root", files)
    async with documents(tmp_path, {"retrieve": open_retrieve}) as bench:
        added = await bench.call(DocumentsAdd(path=str(tmp_path / "root")))
        assert (added.files, added.text_waiting) == (len(files), 0)
        told = {Path(one.partition(": ")[0]).name: one.partition(": ")[2] for one in added.without_text}
        assert set(told) == {"scanned.pdf", "old.doc", "bad.ipynb"}
        assert "not recognised (OCR)" in told["scanned.pdf"]
        for pattern, name in (
            ("Sales of sea", "report.docx"), ("Speak slowly", "talk.pptx"), ("2026-03-04", "budget.xlsx"),
            ("Seestern", "text.odt"), ("wet & dark", "reef.epub"), ("ValueError: too wet", "study.ipynb"),
            ("^- first point", "letter.eml"), ("From here on", "box.mbox"), ("not closed", "bad.ipynb"),
        ):  # fmt: skip
            matches = (await bench.call(DocumentsGrep(pattern=pattern))).matches
            assert name in {Path(match.file).name for match in matches}, pattern
        assert not (await bench.call(DocumentsGrep(pattern="delText|Relationship"))).matches
        hit = (await bench.call(DocumentsSearch(query="Kapitel Seestern"))).results[0]
        assert hit.name == "text.odt"
        read = await bench.call(DocumentsGet(name="report.docx", include_content=True))
        assert (read.content_encoding, read.content_source, read.text_problem) == ("utf-8", "extracted_text", None)
        assert (read.content or "").startswith("# Annual report")
        source = await bench.call(DocumentsGet(name="letter.eml", include_content=True))
        assert (source.content_encoding, source.mime_type) == ("utf-8", "message/rfc822")
        # Each kind: its text in parts that add up, and the original when that is asked for.
        for name, (data, begins) in formats.KINDS.items():
            whole, offset, is_more = "", 0, True
            while is_more:
                part = await bench.call(DocumentsGet(name=name, include_content=True, offset=offset, length=50))
                whole += part.content or ""
                offset, is_more = offset + (part.content_length or 0), part.content_truncated
            assert whole.startswith(begins)
            assert whole == (await bench.call(DocumentsGet(name=name, include_content=True))).content
            kept = await bench.call(DocumentsGet(name=name, include_content=True, original=True))
            assert (kept.content_encoding, kept.content_source) == ("base64", "original")
            assert base64.b64decode(kept.content or "") == data
        with pytest.raises(InvalidParams, match="offset"):
            await bench.call(DocumentsGet(name="report.docx", include_content=True, offset=10**9))
        picture = await bench.call(DocumentsGet(name="scanned.pdf", include_content=True))
        assert (picture.content_encoding, picture.content_source) == ("base64", "original")
        assert "save it as .docx" in ((await bench.call(DocumentsGet(name="old.doc"))).text_problem or "")
        status = await bench.call(DocumentsStatus(detailed=True))
        assert status.quarantined == 2
        assert len(status.quarantine or []) == 3


async def test_a_text_is_indexed_as_soon_as_it_is_extracted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing comes by itself.
    monkeypatch.setattr(cutting, "AGAIN_S", 3600.0)
    go_on = trio.Event()

    @asynccontextmanager
    async def open_later(env: Environment) -> AsyncIterator[Handlers]:
        async def read(params: DecodeText, ctx: Context) -> DecodedText:
            await go_on.wait()
            return text_of(params.data, LIMIT_S)

        async with decode.open_service(env) as handlers:
            handlers.by_name["decode_text"] = operation_of(DecodeText), read
            yield handlers

    tree(tmp_path / "root", {"a.docx": formats.docx()})
    services = {"decode": open_later, "retrieve": open_retrieve}
    async with documents(tmp_path, services) as bench, trio.open_nursery() as nursery:

        async def known() -> bool:
            status = await bench.call(DocumentsStatus())
            return (status.total_objects, status.search_waiting) == (1, 0)

        nursery.start_soon(bench.call, DocumentsAdd(path=str(tmp_path / "root")))
        await until(known)
        go_on.set()

        async def found() -> bool:
            answer = await bench.call(DocumentsSearch(query="revenue of sea stars"))
            return [hit.snippet.startswith("# Annual") for hit in answer.results] == [True] and await known()

        await until(found)


async def test_texts_that_are_extracted_stay_when_the_decoder_fails_at_another(tmp_path: Path) -> None:
    asked: list[bytes] = []
    is_well = False

    @asynccontextmanager
    async def open_ailing(env: Environment) -> AsyncIterator[Handlers]:
        async def read(params: DecodeText, ctx: Context) -> DecodedText:
            asked.append(params.data)
            if not is_well and b"ailing" in params.data:
                raise Unavailable("the decoder is away")
            return text_of(params.data, LIMIT_S)

        async with decode.open_service(env) as handlers:
            handlers.by_name["decode_text"] = operation_of(DecodeText), read
            yield handlers

    mails = [f"Subject: mail {number}\n\n{'ailing' if number == 3 else 'well'}\n".encode() for number in range(6)]
    tree(tmp_path / "root", {f"{number}.eml": mail for number, mail in enumerate(mails)})
    async with documents(tmp_path, {"decode": open_ailing}) as bench:
        added = await bench.call(DocumentsAdd(path=str(tmp_path / "root")))
        assert added.text_waiting > 0
        stored = [mail for mail in asked if b"ailing" not in mail]
        assert stored
        assert added.text_waiting == len(mails) - len(set(stored))
        is_well = True

        async def done() -> bool:
            return (await bench.call(DocumentsStatus())).extraction_waiting == 0

        await until(done)
        # No text that was ready is extracted again because another one failed.
        assert all(asked.count(mail) == 1 for mail in stored)
