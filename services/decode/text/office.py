"""Text of word processors, presentations and e-books: DOCX, PPTX, ODT, ODP and EPUB, which are zip files of XML. The
decompressed size is limited."""

from __future__ import annotations

import io
import posixpath
import re
import urllib.parse
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from services.decode.results import NotDecoded, Writer
from services.decode.text.markup import Attributes, Dialect, XmlConverter, elements
from services.shared.text.charsets import charset_of
from services.shared.text.html import plain

MAX_UNFOLDED_BYTES: Final = 192 * 1024**2
"""Decompressed size of all members together."""
_PIECE_BYTES: Final = 1024 * 1024
_TOO_LARGE: Final = f"it decompresses to more than {MAX_UNFOLDED_BYTES} bytes"
_HEADING: Final = re.compile(r"heading (\d)|(title)", re.IGNORECASE)
_TABLE: Final = {"row": "tr", "cell": "tc"}


class Archive:
    """A zip file in memory. Raises NotDecoded if it is not one, or is password-protected."""

    def __init__(self, data: bytes) -> None:
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
        except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError) as error:
            # `zipfile` raises the second one for unknown versions of the format.
            raise NotDecoded(f"it is damaged: {error}") from None
        self._members = {info.filename: info for info in self._zip.infolist()}
        self._left = MAX_UNFOLDED_BYTES

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def check_size(self) -> None:
        """Raises NotDecoded if the declared sizes of the members are too large together."""
        if sum(info.file_size for info in self._members.values()) > MAX_UNFOLDED_BYTES:
            raise NotDecoded(_TOO_LARGE)

    def pieces(self, name: str) -> Iterator[bytes]:
        """Yield the content of a member; empty if it is missing. Raises NotDecoded, and the errors of zipfile and
        zlib."""
        info = self._members.get(name)
        if info is None:
            return
        if info.flag_bits & 1:
            raise NotDecoded("it is password-protected")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise NotDecoded(f"it uses an unsupported compression method ({info.compress_type})")
        with self._zip.open(info) as member:
            while piece := member.read(_PIECE_BYTES):
                self._left -= len(piece)
                if self._left < 0:
                    raise NotDecoded(_TOO_LARGE)
                yield piece

    def read(self, name: str) -> bytes:
        """Return a whole member. Raises the errors of `pieces`."""
        return b"".join(self.pieces(name))


def docx(archive: Archive, main: str, out: Writer) -> None:
    """Write paragraphs, headings, lists and tables, then notes and comments, and each header and footer once; deleted
    text is omitted. `main` is the member that contains the document."""
    folder = posixpath.dirname(main)
    headings = _headings(archive, f"{folder}/styles.xml")

    def prefix(name: str, attributes: Attributes) -> str | None:
        if name == "pStyle":
            return headings.get(attributes.get(":val", ""))
        if name == "outlineLvl":
            return _level(attributes.get(":val", ""))
        return "- " if name == "numPr" else None

    dialect = Dialect(
        texts=frozenset({"t"}), blocks=frozenset({"p"}), prefix=prefix, **_TABLE,
        signs={"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"},
        skipped=frozenset({"Fallback", "tabs", "del", "moveFrom"}),
    )  # fmt: skip
    reader = XmlConverter(dialect, out)
    reader.read(archive.pieces(main))
    for part in ("footnotes", "endnotes", "comments"):
        reader.read(archive.pieces(f"{folder}/{part}.xml"))
    known = relations(archive, main).values()
    margins = [member for part in ("header", "footer") for kind, member in known if kind == part]
    _margins(dialect, out, (archive.pieces(member) for member in margins))


def _margins(dialect: Dialect, out: Writer, parts: Iterable[Iterable[bytes]]) -> None:
    """Write headers and footers. Those of first, left and right pages are often the same."""
    seen: dict[str, None] = {}
    for part in parts:
        page = out.scratch()
        XmlConverter(dialect, page).read(part)
        seen |= dict.fromkeys(page.text.split("\n\n"))
    for text in seen:
        out.block(text)


def _level(text: str) -> str | None:
    """Return the prefix of an outline level from 0; 9 is body text."""
    return f"{'#' * min(int(text) + 1, 6)} " if text.isdecimal() and len(text) == 1 and text != "9" else None


def _headings(archive: Archive, styles: str) -> Mapping[str, str]:
    """Return the prefixes of the heading styles, whatever the language of their ids."""
    found: dict[str, str] = {}
    style = ""
    for name, attributes in elements(archive.pieces(styles), "style", "name", "outlineLvl"):
        if name == "style":
            style = attributes.get(":styleId", "")
        elif name == "outlineLvl" and (prefix := _level(attributes.get(":val", ""))):
            found[style] = prefix
        elif name == "name" and (match := _HEADING.fullmatch(attributes.get(":val", ""))):
            found[style] = _level(str(int(match[1]) - 1) if match[1] and match[1] != "0" else "0") or "# "
    return found


def relations(archive: Archive, member: str) -> dict[str, tuple[str, str]]:
    """Return what a member refers to: kind and target member, by id."""
    folder, name = posixpath.split(member)
    found: dict[str, tuple[str, str]] = {}
    for _, given in elements(archive.pieces(posixpath.join(folder, "_rels", f"{name}.rels")), "Relationship"):
        kind = posixpath.basename(given.get("Type", ""))
        target = posixpath.normpath(posixpath.join("/", folder, given.get("Target", "")))
        found[given.get("Id", "")] = kind, target.lstrip("/")
    return found


def _shape(name: str, attributes: Attributes) -> str | None:
    if name == "sp":
        return ""
    return "## " if name == "ph" and attributes.get("type") in ("title", "ctrTitle") else None


_REMARKS: Final = Dialect(
    texts=frozenset({"t", "text"}), blocks=frozenset({"p", "text"}), prefix=lambda *_: None, signs={"br": "\n"}
)
_SLIDE: Final = Dialect(
    texts=frozenset({"t"}), blocks=frozenset({"p"}), prefix=_shape, **_TABLE, signs={"br": "\n"},
    skipped=frozenset({"fld", "Fallback"}),
)  # fmt: skip


def pptx(archive: Archive, main: str, out: Writer) -> None:
    """Write the slides in order: title, text, tables, speaker notes and comments."""
    known = relations(archive, main)
    slides = [
        target
        for _, given in elements(archive.pieces(main), "sldId")
        for kind, target in [known.get(given.get(":id", ""), ("", ""))]
        if kind == "slide"
    ]
    reader = XmlConverter(_SLIDE, out)
    for number, slide in enumerate(slides, 1):
        out.block(f"# Slide {number}")
        reader.read(archive.pieces(slide))
        for kind, target in relations(archive, slide).values():
            if kind == "notesSlide":
                out.block("### Notes")
                reader.read(archive.pieces(target))
            elif kind == "comments":
                out.block("### Comments")
                XmlConverter(_REMARKS, out).read(archive.pieces(target))
        out.place = f"slide {number} of {len(slides)}"


def _open_document(name: str, attributes: Attributes) -> str | None:
    if name == "h":
        level = attributes.get(":outline-level", "1")
        return f"{'#' * (min(max(int(level), 1), 6) if level.isdecimal() and len(level) < 3 else 1)} "
    # The first text of a slide is its title.
    return {"list-item": "- ", "page": "# ", "notes": "Notes: "}.get(name)


_OPEN_DOCUMENT: Final = Dialect(
    texts=frozenset({"p", "h"}), blocks=frozenset({"p", "h"}), prefix=_open_document, row="table-row",
    cell="table-cell", signs={"s": " ", "tab": "\t", "line-break": "\n"},
    skipped=frozenset({"tracked-changes", "sequence-decls"}),
)  # fmt: skip

_MASTER_PAGES: Final = replace(
    _OPEN_DOCUMENT, skipped=_OPEN_DOCUMENT.skipped | {"styles", "automatic-styles", "font-face-decls"}
)
"""Where the headers and footers are."""


def open_document(archive: Archive, out: Writer) -> None:
    """Write the text of an ODT or ODP file."""
    manifest = elements(archive.pieces("META-INF/manifest.xml"), "encryption-data")
    if manifest:
        raise NotDecoded("it is password-protected")
    XmlConverter(_OPEN_DOCUMENT, out).read(archive.pieces("content.xml"))
    if b"opendocument.text" in archive.read("mimetype")[:100]:
        # Those of presentations hold placeholders.
        _margins(_MASTER_PAGES, out, [archive.pieces("styles.xml")])


_ABOUT: Final = Dialect(
    texts=frozenset({"title", "creator"}), blocks=frozenset({"title", "creator"}),
    prefix=lambda name, _: "# " if name == "title" else None,
)  # fmt: skip


def epub(archive: Archive, out: Writer) -> None:
    """Write the title and authors, then the chapters in reading order."""
    if "META-INF/rights.xml" in archive:
        raise NotDecoded("it is locked by its publisher (DRM)")
    roots = [given for _, given in elements(archive.pieces("META-INF/container.xml"), "rootfile")]
    package = roots[0].get("full-path", "") if roots else ""
    XmlConverter(_ABOUT, out).read(archive.pieces(package))
    listed = elements(archive.pieces(package), "item", "itemref")
    places = {given.get("id", ""): given.get("href", "") for name, given in listed if name == "item"}
    chapters = [places.get(given.get("idref", ""), "") for name, given in listed if name == "itemref"]
    for number, href in enumerate(chapters, 1):
        member = posixpath.normpath(posixpath.join(posixpath.dirname(package), urllib.parse.unquote(href)))
        chapter = archive.read(member)
        out.block(plain(charset_of(chapter).decode(chapter)))
        out.place = f"chapter {number} of {len(chapters)}"
