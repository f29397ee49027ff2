"""Detect the nature of a content from its first bytes and name: MIME type, text or binary, and where its text is."""

from __future__ import annotations

import codecs
import mimetypes

import msgspec

from proto.ops.decode import DOCUMENT_TYPES, TEXTUAL_TYPES
from services.documents.store.tables import TEXT_NONE, TEXT_OWN, TEXT_WAITING
from services.shared.text.charsets import charset_of

SNIFF_BYTES = 8192

_NAMES = {
    ".md": "text/markdown", ".markdown": "text/markdown", ".rst": "text/x-rst", ".txt": "text/plain",
    ".py": "text/x-python", ".pyi": "text/x-python", ".js": "text/javascript", ".mjs": "text/javascript",
    ".cjs": "text/javascript", ".jsx": "text/javascript", ".ts": "text/x-typescript", ".mts": "text/x-typescript",
    ".cts": "text/x-typescript", ".tsx": "text/x-typescript", ".go": "text/x-go", ".rs": "text/x-rust",
    ".c": "text/x-c", ".h": "text/x-c", ".cc": "text/x-c++", ".cpp": "text/x-c++", ".cxx": "text/x-c++",
    ".hpp": "text/x-c++", ".hh": "text/x-c++", ".hxx": "text/x-c++", ".java": "text/x-java", ".kt": "text/x-kotlin",
    ".rb": "text/x-ruby", ".php": "text/x-php", ".cs": "text/x-csharp", ".swift": "text/x-swift", ".sh": "text/x-sh",
    ".bash": "text/x-sh", ".sql": "text/x-sql", ".json": "application/json", ".jsonl": "application/jsonl",
    ".yaml": "application/yaml", ".yml": "application/yaml", ".toml": "application/toml", ".xml": "application/xml",
    ".html": "text/html", ".htm": "text/html", ".xhtml": "application/xhtml+xml", ".css": "text/css",
    ".csv": "text/csv", ".tsv": "text/tab-separated-values",
    ".ini": "text/plain", ".cfg": "text/plain", ".conf": "text/plain", ".log": "text/plain", ".tex": "text/x-tex",
    ".pdf": "application/pdf", ".svg": "image/svg+xml", ".wasm": "application/wasm", ".webp": "image/webp",
    ".avif": "image/avif", **DOCUMENT_TYPES,
}  # fmt: skip

_MAGIC = (
    (b"%PDF-", "application/pdf"), (b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"), (b"GIF89a", "image/gif"), (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"), (b"BZh", "application/x-bzip2"), (b"\xfd7zXZ\x00", "application/x-xz"),
    (b"\x28\xb5\x2f\xfd", "application/zstd"), (b"\x7fELF", "application/x-executable"),
    (b"SQLite format 3\x00", "application/vnd.sqlite3"), (b"\x00asm", "application/wasm"),
    (b"OggS", "audio/ogg"), (b"fLaC", "audio/flac"), (b"ID3", "audio/mpeg"), (b"\x1aE\xdf\xa3", "video/webm"),
)  # fmt: skip

_MAGIC_FIRST = frozenset(start[:1] for start, _ in _MAGIC)
_CONTROL = bytes(set(range(32)) - {7, 8, 9, 10, 12, 13, 27})
_HIGH = bytes(range(0x80, 0x100))
_ALLOWED_CONTROL = 0.02
_LOOKED_FOR_CONTROL = 2048
"""Number of bytes checked for control characters, the slowest of all checks of a text."""
_TYPES = mimetypes.MimeTypes()
PAGE_TYPES = frozenset({"text/html", "application/xhtml+xml"})
"""Types of pages, whose visible text is extracted.  Templates have other types: their markup is what is written."""
_EXTRACTED = {
    True: PAGE_TYPES.union(TEXTUAL_TYPES.values()),
    False: frozenset(DOCUMENT_TYPES.values()) - frozenset(TEXTUAL_TYPES.values()),
}
"""Types whose text is extracted, by whether they are text themselves."""


class Nature(msgspec.Struct, frozen=True, gc=False):
    """The nature of a content; `text_state` is one of the schema's constants."""

    mime: str
    is_text: bool
    text_state: int


def extension_of(name: str) -> str:
    """Return the extension with its dot, in lower case; empty if there is none."""
    base = name.rsplit("/", 1)[-1]
    dot = base.rfind(".")
    return base[dot:].lower() if dot > 0 else ""


def nature(head: bytes, name: str, mime: str | None = None) -> Nature:
    """Detect the nature of a content.

    Args:
        head: the first bytes, at least `SNIFF_BYTES` or the whole content.
        mime: the type given by the client.
    """
    whole, head = head, head[:SNIFF_BYTES]
    text = _is_text(head)
    magic = None
    if head[:1] in _MAGIC_FIRST:
        magic = next((kind for start, kind in _MAGIC if head.startswith(start)), None)
    named = _of_name(name)
    said = mime or named
    # Extract text if either the given type or the name asks for it.
    kind = next((each for each in (base_type(said), named) if each in _EXTRACTED[text]), None)
    if magic == "application/pdf":
        return Nature(mime or magic, False, TEXT_WAITING)
    if not text:
        if said is None or (mime is None and said.startswith("text/")):
            said = magic or "application/octet-stream"
        return Nature(kind or said, False, TEXT_WAITING if kind else TEXT_NONE)
    # Text that is not UTF-8 is decoded first.
    encoded = charset_of(whole, is_cut=len(whole) >= SNIFF_BYTES).codec != "utf-8"
    if said is None or (mime is None and not head.startswith(b"<") and said.startswith(("image/", "audio/", "video/"))):
        said = "text/plain"
        # Templates often begin like pages, so only a name without an extension leaves the decision to the content.
        if not extension_of(name) and head[:64].lstrip().lower().startswith((b"<!doctype html", b"<html")):
            said = kind = "text/html"
    return Nature(kind or said, True, TEXT_WAITING if encoded or kind else TEXT_OWN)


def base_type(mime: str | None) -> str | None:
    """Return a MIME type without its parameters."""
    return None if mime is None else mime.partition(";")[0].strip().lower()


def _of_name(name: str) -> str | None:
    extension = extension_of(name)
    if not extension:
        return None
    return _NAMES.get(extension) or _TYPES.guess_type(f"x{extension}")[0]


def _is_text(head: bytes) -> bool:
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)):
        return len(head) % 2 == 0 or len(head) >= SNIFF_BYTES
    if b"\0" in head:
        return False
    if not head.isascii() and not _is_utf8(head):
        # It may be in a legacy character set: letters and no control characters.
        high = len(head) - len(head.translate(None, _HIGH))
        if _controls(head) or b"\x7f" in head:
            return False
        return high < 0.3 * len(head) or charset_of(head, is_cut=len(head) >= SNIFF_BYTES).reason != "assumed"
    first = head[:_LOOKED_FOR_CONTROL]
    return _controls(first) <= _ALLOWED_CONTROL * max(len(first), 1)


def _is_utf8(head: bytes) -> bool:
    """Return whether `head` is valid UTF-8, except that its last character may be cut off."""
    try:
        return bool(codecs.utf_8_decode(head, "strict", False))
    except UnicodeDecodeError:
        return False


def _controls(head: bytes) -> int:
    return len(head) - len(head.translate(None, _CONTROL))
