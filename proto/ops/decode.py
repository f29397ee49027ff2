"""Operations of `decode`: extract pictures, metadata, text and symbols from a file, in a process that may die of it.

Decoders of images, video, audio and PDF and parsers of code are large, old, and fed untrusted input. They run only
here, in a process with nothing to lose: no data, no network, no files, and tight limits on memory and time. The bytes
come with the call, or are requested from the caller while it waits.

If the process dies, the router retries the call once; a second death raises `Quarantined`, which callers store with the
content (see `services.runtime.calls.decoded`).
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from proto.operation import OPERATOR, Family, Params, Role
from proto.ops.media import Hash, MediaKind

SERVICE = "decode"

of_media = Family(SERVICE, role=Role.INTERNAL, callers=("media",))
of_documents = Family(SERVICE, role=Role.INTERNAL, callers=("documents",))
of_readers = Family(SERVICE, role=Role.INTERNAL, callers=("documents", "files"))
operator = Family(SERVICE, role=Role.INTERNAL, callers=(OPERATOR,))


TIME_LIMIT_S = 30.0
"""Time limit for one file; a process that exceeds it is killed."""
MEMORY_BYTES = 1536 * 1024**2
"""Memory limit of the process, enforced by the system: past it, allocations fail. It is enough to rotate a picture of
120 megapixels."""
MAX_SOURCE_BYTES = 64 * 1024**2
"""Largest file that text is extracted from."""
MAX_TEXT_CHARACTERS = 16 * 1024**2
"""Longest text extracted from one file; the rest is left out."""


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
"""Documents in text formats that search better once converted."""
DOCUMENT_TYPES = _OFFICE_TYPES | TEXTUAL_TYPES
"""MIME types, by extension, of the documents besides PDF whose text is extracted as Markdown.  `.doc` and `.ppt` are
listed so that they can be reported as unreadable."""


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """A JPEG made from a file; at most 320 by 320 pixels."""

    name: str
    type: str
    width: int
    height: int
    data: bytes
    metadata: dict[str, Any]


class Decoded(msgspec.Struct, frozen=True, kw_only=True):
    """Pictures and metadata extracted from a file."""

    metadata: dict[str, Any]
    pictures: list[Picture]
    problem: Annotated[str | None, Meta(description="Why something is missing")]
    is_final: bool = True
    """False if the same file may decode later, after something else was installed."""


@of_media.read("decode_file", deadline_s=TIME_LIMIT_S + 15)
class DecodeFile(Params[Decoded], frozen=True, kw_only=True):
    """Decode a file, reading it through `media_bytes`."""

    hash: Hash
    size: Annotated[int, Meta(ge=0, description="Bytes")]
    kind: MediaKind


class DecodedText(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a file: Markdown; for a PDF, pages separated by a line with a form feed."""

    text: Annotated[str | None, Meta(description="Null if none could be extracted")]
    problem: Annotated[str | None, Meta(description="Why something is missing")] = None
    charset: Annotated[str | None, Meta(description="Its character set, and how that is known")] = None


@of_readers.read("decode_text", deadline_s=TIME_LIMIT_S + 15)
class DecodeText(Params[DecodedText], frozen=True, kw_only=True):
    """Extract the text of a PDF, office document, book, mail or notebook."""

    data: Annotated[bytes, Meta(max_length=MAX_SOURCE_BYTES)]


_LANGUAGES = {
    "python": ("python", ".py .pyi .pyw"),
    "javascript": ("javascript", ".js .mjs .cjs .jsx"),
    "typescript": ("javascript", ".ts .mts .cts"),
    "tsx": ("javascript", ".tsx"),
    "go": ("go", ".go"),
    "rust": ("rust", ".rs"),
    "c": ("c", ".c"),
    # A header may be C or C++; the C++ grammar parses both.
    "cpp": ("c", ".h .cc .cpp .cxx .c++ .hpp .hh .hxx .ipp"),
    "java": ("java", ".java"),
    # These share the JVM: each calls what the others define.
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
"""Language and family by file extension (with the dot).  Calls resolve to definitions of the same family."""
SEPARATORS = {
    "rust": "::", "java": ".", "csharp": ".", "swift": ".", "lua": ".", "php": "\\", "ruby": "/", "shell": "/",
}  # fmt: skip
"""Separator of module names, for the families in which a module name maps to a file path."""
MARKDOWN_EXTENSIONS = (".md", ".markdown", ".mdx")
CODE_EXTENSIONS = frozenset((*LANGUAGES, *MARKDOWN_EXTENSIONS))

MAX_CODE_BYTES = 1024 * 1024
"""Largest code file that is parsed.  Larger ones are generated code; they are stored and searched as usual."""
CODES_AT_ONCE = 24

CALLS, IMPORTS, LINKS_TO = "CALLS", "IMPORTS", "LINKS_TO"
EXTENDS = "EXTENDS"
"""Relation of a class to its base.  It is in no answer; it resolves calls on `self` and `super()`."""
RENAMES, RENAMED = "RENAMES", "RENAMED"
"""An export under another name.  RENAMES has the original name as its key and the exported name as its target; RENAMED
is the reverse.  If another module defines the original, `imported` makes the target."""


def stem(name: str) -> str:
    """Return a file name without its last extension."""
    base, dot, _ = name.rpartition(".")
    return base if dot and base else name


def imported(module: str, inside: str) -> str:
    """Return the target for a use of an imported name: the module as the import names it, and the name inside it."""
    return f"{module}\n{inside}"


def of_import(target: str) -> tuple[str, str] | None:
    """Return the module and the name inside it, if `imported` made the target."""
    module, is_imported, inside = target.partition("\n")
    return (module, inside) if is_imported else None


class Symbol(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A definition; `parent` is the index of the enclosing one, or -1 for the file. Lines count from 1."""

    name: str
    qualified: str
    kind: str
    first: int
    last: int
    parent: int


class Reference(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A name used by a symbol (given by its index; -1: by the file itself).

    `key` is the name to look up.  `target` is the receiver of a call (see `imported`), or the full text of an import or
    link.  `tentative` references count only if they resolve.
    """

    symbol: int
    kind: str
    key: str
    target: str
    tentative: bool = False


class Parsed(msgspec.Struct, array_like=True):
    """Definitions, calls and imports of source code, or links of Markdown, by the names as written."""

    language: str
    family: str
    symbols: list[Symbol] = []
    references: list[Reference] = []


class CodeText(msgspec.Struct, frozen=True, array_like=True):
    """A content, and the file extension that selects its parser."""

    data: Annotated[bytes, Meta(max_length=MAX_CODE_BYTES)]
    extension: str


class ParsedCode(msgspec.Struct, frozen=True, kw_only=True):
    """One result per content, in order; fewer if time ran out."""

    contents: list[Parsed]


@of_documents.read("decode_code", deadline_s=TIME_LIMIT_S + 15)
class DecodeCode(Params[ParsedCode], frozen=True, kw_only=True):
    """Parse source code and Markdown."""

    contents: Annotated[list[CodeText], Meta(max_length=CODES_AT_ONCE)]


class Formats(msgspec.Struct, frozen=True, kw_only=True):
    """Formats that can be decoded."""

    pictures: list[str]
    containers: Annotated[list[str], Meta(description="Of video and audio")]
    documents: list[str]


@operator.read("decode_formats", deadline_s=30)
class DecodeFormats(Params[Formats], frozen=True, kw_only=True):
    """List the formats that can be decoded."""
