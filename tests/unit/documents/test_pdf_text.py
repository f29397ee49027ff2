"""Divided words, form values and notes are text of a PDF that grep and search find."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.decode.text.documents import text_of
from services.decode.text.hyphenation import FEW_WORDS, Words, joined
from services.documents.operations.adding import DocumentsAdd
from services.documents.operations.find import DocumentsGrep, DocumentsSearch
from services.retrieve.main import open_service as open_retrieve
from tests.unit.documents.pdfs import box, chosen, entered, field, note, pdf_of
from tests.unit.documents.rig import documents, tree

CASES = Path(__file__).parents[4] / "shared" / "cases" / "reports" / "documents"
LIMIT_S = 60.0

DIVIDED = {
    "english": (["The board approved the reimburse-", "ment of all costs."], "reimbursement of all"),
    "german": (["Die Donaudampfschifffahrtsgesell-", "schaft fährt."], "Donaudampfschifffahrtsgesellschaft"),
    "french": (["une démon-", "stration élémen-", "taire"], "démonstration élémentaire"),
    "russian": (["Достопримеча-", "тельности города"], "Достопримечательности"),
    "greek": (["η ελευθε-", "ρία του λόγου"], "ελευθερία"),
    "hyphen of its own sign": (["an exag\u2010", "geration"], "exaggeration"),
    "soft": (["a co\u00adopera\u00ad", "tion"], "cooperation"),
    "three lines": (["incom-", "prehen-", "sible"], "incomprehensible"),
    "capitals": (["GENERAL CONDI-", "TIONS"], "CONDITIONS"),
    "in quotation marks": (["the \u201creim-", "bursement\u201d is due"], "\u201creimbursement\u201d"),
}
KEPT = {
    "inside a line": (["a well-known fact", "and more"], "well-known fact"),
    "before a capital": (["the Anglo-", "American war"], "Anglo-American"),
    "before a number": (["during COVID-", "19 and 2019-", "2020"], "COVID-19 and 2019-2020"),
    "written so elsewhere": (["a well-known rule is well-", "known"], "rule is well-known"),
    "at its own hyphen": (["this is well-", "known"], "well-known"),
    "a list": (["- one", "- two -", "three"], "- two -\nthree"),
}


@pytest.mark.parametrize("name", DIVIDED)
def test_a_divided_word_is_whole(name: str) -> None:
    lines, wanted = DIVIDED[name]
    made = text_of(pdf_of(lines), LIMIT_S).text or ""
    assert wanted in made
    assert not set(made) & {"\x02", "\ufffe", "\u00ad"}


@pytest.mark.parametrize("name", KEPT)
def test_a_hyphen_of_the_word_stays(name: str) -> None:
    lines, wanted = KEPT[name]
    assert wanted in (text_of(pdf_of(lines), LIMIT_S).text or "")


def test_words_divided_by_a_page_break_are_noted() -> None:
    made = text_of(pdf_of(["costs of reimburse-"], ["ment and travel"]), LIMIT_S).text or ""
    assert made == "costs of reimburse-\n(Continued on the next page: reimbursement)\n\f\nment and travel"
    headed = text_of(pdf_of(["costs of reimburse-"], ["Chapter two"]), LIMIT_S).text or ""
    assert headed == "costs of reimburse-\n\f\nChapter two"


def test_doubt_is_noted_only_in_doubtful_cases() -> None:
    alone = "the reimburse\x02ment"
    assert joined(alone, "", Words(alone)).startswith("the reimbursement\n(Divided")
    known = f"{alone} and Reimbursement"
    assert joined(known, "", Words(known)) == "the reimbursement and Reimbursement"
    long = alone + "".join(f" word{number}" for number in range(FEW_WORDS))
    assert "Divided" not in joined(long, "", Words(long))
    both = f"{long} ment is to reimburse"
    assert "reimburse-ment" in joined(both, "", Words(both))


MULTIPLE, EDITABLE, RADIO, PASSWORD = 1 << 21, (1 << 17) | (1 << 18), 1 << 15, 1 << 13


def form() -> bytes:
    return pdf_of(
        ["Application", "Name:"],
        fields=[
            field("name", entered("Ada Łukasiewicz")),
            field("remarks", entered("first line\nsecond line", 1 << 12)),
            field("secret", entered("hunter2", PASSWORD)),
            field("country", chosen(["Österreich", "Schweiz", "Italien"], "Schweiz", flags=1 << 17)),
            field("days", chosen(["Monday", "Tuesday", "Friday"], "Monday", "Friday", flags=MULTIPLE)),
            field("member", box("Yes")),
            field("newsletter", box("Off")),
            field("size", box("Large", RADIO, "Large")),
            field("empty", "/FT /Tx"),
            field("send", "/FT /Btn /Ff 65536"),
        ],
        notes=[
            note("Text", "please check 請確認", "Grace"),
            note("FreeText", "APPROVED on Monday"),
            note("Highlight", "a claim without a source"),
            note("Popup", "not shown"),
        ],
    )  # fmt: skip


def test_form_fields_and_annotations_are_text() -> None:
    made = text_of(form(), LIMIT_S)
    assert made.problem is None
    assert (made.text or "").split("\n")[3:] == [
        "name: Ada Łukasiewicz", "remarks: first line", "second line", "country: Schweiz", "days: Monday, Friday",
        "[x] member: Yes", "[ ] newsletter: Yes", "[x] size: Large", "Note (Grace): please check 請確認",
        "Note: APPROVED on Monday", "Note: a claim without a source",
    ]  # fmt: skip


def test_a_scanned_page_with_a_note_has_the_note() -> None:
    made = text_of(pdf_of([], notes=[note("Text", "see page two")]), LIMIT_S)
    assert (made.text, made.problem) == ("Note: see page two", None)


async def test_all_of_the_text_is_found(tmp_path: Path) -> None:
    root = tmp_path / "root"
    tree(root, {f"{name}.pdf": pdf_of(lines) for name, (lines, _) in DIVIDED.items()})
    tree(root, {"form.pdf": form()})
    async with documents(tmp_path, {"retrieve": open_retrieve}) as bench:
        await bench.call(DocumentsAdd(path=str(root)))
        for name, pattern in [*((f"{name}.pdf", wanted) for name, (_, wanted) in DIVIDED.items()),
                              ("form.pdf", "Łukasiewicz"), ("form.pdf", "確認"), ("form.pdf", "Friday")]:  # fmt: skip
            found = await bench.call(DocumentsGrep(pattern=pattern))
            assert [Path(match.file).name for match in found.matches] == [name]
        for name, query in (("russian.pdf", "достопримечательности"), ("form.pdf", "Łukasiewicz Schweiz")):
            hits = await bench.call(DocumentsSearch(query=query))
            assert hits.results[0].name == name


@pytest.mark.skipif(not CASES.is_dir(), reason="the reported cases are not beside this repository")
async def test_the_reported_files_are_found(tmp_path: Path) -> None:
    root = tmp_path / "root"
    tree(root, {one.name: one.read_bytes() for one in CASES.glob("*.pdf")})
    async with documents(tmp_path) as bench:
        await bench.call(DocumentsAdd(path=str(root)))
        for pattern, name in (
            ("reimbursement", "word-broken-at-line-end.pdf"), ("FORMVALUE", "filled-form.pdf"),
            ("PREMIUMPLAN", "filled-form.pdf"), ("ANNOTNOTE", "filled-form.pdf"),
        ):  # fmt: skip
            found = await bench.call(DocumentsGrep(pattern=pattern))
            assert [Path(match.file).name for match in found.matches] == [name], pattern
