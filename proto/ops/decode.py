"""The operations of `decode`: pictures, metadata, text and symbols out of a file, in a process that may die of it.

Image, video, audio and PDF decoders and parsers of code are large, old, and fed by strangers. They run here and nowhere
else, with nothing to lose: no data, no network, no files, little memory and little time. The bytes come with the call,
or are asked for of the caller while it waits.

The router sends a call whose process died once more; a second death is `Quarantined`, which the callers keep with the
content (see `services.runtime.calls.decoded`).
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from linckia.proto.operation import OPERATOR, Family, Params, Role
from linckia.proto.ops.media import Hash, MediaKind

SERVICE = "decode"

of_media = Family(SERVICE, role=Role.INTERNAL, callers=("media",))
of_documents = Family(SERVICE, role=Role.INTERNAL, callers=("documents",))
of_readers = Family(SERVICE, role=Role.INTERNAL, callers=("documents", "files"))
operator = Family(SERVICE, role=Role.INTERNAL, callers=(OPERATOR,))


TIME_LIMIT_S = 30.0
"""For one file; a decoder that takes longer is ended, with its process."""
MEMORY_BYTES = 1536 * 1024**2
"""Of the process, set by the system: past it an allocation fails. A picture of 120 megapixels is turned in it."""
MAX_SOURCE_BYTES = 64 * 1024**2
"""Of a file that text is taken from."""
MAX_TEXT_CHARACTERS = 16 * 1024**2
"""Of its text; the rest is left out."""


_OPEN_XML = "application/vnd.openxmlformats-officedocument"
_OPEN_DOCUMENT = "application/vnd.oasis.opendocument"
_OFFICE_TYPES = {
    ".docx": f"{_OPEN_XML}.wordprocessingml.document", ".pptx": f"{_OPEN_XML}.presentationml.presentation",
    ".xlsx": f"{_OPEN_XML}.spreadsheetml.sheet", ".odt": f"{_OPEN_DOCUMENT}.text",
    ".odp": f"{_OPEN_DOCUMENT}.presentation", ".ods": f"{_OPEN_DOCUMENT}.spreadsheet", ".epub": "application/epub+zip",
    ".docm": "application/vnd.ms-word.document.macroenabled.12", ".xls": "application/vnd.ms-excel",
    ".pptm": "application/vnd.ms-powerpoint.presentation.macroenabled.12",
    ".xlsm": "application/vnd.ms-excel.sheet.macroenabled.12",
    ".xlsb": "application/vnd.ms-excel.sheet.binary.macroenabled.12", ".doc": "application/msword",
    ".ppt": "application/vnd.ms-powerpoint",
}  # fmt: skip
TEXTUAL_TYPES = {".eml": "message/rfc822", ".mbox": "application/mbox", ".ipynb": "application/x-ipynb+json"}
"""Of documents that are texts themselves, and better read than searched as they are."""
DOCUMENT_TYPES = _OFFICE_TYPES | TEXTUAL_TYPES
"""Beside PDF, what text is taken from, as Markdown: MIME types by the extension.  Of `.doc` and `.ppt` it is said that
they are not read."""


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """A JPEG that was made from a file; at most 320 by 320."""

    name: str
    type: str
    width: int
    height: int
    data: bytes
    metadata: dict[str, Any]


class Decoded(msgspec.Struct, frozen=True, kw_only=True):
    """What could be made of a file."""

    metadata: dict[str, Any]
    pictures: list[Picture]
    problem: Annotated[str | None, Meta(description="Why there is less than there could be")]


@of_media.read("decode_file", deadline_s=TIME_LIMIT_S + 15)
class DecodeFile(Params[Decoded], frozen=True, kw_only=True):
    """Decode a file, which is read by `media_bytes`."""

    hash: Hash
    size: Annotated[int, Meta(ge=0, description="Bytes")]
    kind: MediaKind


class DecodedText(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a file: Markdown, but of a PDF its pages apart by a line with a form feed."""

    text: Annotated[str | None, Meta(description="Null where there is none to be had")]
    problem: Annotated[str | None, Meta(description="Why there is less than there could be")] = None
    charset: Annotated[str | None, Meta(description="That the text was in, and how that is known")] = None


@of_readers.read("decode_text", deadline_s=TIME_LIMIT_S + 15)
class DecodeText(Params[DecodedText], frozen=True, kw_only=True):
    """Take the text from a PDF, or a document of an office program, a book, mail or a notebook."""

    data: Annotated[bytes, Meta(max_length=MAX_SOURCE_BYTES)]


_LANGUAGES = {
    "python": ("python", ".py .pyi .pyw"),
    "javascript": ("javascript", ".js .mjs .cjs .jsx"),
    "typescript": ("javascript", ".ts .mts .cts"),
    "tsx": ("javascript", ".tsx"),
    "go": ("go", ".go"),
    "rust": ("rust", ".rs"),
    "c": ("c", ".c"),
    # A header may be of C or of C++, whose grammar reads both.
    "cpp": ("c", ".h .cc .cpp .cxx .c++ .hpp .hh .hxx .ipp"),
    "java": ("java", ".java"),
    # On the same machine: each calls what the others define.
    "kotlin": ("java", ".kt .kts"),
    "scala": ("java", ".scala .sc"),
    "csharp": ("csharp", ".cs"),
    "swift": ("swift", ".swift"),
    "php": ("php", ".php .phtml"),
    "ruby": ("ruby", ".rb .rake .gemspec"),
    "lua": ("lua", ".lua"),
    "bash": ("shell", ".sh .bash .zsh .ksh"),
    "sql": ("sql", ".sql"),
}
LANGUAGES = {
    extension: (name, family) for name, (family, extensions) in _LANGUAGES.items() for extension in extensions.split()
}
"""Of code, by the extension of a file's name with its dot: the language, and whose definitions its calls may mean."""
SEPARATORS = {
    "rust": "::", "java": ".", "csharp": ".", "swift": ".", "lua": ".", "php": "\\", "ruby": "/", "shell": "/",
}  # fmt: skip
"""Between the parts of what is imported, in the families in which that is the path of a file."""
MARKDOWN_EXTENSIONS = (".md", ".markdown", ".mdx")
CODE_EXTENSIONS = frozenset((*LANGUAGES, *MARKDOWN_EXTENSIONS))

MAX_CODE_BYTES = 1024 * 1024
"""Longer ones are generated; they are stored and searched like any other, and not parsed."""
CODES_AT_ONCE = 24

CALLS, IMPORTS, LINKS_TO = "CALLS", "IMPORTS", "LINKS_TO"
EXTENDS = "EXTENDS"
"""Of a class: not an edge of any answer, but needed to know what is called on `self` and `super()`."""
RENAMES, RENAMED = "RENAMES", "RENAMED"
"""An export under another name: by its own name with the exported one as the target, and by the exported one with its
own as the target, which `imported` makes if another module has it."""


def stem(name: str) -> str:
    """The name of a file without its last extension."""
    base, dot, _ = name.rpartition(".")
    return base if dot and base else name


def imported(module: str, inside: str) -> str:
    """The target of a use of what an import binds: the module, as the import names it, and what of it."""
    return f"{module}\n{inside}"


def of_import(target: str) -> tuple[str, str] | None:
    """The module and what of it, if `imported` made the target."""
    module, is_imported, inside = target.partition("\n")
    return (module, inside) if is_imported else None


class Symbol(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A definition; `parent` is the index of the one around it, -1 where that is the file. Lines from 1."""

    name: str
    qualified: str
    kind: str
    first: int
    last: int
    parent: int


class Reference(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A name that is used by a symbol (its index; -1: by the file itself).

    `key` is what it is looked up by.  `target` is, of a call, what it is called on (see `imported`); of an import or a
    link, the whole of it.  `tentative` ones count only where something answers to them.
    """

    symbol: int
    kind: str
    key: str
    target: str
    tentative: bool = False


class Parsed(msgspec.Struct, array_like=True):
    """What a text of code defines, calls and imports, and where a Markdown text links to, by names as written."""

    language: str
    family: str
    symbols: list[Symbol] = []
    references: list[Reference] = []


class CodeText(msgspec.Struct, frozen=True, array_like=True):
    """A content, and the extension that says how it is read."""

    data: Annotated[bytes, Meta(max_length=MAX_CODE_BYTES)]
    extension: str


class ParsedCode(msgspec.Struct, frozen=True, kw_only=True):
    """One for each content, in order; fewer where the time ran out."""

    contents: list[Parsed]


@of_documents.read("decode_code", deadline_s=TIME_LIMIT_S + 15)
class DecodeCode(Params[ParsedCode], frozen=True, kw_only=True):
    """Parse source code and Markdown."""

    contents: Annotated[list[CodeText], Meta(max_length=CODES_AT_ONCE)]


class Formats(msgspec.Struct, frozen=True, kw_only=True):
    """What there are decoders for."""

    pictures: list[str]
    containers: Annotated[list[str], Meta(description="Of videos and of sound")]
    documents: list[str]


@operator.read("decode_formats", deadline_s=30)
class DecodeFormats(Params[Formats], frozen=True, kw_only=True):
    """List the formats that pictures and metadata are made from."""
