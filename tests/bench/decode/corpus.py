"""Files of real formats, with text and pictures of ordinary sizes, the same in every run."""

from __future__ import annotations

import io
import random
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from PIL import Image, ImageFilter
from PIL.PngImagePlugin import PngInfo

WORDS: Final = 6000
LINES_OF_A_PAGE: Final = 46
WORDS_OF_A_LINE: Final = 12
PICTURES: Final = 8
"""How many different pictures there are of a kind; the others differ in a comment, and so in their hash."""

_SYLLABLES: Final = [first + second for first in "bdfghklmnprstvw" for second in "aeiou"]
_TYPES: Final = "application/vnd.openxmlformats-officedocument"
_RELATIONS: Final = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_HEAD: Final = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_W: Final = f'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main" xmlns:r="{_RELATIONS}"'
_S: Final = f'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main" xmlns:r="{_RELATIONS}"'
_P: Final = (
    'xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main"'
    f' xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" xmlns:r="{_RELATIONS}"'
)


class Corpus:
    """Makes the files of a kind."""

    def __init__(self, seed: int = 7) -> None:
        self._chosen = random.Random(seed)
        self._words = ["".join(self._chosen.choices(_SYLLABLES, k=self._chosen.randint(1, 4))) for _ in range(WORDS)]
        # As in a language, few words are most of a text.
        self._weights = [1 / rank for rank in range(1, WORDS + 1)]
        self._embedded = [_jpeg(_picture(self._chosen, (1280, 960)), "") for _ in range(PICTURES)]

    def files(self, kind: str, count: int) -> Iterator[bytes]:
        """Yield the contents of `count` files."""
        if kind in ("jpeg", "png"):
            yield from self._pictures(kind, count)
            return
        make: Callable[[], bytes] = {
            "pdf": self.pdf, "docx": self.docx, "xlsx": self.xlsx, "pptx": self.pptx, "odt": self.odt
        }[kind]  # fmt: skip
        for _ in range(count):
            yield make()

    def write(self, folder: Path, kind: str, count: int) -> list[Path]:
        """Write files to a folder of their own, and return their paths."""
        place = folder / kind
        place.mkdir(parents=True)
        paths = []
        for number, data in enumerate(self.files(kind, count)):
            paths.append(place / f"{kind}-{number:04}.{kind}")
            paths[-1].write_bytes(data)
        return paths

    def _text(self, words: int) -> str:
        return " ".join(self._chosen.choices(self._words, self._weights, k=words)).capitalize()

    def pdf(self) -> bytes:
        """A PDF of 5 to 20 pages, with compressed contents."""
        pages = self._chosen.randint(5, 20)
        kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(pages))
        objects = [
            b"<< /Type /Catalog /Pages 2 0 R >>",
            f"<< /Type /Pages /Kids [{kids}] /Count {pages} >>".encode(),
            b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
        ]
        for n in range(pages):
            objects.append(
                f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * n} 0 R"
                " /Resources << /Font << /F1 3 0 R >> >> >>".encode()
            )
            lines = "".join(f"({self._text(WORDS_OF_A_LINE)}) Tj T*\n" for _ in range(LINES_OF_A_PAGE))
            stream = zlib.compress(f"BT /F1 11 Tf 14 TL 56 736 Td\n{lines}ET".encode())
            head = f"<< /Length {len(stream)} /Filter /FlateDecode >>\nstream\n".encode()
            objects.append(head + stream + b"\nendstream")
        data = bytearray(b"%PDF-1.5\n%\xe2\xe3\xcf\xd3\n")
        places: list[int] = []
        for number, body in enumerate(objects, 1):
            places.append(len(data))
            data += f"{number} 0 obj\n".encode() + body + b"\nendobj\n"
        start = len(data)
        data += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n".encode()
        data += "".join(f"{place:010} 00000 n \n" for place in places).encode()
        data += f"trailer << /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n".encode()
        return bytes(data)

    def docx(self) -> bytes:
        """A document of 5 to 20 pages, with runs and attributes as Word writes them, and a picture."""

        def paragraph(text: str, style: str = "") -> str:
            named = f'<w:pStyle w:val="{style}"/>' if style else ""
            mark = f'w:rsidR="{self._chosen.randrange(1 << 32):08X}" w:rsidRDefault="00A77B3E"'
            run = '<w:rPr><w:rFonts w:ascii="Calibri" w:hAnsi="Calibri"/><w:lang w:val="en-GB"/></w:rPr>'
            words = text.split(" ")
            runs = (" ".join(words[at : at + 25]) for at in range(0, len(words), 25))
            inner = "".join(f'<w:r {mark}>{run}<w:t xml:space="preserve">{each} </w:t></w:r>' for each in runs)
            return f'<w:p {mark}><w:pPr>{named}<w:spacing w:after="120"/></w:pPr>{inner}</w:p>'

        body = []
        for _ in range(self._chosen.randint(5, 20)):
            body.append(paragraph(self._text(5), "Heading2"))
            body += [paragraph(self._text(self._chosen.randint(40, 110))) for _ in range(6)]
            cells = "".join(f"<w:tc>{paragraph(self._text(2))}</w:tc>" for _ in range(4))
            body.append(f"<w:tbl>{f'<w:tr>{cells}</w:tr>' * 4}</w:tbl>")
        latent = "".join(
            f'<w:lsdException w:name="style {number}" w:semiHidden="1" w:unhideWhenUsed="1"/>' for number in range(370)
        )
        styles = "".join(
            f'<w:style w:type="paragraph" w:styleId="Heading{level}"><w:name w:val="heading {level}"/></w:style>'
            for level in range(1, 7)
        )
        return _zipped({
            "[Content_Types].xml": _HEAD + "<Types/>",
            "_rels/.rels": _related(officeDocument="word/document.xml"),
            "word/_rels/document.xml.rels": _related(styles="styles.xml", image="media/image1.jpeg"),
            "word/styles.xml": f"{_HEAD}<w:styles {_W}><w:latentStyles>{latent}</w:latentStyles>{styles}</w:styles>",
            "word/document.xml": f"{_HEAD}<w:document {_W}><w:body>{''.join(body)}</w:body></w:document>",
            "word/media/image1.jpeg": self._chosen.choice(self._embedded),
        })  # fmt: skip

    def odt(self) -> bytes:
        """A document of 5 to 20 pages, as LibreOffice writes it."""
        space = "urn:oasis:names:tc:opendocument:xmlns"
        parts = "".join(
            f'<text:h text:style-name="P1" text:outline-level="2">{self._text(5)}</text:h>'
            + "".join(f'<text:p text:style-name="P2">{self._text(75)}</text:p>' for _ in range(6))
            for _ in range(self._chosen.randint(5, 20))
        )
        names = f'xmlns:office="{space}:office:1.0" xmlns:text="{space}:text:1.0"'
        content = f"<office:body><office:text>{parts}</office:text></office:body>"
        return _zipped({
            "mimetype": "application/vnd.oasis.opendocument.text",
            "META-INF/manifest.xml": _HEAD + "<manifest/>",
            "content.xml": f"{_HEAD}<office:document-content {names}>{content}</office:document-content>",
        })  # fmt: skip

    def xlsx(self) -> bytes:
        """A workbook of three sheets with 60 to 300 rows of ten columns, half of them text."""
        texts = [self._text(3) for _ in range(400)]
        members: dict[str, str | bytes] = {
            "[Content_Types].xml": _HEAD + "<Types/>",
            "_rels/.rels": _related(officeDocument="xl/workbook.xml"),
            "xl/styles.xml": f'<styleSheet {_S}><cellXfs><xf numFmtId="0"/><xf numFmtId="14"/></cellXfs></styleSheet>',
        }
        for sheet in (1, 2, 3):
            rows = []
            for row in range(1, self._chosen.randint(60, 300)):
                cells = []
                for at, column in enumerate("ABCDEFGHIJ"):
                    if at % 2:
                        value, about = f"{self._chosen.uniform(0, 90_000):.2f}", ' s="0"'
                    else:
                        value, about = str(self._chosen.randrange(len(texts))), ' s="0" t="s"'
                    cells.append(f'<c r="{column}{row}"{about}><v>{value}</v></c>')
                rows.append(f'<row r="{row}" spans="1:10">{"".join(cells)}</row>')
            inner = f"<sheetData>{''.join(rows)}</sheetData>"
            members[f"xl/worksheets/sheet{sheet}.xml"] = f"{_HEAD}<worksheet {_S}>{inner}</worksheet>"
        strings = "".join(f"<si><t>{text}</t></si>" for text in texts)
        members["xl/sharedStrings.xml"] = f"{_HEAD}<sst {_S}>{strings}</sst>"
        named = "".join(f'<sheet name="Sheet{n}" sheetId="{n}" r:id="worksheet_{n}"/>' for n in (1, 2, 3))
        members["xl/workbook.xml"] = f"{_HEAD}<workbook {_S}><sheets>{named}</sheets></workbook>"
        members["xl/_rels/workbook.xml.rels"] = _related(
            worksheet_1="worksheets/sheet1.xml", worksheet_2="worksheets/sheet2.xml",
            worksheet_3="worksheets/sheet3.xml", styles="styles.xml", sharedStrings="sharedStrings.xml",
        )  # fmt: skip
        return _zipped(members)

    def pptx(self) -> bytes:
        """A presentation of 10 to 30 slides, with a picture on every fifth."""

        def shape(kind: str, texts: list[str]) -> str:
            lines = "".join(f'<a:p><a:r><a:rPr lang="en-GB" dirty="0"/><a:t>{text}</a:t></a:r></a:p>' for text in texts)
            return (
                f'<p:sp><p:nvSpPr><p:nvPr><p:ph type="{kind}"/></p:nvPr></p:nvSpPr><p:spPr><a:xfrm><a:off x="1" y="1"/>'
                f"</a:xfrm></p:spPr><p:txBody><a:bodyPr/><a:lstStyle/>{lines}</p:txBody></p:sp>"
            )

        slides = self._chosen.randint(10, 30)
        named = {f"slide_{n}": f"slides/slide{n}.xml" for n in range(slides)}
        members: dict[str, str | bytes] = {
            "[Content_Types].xml": _HEAD + "<Types/>",
            "_rels/.rels": _related(officeDocument="ppt/presentation.xml"),
            "ppt/_rels/presentation.xml.rels": _related(**named),
        }
        for n in range(slides):
            shapes = shape("title", [self._text(5)]) + shape("body", [self._text(12) for _ in range(6)])
            tree = f"<p:cSld><p:spTree>{shapes}</p:spTree></p:cSld>"
            members[f"ppt/slides/slide{n}.xml"] = f"{_HEAD}<p:sld {_P}>{tree}</p:sld>"
            members[f"ppt/slides/_rels/slide{n}.xml.rels"] = _related(slideLayout="../slideLayouts/slideLayout2.xml")
            if n % 5 == 0:
                members[f"ppt/media/image{n}.jpeg"] = self._chosen.choice(self._embedded)
        ids = "".join(f'<p:sldId id="{256 + n}" r:id="slide_{n}"/>' for n in range(slides))
        listed = f"<p:sldIdLst>{ids}</p:sldIdLst>"
        members["ppt/presentation.xml"] = f"{_HEAD}<p:presentation {_P}>{listed}</p:presentation>"
        return _zipped(members)

    def _pictures(self, kind: str, count: int) -> Iterator[bytes]:
        """Yield JPEGs of 12 megapixels or PNGs of 3."""
        size = (4000, 3000) if kind == "jpeg" else (2048, 1536)
        encode = _jpeg if kind == "jpeg" else _png
        pictures = [_picture(self._chosen, size) for _ in range(min(PICTURES, count))]
        first = [encode(picture, "") for picture in pictures]
        for number in range(count):
            yield _commented(first[number % len(first)], kind, f"number {number}".encode())


def _picture(chosen: random.Random, size: tuple[int, int]) -> Image.Image:
    """Return something like a photograph: soft shapes with fine grain."""
    small = Image.new("RGB", (24, 18))
    small.putdata([tuple(chosen.randbytes(3)) for _ in range(24 * 18)])
    soft = small.resize(size, Image.Resampling.BICUBIC)
    tile = Image.frombytes("L", (512, 512), chosen.randbytes(512 * 512)).filter(ImageFilter.GaussianBlur(1))
    grain = Image.new("L", size)
    for left in range(0, size[0], 512):
        for top in range(0, size[1], 512):
            grain.paste(tile, (left, top))
    return Image.blend(soft, grain.convert("RGB"), 0.12)


def _jpeg(picture: Image.Image, comment: str) -> bytes:
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=88, comment=comment)
    return out.getvalue()


def _png(picture: Image.Image, comment: str) -> bytes:
    out = io.BytesIO()
    about = PngInfo()
    about.add_text("Comment", comment)
    picture.save(out, "PNG", compress_level=3, pnginfo=about)
    return out.getvalue()


def _commented(data: bytes, kind: str, comment: bytes) -> bytes:
    """Return the same picture with a comment, behind the first marker or the head."""
    if kind == "jpeg":
        return data[:2] + b"\xff\xfe" + (len(comment) + 2).to_bytes(2, "big") + comment + data[2:]
    text = b"tEXtComment\0" + comment
    chunk = (len(text) - 4).to_bytes(4, "big") + text + zlib.crc32(text).to_bytes(4, "big")
    # The signature has 8 bytes, and the head 25.
    return data[:33] + chunk + data[33:]


def _zipped(members: dict[str, str | bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def _related(**targets: str) -> str:
    """Return relationships to `targets`; the part of each name before `_` is the kind."""
    rows = "".join(
        f'<Relationship Id="{key}" Type="{_RELATIONS}/{key.partition("_")[0]}" Target="{target}"/>'
        for key, target in targets.items()
    )
    return f'{_HEAD}<Relationships xmlns="{_TYPES}/relationships">{rows}</Relationships>'
