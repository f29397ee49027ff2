"""Office documents say what their programs show: exact numbers, errors, durations and comments, no text that went."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from services.decode.text import sheets
from services.decode.text.documents import text_of
from services.documents.operations.adding import DocumentsAdd
from services.documents.operations.find import DocumentsGrep
from tests.unit.documents import formats
from tests.unit.documents.formats import D, S, W
from tests.unit.documents.rig import documents, tree

LIMIT_S = 60.0
FORMATS = ("[h]:mm", "[hh]:mm:ss", "yyyy-mm-dd", "h:mm", "#,##0.00", '0" days"', "[Red]0.00", "d. mmmm yyyy")


def changed(data: bytes, members: dict[str, str]) -> bytes:
    """An archive with other members."""
    source = zipfile.ZipFile(io.BytesIO(data))
    return formats.zipped({**{name: source.read(name) for name in source.namelist()}, **members})


def book(rows: str, *, about: str = "", more: dict[str, str] | None = None) -> bytes:
    """A workbook of one sheet, whose styles 1 and on are `FORMATS`, then time and elapsed time as built in."""
    own = "".join(f'<numFmt numFmtId="{164 + n}" formatCode="{_quoted(code)}"/>' for n, code in enumerate(FORMATS))
    used = "".join(f'<xf numFmtId="{number}"/>' for number in (0, *range(164, 164 + len(FORMATS)), 20, 46))
    styles = (
        f'<styleSheet {S}><numFmts>{own}</numFmts><cellStyleXfs><xf numFmtId="14"/></cellStyleXfs>'
        f"<cellXfs>{used}</cellXfs></styleSheet>"
    )
    workbook = f'<workbook {S}>{about}<sheets><sheet name="Data" sheetId="1" r:id="worksheet"/></sheets></workbook>'
    return changed(formats.xlsx(rows), {"xl/styles.xml": styles, "xl/workbook.xml": workbook, **(more or {})})


def _quoted(text: str) -> str:
    return text.replace('"', "&quot;")


def cells(*values: str) -> str:
    """A row of cells: `style:value` a number, `type=value` one of another type."""
    made = ""
    for index, value in enumerate(values):
        kind, is_typed, rest = value.partition("=")
        style, _, number = value.partition(":")
        about = f't="{kind}"' if is_typed else f's="{style}"'
        made += f'<c r="{chr(65 + index)}1" {about}><v>{rest if is_typed else number}</v></c>'
    return f'<row r="1">{made}</row>'


VALUES = {
    "0:4111111111111111": "4111111111111111", "0:9876543210123457": "9876543210123457",
    "0:1.5E+15": "1500000000000000", "0:1E+16": "10000000000000000",
    "0:1.234567890123456E+15": "1234567890123456", "0:12345678901234567890": "12345678901234567890",
    "0:-5": "-5", "0:0.30000000000000004": "0.3", "0:1E-3": "0.001", "0:12.50": "12.5", "5:1234.5": "1234.5",
    "e=#N/A": "#N/A", "e=#DIV/0!": "#DIV/0!", "e=#REF!": "#REF!", "b=1": "TRUE", "b=0": "FALSE", "str=said": "said",
    "1:1.2604166666666667": "30:15", "1:4.1666666666666664": "100:00", "1:-0.5": "-12:00", "1:0.03125": "0:45",
    "2:1.5000115740740741": "36:00:01", "10:2": "48:00:00", "3:46085": "2026-03-04", "3:46085.5": "2026-03-04 12:00:00",
    "4:0.5": "12:00:00", "9:0.75": "18:00:00", "6:3": "3", "7:2.25": "2.25", "8:46085": "2026-03-04",
    "3:-1": "-1", "d=2026-03-04": "2026-03-04", "0:nonsense": "nonsense", "s=0": "shared text", "s=7": "",
}  # fmt: skip
SHARED = f"<sst {S}><si><r><t>shared </t></r><r><t>text</t></r><rPh><t>spoken</t></rPh></si></sst>"


@pytest.mark.parametrize("value", VALUES)
def test_a_cell_shows_its_formatted_value(value: str) -> None:
    more = {
        "xl/sharedStrings.xml": SHARED,
        "xl/_rels/workbook.xml.rels": formats.relations(
            worksheet="worksheets/sheet1.xml", styles="styles.xml", sharedStrings="sharedStrings.xml"
        ),
    }
    made = text_of(book(cells("str=first", value, "str=last"), more=more), LIMIT_S)
    assert (made.text or "").strip() == f"# Data\n\nfirst | {VALUES[value]} | last"


def test_days_count_from_1904_if_the_workbook_says_so() -> None:
    made = text_of(book(cells("3:44623"), about='<workbookPr date1904="1"/>'), LIMIT_S)
    assert "2026-03-04" in (made.text or "")


def test_cells_of_other_formats_are_shown_the_same() -> None:
    for value, wanted in ((1234567890123456.0, "1234567890123456"), (0.1 + 0.2, "0.3"), (True, "TRUE"), (7, "7")):
        assert sheets.shown(value) == wanted


COMMENTS = f"""<comments {S}><authors><author>Ada</author><author>tc=1</author></authors><commentList>
<comment ref="B2" authorId="0"><text><r><t>old </t></r><r><t>note 検算</t></r></text></comment>
<comment ref="C3" authorId="1"><text><t>[Threaded comment] Your version shows: is this right?</t></text></comment>
</commentList></comments>"""
THREADS = """<ThreadedComments xmlns="http://schemas.microsoft.com/office/spreadsheetml/2018/threadedcomments">
<threadedComment ref="C3" personId="{P}" id="1"><text>is this right?</text></threadedComment>
<threadedComment ref="C3" personId="{Q}" id="2" parentId="1"><text>yes, checked</text></threadedComment>
</ThreadedComments>"""
PERSONS = '<personList><person displayName="Grace" id="{P}"/><person displayName="Linus" id="{Q}"/></personList>'


def commented() -> bytes:
    return book(
        cells("0:1"),
        more={
            "xl/comments1.xml": COMMENTS,
            "xl/threadedComments/threadedComment1.xml": THREADS,
            "xl/persons/person.xml": PERSONS,
            "xl/worksheets/_rels/sheet1.xml.rels": formats.relations(
                comments="../comments1.xml", threadedComment="../threadedComments/threadedComment1.xml"
            ),
            "xl/_rels/workbook.xml.rels": formats.relations(
                worksheet="worksheets/sheet1.xml", styles="styles.xml", person="persons/person.xml"
            ),
        },
    )


def test_comments_of_cells_are_text_once() -> None:
    made = text_of(commented(), LIMIT_S).text or ""
    assert made.strip().split("\n")[2:] == [
        "1", "", "Comments:", "", "- B2 (Ada): old note 検算", "- C3 (Grace): is this right?",
        "- C3 (Linus): yes, checked",
    ]  # fmt: skip


REVISED = (
    "<w:p><w:r><w:t>The plan </w:t></w:r><w:del w:id='1'><w:r><w:delText>removed</w:delText></w:r></w:del>"
    "<w:ins w:id='2'><w:r><w:t>inserted</w:t></w:r></w:ins></w:p>"
    "<w:moveFromRangeStart w:id='3' w:name='move1'/><w:p><w:pPr><w:rPr><w:moveFrom w:id='4'/></w:rPr></w:pPr>"
    "<w:moveFrom w:id='5'><w:r><w:t>moved sentence</w:t></w:r></w:moveFrom></w:p><w:moveFromRangeEnd w:id='3'/>"
    "<w:p><w:r><w:t>between, co\u00adoperation</w:t></w:r></w:p>"
    "<w:p><w:moveTo w:id='6'><w:r><w:t>moved sentence</w:t></w:r></w:moveTo></w:p>"
    "<w:p><w:del w:id='7'><w:r><w:t>gone although it is text</w:t></w:r></w:del></w:p>"
)
NOTES = (
    f"<w:comments {W}><w:comment w:author='Ada'><w:p><w:r><w:t>is this so?</w:t></w:r></w:p></w:comment></w:comments>"
)


def test_moved_text_is_included_once_and_deleted_text_is_not() -> None:
    made = text_of(changed(formats.docx(REVISED), {"word/comments.xml": NOTES}), LIMIT_S).text or ""
    assert made.strip().split("\n\n") == [
        "The plan inserted", "between, cooperation", "moved sentence", "as in 2024", "is this so?"
    ]  # fmt: skip


OLD_REMARKS = f'<p:cmLst {formats.P}><p:cm authorId="0"><p:text>too long a title</p:text></p:cm></p:cmLst>'
NEW_REMARKS = (
    f'<p188:cmLst xmlns:p188="http://x/2018/8/main" {formats.P}><p188:cm><p188:txBody><a:p>'
    "<a:r><a:t>check the </a:t></a:r><a:r><a:t>source</a:t></a:r></a:p></p188:txBody></p188:cm></p188:cmLst>"
)


def test_comments_of_slides_are_text() -> None:
    refers = formats.relations(comments_1="../comments/comment1.xml", comments_2="../comments/modern1.xml")
    data = changed(formats.pptx(), {
        "ppt/slides/_rels/slide1.xml.rels": refers, "ppt/comments/comment1.xml": OLD_REMARKS,
        "ppt/comments/modern1.xml": NEW_REMARKS,
    })  # fmt: skip
    made = text_of(data, LIMIT_S).text or ""
    assert made.endswith("## Thanks\n\n### Comments\n\ntoo long a title\n\n### Comments\n\ncheck the source\n\n")


ODS = f"""<office:document-content {formats.D} xmlns:dc="http://purl.org/dc/elements/1.1/"
 xmlns:calcext="urn:org:documentfoundation:names:experimental:calc:xmlns:calcext:1.0"><office:body><office:spreadsheet>
<table:table table:name="Sums"><table:table-row><table:table-cell office:value-type="float"
 office:value="4111111111111111"><text:p>4.11E+15</text:p><office:annotation><dc:creator>Ada</dc:creator>
<text:p>please check</text:p></office:annotation></table:table-cell><table:table-cell office:value-type="time"
 office:time-value="PT30H15M00S"><text:p>30:15</text:p></table:table-cell></table:table-row></table:table>
</office:spreadsheet></office:body></office:document-content>"""


def test_an_opendocument_sheet_has_exact_numbers_durations_and_notes() -> None:
    kind = "application/vnd.oasis.opendocument.spreadsheet"
    manifest = f'<manifest xmlns="x"><file-entry full-path="/" media-type="{kind}"/></manifest>'
    data = formats.zipped({"mimetype": kind, "META-INF/manifest.xml": manifest, "content.xml": ODS})
    made = text_of(data, LIMIT_S)
    assert made.text == "# Sums\n\n4111111111111111 | 30:15:00\n\nComments:\n\n- Ada please check\n\n"


def test_headers_and_footers_are_text_once() -> None:
    def part(kind: str, text: str) -> str:
        return f"<w:{kind} {W}><w:p><w:r><w:t>{text}</w:t></w:r></w:p></w:{kind}>"

    names = {"header_1": "header1.xml", "header_2": "header2.xml", "footer_1": "footer1.xml"}
    letter = changed(formats.docx(), {
        "word/_rels/document.xml.rels": formats.relations(**names),
        "word/header1.xml": part("hdr", "Larch and Sons"), "word/header2.xml": part("hdr", "Larch and Sons"),
        "word/footer1.xml": part("ftr", "IBAN DE89 3704"),
    })  # fmt: skip
    text = text_of(letter, LIMIT_S).text or ""
    assert (text.count("Larch and Sons"), text.count("IBAN DE89 3704")) == (1, 1)
    page = "".join(f"<style:{kind}><text:p>{text}</text:p></style:{kind}>" for kind, text in (
        ("header", "Letterhead"), ("header-left", "Letterhead"), ("footer", "Foot"),
    ))  # fmt: skip
    styles = (
        f'<office:document-styles {D} xmlns:style="urn:style"><office:styles><text:p>no</text:p></office:styles>'
        f"<office:master-styles><style:master-page>{page}</style:master-page></office:master-styles>"
        "</office:document-styles>"
    )
    text = text_of(changed(formats.odt(), {"styles.xml": styles}), LIMIT_S).text or ""
    assert (text.count("Letterhead"), text.count("Foot"), "no" in text) == (1, 1, False)


def test_a_cell_that_was_never_calculated_has_its_formula() -> None:
    row = (
        '<row r="1"><c r="A1"><v>1</v></c><c r="B1"><f>A1*2</f><v>2</v></c><c r="C1"><f>SUM(A1:B1)</f></c>'
        '<c r="D1"><f>A1&amp;"x"</f><v></v></c><c r="E1"><f t="shared" si="0"/></c></row>'
    )
    assert '1 | 2 | =SUM(A1:B1) | =A1&"x"\n' in (text_of(book(row), LIMIT_S).text or "")


async def test_all_of_the_text_is_found(tmp_path: Path) -> None:
    root = tmp_path / "root"
    values = book(cells("0:4111111111111111", "e=#N/A", "1:1.2604166666666667"))
    tree(root, {"card.xlsx": values, "notes.xlsx": commented(), "plan.docx": formats.docx(REVISED)})
    async with documents(tmp_path) as bench:
        await bench.call(DocumentsAdd(path=str(root)))
        for pattern, name in (("4111111111111111", "card.xlsx"), ("#N/A", "card.xlsx"), (r"\b30:15", "card.xlsx"),
                              ("検算", "notes.xlsx"), ("yes, checked", "notes.xlsx"),
                              ("moved sentence", "plan.docx")):  # fmt: skip
            found = await bench.call(DocumentsGrep(pattern=pattern))
            assert [Path(match.file).name for match in found.matches] == [name], pattern
