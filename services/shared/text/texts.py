"""A file's bytes as editable text, preserving its encoding, byte order mark and line ends."""

from __future__ import annotations

import codecs
import contextlib
import mimetypes
from dataclasses import dataclass

from proto.errors import InvalidParams, OperationError
from services.shared.text.charsets import charset_of, marked_charset

_FALLBACKS = ("cp1252", "latin-1")
"""Used if no other character set fits; every byte is a character in the second."""
_EXACT = ("utf-8", *_FALLBACKS)
"""Character sets in which a text has only one encoded form."""
_EXAMPLES = "try `cp1252`, `shift_jis`, `utf-16-le`"
_SLOW = ("idna", "punycode")
"""Codecs whose running time is quadratic."""
_MAGIC = (
    (b"\x7fELF", "application/x-executable"), (b"\x89PNG", "image/png"), (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"), (b"PK\x03\x04", "application/zip"), (b"\x1f\x8b", "application/gzip"),
    (b"%PDF", "application/pdf"), (b"SQLite format 3", "application/vnd.sqlite3"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Text:
    """The text of a file. If all its lines end in carriage return and line feed, `text` has line feeds only."""

    text: str
    encoding: str
    mark: bytes = b""
    line_ends: str = ""
    """Either "crlf" or "mixed"; empty for plain line feeds."""
    reason: str = ""
    """How the encoding was determined, if it is not UTF-8."""

    def encode(self, text: str) -> bytes:
        """Encode another text the way this one was encoded. Raises UnicodeEncodeError."""
        if self.line_ends == "crlf":
            text = text.replace("\n", "\r\n")
        return self.mark + text.encode(_codec(self.encoding))


def decode(data: bytes, path: str, encoding: str = "") -> Text:
    """Decode the text of a file.

    Raises:
        OperationError: the file is binary; the message names its type.
        InvalidParams: it is not in the given `encoding`, or there is no such encoding.
    """
    if encoding:
        return _as_asked(data, encoding)
    marked = marked_charset(data)
    if marked is None and b"\0" in data:
        kind = next((kind for magic, kind in _MAGIC if data.startswith(magic)), None) or mimetypes.guess_type(path)[0]
        raise OperationError(
            f"`path`: {path[:1000]} is binary: {kind or 'unknown type'}, {len(data)} bytes; use"
            " files_inspect for media, or `encoding` to read it as text",
            field="path",
        )
    if marked is not None:
        is_utf8 = marked.codec == "utf-8"
        name = "utf-8-sig" if is_utf8 else marked.codec
        with contextlib.suppress(UnicodeDecodeError):
            text = data[len(marked.mark) :].decode(marked.codec)
            return _text(text, name, marked.mark, "" if is_utf8 else "mark")
        raise OperationError(f"`path`: {path[:1000]} is marked as {name} but is not; set `encoding`", field="path")
    found = charset_of(data)
    # Encoding must reproduce the same bytes, or an edit would change more than requested.
    for name, how in ((found.codec, found.reason), *((name, "assumed") for name in _FALLBACKS)):
        with contextlib.suppress(UnicodeError):
            text = data.decode(name)
            if name in _EXACT or text.encode(name) == data:
                return _text(text, name, b"", "" if name == "utf-8" else how)
    raise AssertionError("latin-1 decodes any bytes")


def _codec(name: str) -> str:
    # The mark is stored separately.
    return name.removesuffix("-sig")


def like(before: bytes, content: str, path: str) -> tuple[bytes, str]:
    """Return a content in the form of the file that it replaces, and what of this form is not UTF-8 and line feeds.

    Raises InvalidParams if the content cannot be encoded as the file is.
    """
    try:
        form = decode(before, path)
    except OperationError:
        # It is no text.
        form = Text("", "utf-8")
    if form.mark:
        content = content.removeprefix("\ufeff")
    if form.line_ends == "crlf":
        content = content.replace("\r\n", "\n")
    try:
        encoded = form.encode(content)
    except UnicodeEncodeError as error:
        raise unencodable("content", error, form) from None
    kept = [form.encoding] if form.encoding != "utf-8" else []
    return encoded, ", ".join([*kept, *(["crlf"] if form.line_ends == "crlf" and "\n" in content else [])])


def unencodable(field: str, error: UnicodeEncodeError, text: Text) -> InvalidParams:
    """Return the error for a parameter that a file's encoding cannot hold."""
    if text.encoding == "utf-8":
        said = f"`{field}`: character {error.start + 1} is a lone surrogate, which is not valid text"
        return InvalidParams(said, field=field)
    how = f" ({text.reason})" if text.reason else ""
    what = f"{error.object[error.start]!r} cannot be encoded in {text.encoding}{how}, the file's encoding"
    other = "; files_write with `encoding` utf-8 changes that" if field == "content" else ""
    return InvalidParams(f"`{field}`: {what}{other}", field=field)


def codec(encoding: str) -> str:
    """Return Python's name of an encoding of text. Raises InvalidParams."""
    try:
        found = codecs.lookup(encoding)
        # Private, but the only thing that tells `rot13` and `zip` from encodings of text.
        if found._is_text_encoding and found.name not in _SLOW:
            return found.name
    except (LookupError, ValueError):
        pass
    raise InvalidParams(f"`encoding`: no such encoding; {_EXAMPLES}", field="encoding")


def _as_asked(data: bytes, encoding: str) -> Text:
    name = codec(encoding)
    try:
        if (marked := marked_charset(data)) is not None and name in _marked_names(marked.codec):
            text = data[len(marked.mark) :].decode(marked.codec)
            return _text(text, "utf-8-sig" if marked.codec == "utf-8" else marked.codec, marked.mark)
        return _text(data.decode(name), name, b"")
    except ValueError as error:
        why = f"the file is not {encoding[:40]}: {error}"
        raise InvalidParams(f"`encoding`: {why}; {_EXAMPLES}", field="encoding") from None


def _marked_names(codec: str) -> tuple[str, ...]:
    """Return the encodings that a file with the mark of `codec` has."""
    return codec, codec.removesuffix("-le").removesuffix("-be"), f"{codec}-sig"


def _text(text: str, encoding: str, mark: bytes, reason: str = "") -> Text:
    pairs = text.count("\r\n")
    if not pairs:
        return Text(text, encoding, mark, reason=reason)
    if pairs == text.count("\n"):
        return Text(text.replace("\r\n", "\n"), encoding, mark, "crlf", reason)
    return Text(text, encoding, mark, "mixed", reason)
