"""Small documents of each kind, as the programs that write them do: zip files of XML, mail, notebooks."""

from __future__ import annotations

import io
import json
import zipfile
from email.message import EmailMessage

W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
P = (
    'xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main"'
    ' xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'
    ' xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'
)
S = (
    'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
    ' xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'
)
D = (
    'xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0"'
    ' xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"'
    ' xmlns:table="urn:oasis:names:tc:opendocument:xmlns:table:1.0"'
)


def zipped(members: dict[str, str | bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def relations(**targets: str) -> str:
    """Return relationships to `targets`; the part of each name before `_` is the kind."""
    rows = "".join(
        f'<Relationship Id="{key}" Type="http://x/relationships/{key.partition("_")[0]}" Target="{target}"/>'
        for key, target in targets.items()
    )
    return f'<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">{rows}</Relationships>'


def docx(body: str = "") -> bytes:
    """Its styles are those of a German Word."""

    def paragraph(text: str, about: str = "") -> str:
        return f"<w:p><w:pPr>{about}</w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>"

    cells = "".join(f"<w:tc>{paragraph(text)}</w:tc>" for text in ("Year", "Sum"))
    body = body or (
        paragraph("Annual report", '<w:pStyle w:val="Titel"/>')
        + paragraph("Revenue", '<w:pStyle w:val="berschrift2"/>')
        + paragraph("Sales of sea <w:br/>stars rose")
        + '<w:p><w:del w:id="1"><w:r><w:delText>secret</w:delText></w:r></w:del></w:p>'
        + paragraph("first point", '<w:numPr><w:ilvl w:val="0"/></w:numPr>')
        + f"<w:tbl><w:tr>{cells}</w:tr><w:tr>{cells}</w:tr></w:tbl>"
        + paragraph("Afterwards")
    )
    styles = (
        '<w:style w:styleId="Titel"><w:name w:val="Title"/></w:style>'
        '<w:style w:styleId="berschrift2"><w:name w:val="heading 2"/></w:style>'
    )
    return zipped({
        "[Content_Types].xml": "<Types/>",
        "_rels/.rels": relations(officeDocument="word/document.xml"),
        "word/styles.xml": f"<w:styles {W}>{styles}</w:styles>",
        "word/document.xml": f"<w:document {W}><w:body>{body}</w:body></w:document>",
        "word/footnotes.xml": f"<w:footnotes {W}><w:footnote>{paragraph('as in 2024')}</w:footnote></w:footnotes>",
    })  # fmt: skip


def pptx() -> bytes:
    def shape(text: str, kind: str) -> str:
        return (
            f'<p:sp><p:nvSpPr><p:nvPr><p:ph type="{kind}"/></p:nvPr></p:nvSpPr><p:txBody><a:p><a:r><a:t>{text}</a:t>'
            '</a:r></a:p></p:txBody></p:sp>'
        )  # fmt: skip

    def slide(*shapes: str) -> str:
        return f"<p:sld {P}><p:cSld><p:spTree>{''.join(shapes)}</p:spTree></p:cSld></p:sld>"

    return zipped({
        "_rels/.rels": relations(officeDocument="ppt/presentation.xml"),
        "ppt/presentation.xml": f'<p:presentation {P}><p:sldIdLst><p:sldId id="256" r:id="slide_2"/>'
        '<p:sldId id="257" r:id="slide_1"/></p:sldIdLst></p:presentation>',
        "ppt/_rels/presentation.xml.rels": relations(slide_1="slides/slide1.xml", slide_2="slides/slide2.xml"),
        "ppt/slides/slide1.xml": slide(shape("Thanks", "title")),
        "ppt/slides/slide2.xml": slide(shape("", "title"), shape("Plan for reefs", "ctrTitle"), shape("Grow", "body")),
        "ppt/slides/_rels/slide2.xml.rels": relations(notesSlide="../notesSlides/notesSlide1.xml"),
        "ppt/notesSlides/notesSlide1.xml": slide(shape("Speak slowly", "body")),
    })  # fmt: skip


def xlsx(rows: str = "") -> bytes:
    rows = rows or (
        '<row r="1"><c r="A1" t="inlineStr"><is><t>pump</t></is></c><c r="B1"><v>12.5</v></c>'
        '<c r="C1" s="1"><v>46085</v></c></row><row r="3"><c r="B3"><v>3</v></c></row>'
    )
    sheet = f"<worksheet {S}><sheetData>{rows}</sheetData></worksheet>"
    return zipped({
        "[Content_Types].xml": "<Types/>",
        "_rels/.rels": relations(officeDocument="xl/workbook.xml"),
        "xl/workbook.xml": f'<workbook {S}><sheets><sheet name="Budget" sheetId="1" r:id="worksheet"/></sheets>'
        "</workbook>",
        "xl/_rels/workbook.xml.rels": relations(worksheet="worksheets/sheet1.xml", styles="styles.xml"),
        "xl/styles.xml": f'<styleSheet {S}><cellXfs><xf numFmtId="0"/><xf numFmtId="14"/></cellXfs></styleSheet>',
        "xl/worksheets/sheet1.xml": sheet,
    })  # fmt: skip


def odt(manifest: str = "") -> bytes:
    rows = "".join(f"<table:table-cell><text:p>{text}</text:p></table:table-cell>" for text in "xy")
    return zipped({
        "mimetype": "application/vnd.oasis.opendocument.text",
        "META-INF/manifest.xml": f"<manifest>{manifest}</manifest>",
        "content.xml": f'<office:document-content {D}><text:h text:outline-level="1">Kapitel <text:span>eins'
        "</text:span></text:h><text:p>Der Seestern<text:s/>wächst</text:p>"
        "<text:list><text:list-item><text:p>Punkt</text:p>"
        f"</text:list-item></text:list><table:table-row>{rows}</table:table-row></office:document-content>",
    })  # fmt: skip


def odp() -> bytes:
    slides = "".join(
        f"<draw:page draw:name='page{text}'><text:p>{text}</text:p><text:p>more</text:p>"
        f"<presentation:notes><text:p>say {text}</text:p></presentation:notes></draw:page>"
        for text in "ab"
    )
    names = "xmlns:draw='urn:draw' xmlns:presentation='urn:presentation'"
    body = f"<office:document-content {D} {names}>{slides}</office:document-content>"
    return zipped({"mimetype": "application/vnd.oasis.opendocument.presentation", "content.xml": body})


def epub(**more: str) -> bytes:
    chapter = "<html><head><style>p {}</style></head><body><h1>One</h1><p>It was wet &amp; dark.</p></body></html>"
    return zipped({
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": '<container><rootfiles><rootfile full-path="O/book.opf"/></rootfiles></container>',
        "O/book.opf": '<package xmlns:dc="http://purl.org/dc/elements/1.1/"><metadata><dc:title>The reef</dc:title>'
        '<dc:creator>A. Diver</dc:creator></metadata><manifest><item id="c" href="a%20b.xhtml"/></manifest>'
        '<spine><itemref idref="c"/></spine></package>',
        "O/a b.xhtml": chapter,
        **{f"META-INF/{name}.xml": content for name, content in more.items()},
    })  # fmt: skip


def notebook() -> bytes:
    outputs = [
        {"output_type": "stream", "text": ["one\n", "two\n"]},
        {"output_type": "execute_result", "data": {"text/plain": ["42"], "text/html": ["<b>42</b>"]}},
        {"output_type": "error", "ename": "ValueError", "evalue": "too \x1b[31mwet", "traceback": []},
    ]
    cells = [
        {"cell_type": "markdown", "source": ["# Study\n", "of corals"]},
        {"cell_type": "code", "source": "count(fish)", "outputs": outputs, "execution_count": 1},
    ]
    return json.dumps({"cells": cells, "metadata": {"language_info": {"name": "python"}}, "nbformat": 4}).encode()


def message(subject: str, text: str) -> EmailMessage:
    made = EmailMessage()
    made["From"], made["To"], made["Subject"] = "Ann <ann@example.org>", "bob@example.org", subject
    made["Date"] = "Mon, 23 Nov 2026 10:00:00 +0000"
    made.set_content(text)
    return made


def mail() -> bytes:
    made = message("Grüße vom Riff", "The plain body.\n")
    made.add_alternative("<p>The other body</p>", subtype="html")
    made.add_attachment(docx(), maintype="application", subtype="octet-stream", filename="report.docx")
    made.add_attachment(b"PK\x03\x04 cut", maintype="application", subtype="zip", filename="bad.xlsx")
    made.add_attachment(b"\x89PNG", maintype="image", subtype="png", filename="picture.png")
    made.add_attachment(message("Within", "The inner text.\n"))
    return made.as_bytes()


def mbox() -> bytes:
    return (
        b"From ann Mon Nov 23\n"
        + mail()
        + b"\n\nFrom bob Tue Nov 24\n"
        + message("Later", ">From here on\n").as_bytes()
    )


_REPORT = (
    "# Annual report\n\n## Revenue\n\nSales of sea \nstars rose\n\n- first point\n\nYear | Sum\nYear | Sum\n\n"
    "Afterwards\n\nas in 2024\n\n"
)
KINDS: dict[str, tuple[bytes, str]] = {
    "report.docx": (docx(), _REPORT),
    "talk.pptx": (
        pptx(),
        "# Slide 1\n\n## Plan for reefs\n\nGrow\n\n### Notes\n\nSpeak slowly\n\n# Slide 2\n\n## Thanks\n\n",
    ),
    "budget.xlsx": (xlsx(), "# Budget\n\npump | 12.5 | 2026-03-04\n | 3\n\n"),
    "text.odt": (odt(), "# Kapitel eins\n\nDer Seestern wächst\n\n- Punkt\n\nx | y\n"),
    "slides.odp": (odp(), "# a\n\nmore\n\nNotes: say a\n\n# b\n\nmore\n\nNotes: say b\n\n"),
    "reef.epub": (epub(), "# The reef\n\nA. Diver\n\n# One\n\nIt was wet & dark.\n\n"),
    "study.ipynb": (
        notebook(),
        "# Study\nof corals\n\n```python\ncount(fish)\n```\n\n```\none\ntwo\n```\n\n```\n42\n```\n\n"
        "```\nValueError: too wet\n```\n\n",
    ),
    "letter.eml": (mail(), "# Grüße vom Riff\n\nFrom: Ann <ann@example.org>\nTo: bob@example.org\n"),
    "box.mbox": (mbox(), "# Grüße vom Riff\n\n"),
}
"""The content of each file, and how its text begins."""
