"""Reads lines or bytes of a file that is too large to be held in memory, in one pass."""

from __future__ import annotations

import base64
import hashlib
import time
from typing import BinaryIO

import msgspec

from proto.errors import InvalidParams, OperationError
from services.files.operations.text import FileSource, FileText, ReadFile
from services.files.text.editing import MAX_LINES, answered
from services.files.text.extracting import ORIGINAL_BYTES, is_document
from services.shared.text.charsets import SAMPLE_BYTES, marked_charset
from services.shared.text.lines import span
from services.shared.text.texts import Text, codec, decode

HELD_BYTES = 2 * 1024 * 1024
"""Most bytes of the requested part that are held; an answer has fewer."""
TIME_LIMIT_S = 45.0
_PIECE_BYTES = 1024 * 1024
_LAST = 10**9 - 1


def read(file: BinaryIO, params: ReadFile) -> FileText:
    """Return the requested lines or bytes of an open file. Blocks.

    Raises:
        InvalidParams: the file has no such lines or bytes, or is not in the given encoding.
        OperationError: it is binary, a document, in a character set of wide characters, or takes too long to read.
    """
    head = file.read(SAMPLE_BYTES)
    if params.original:
        seen = _Seen(first_byte=params.offset, most=ORIGINAL_BYTES)
    else:
        form = _form(head, params)
        first, last = span(params.lines, 1, _LAST) if params.lines else (1, MAX_LINES)
        seen = _Seen(first_line=max(first, 1), last_line=last)
    seen.add(head)
    give_up = time.monotonic() + TIME_LIMIT_S
    while piece := file.read(_PIECE_BYTES):
        seen.add(piece)
        if time.monotonic() > give_up:
            raise _refused(params.path, f"only {seen.size} bytes could be read in {TIME_LIMIT_S:.0f} s")
    if params.original:
        if params.offset > seen.size:
            raise InvalidParams(f"`offset` is {params.offset}, but the file has {seen.size} bytes", field="offset")
        end = params.offset + len(seen.held)
        return FileText(
            text=base64.b64encode(seen.held).decode(), lines="", total_lines=0, bytes=seen.size, encoding="base64",
            hash=seen.digest.hexdigest(), source=FileSource.ORIGINAL, next_offset=end if end < seen.size else 0,
        )  # fmt: skip
    total = seen.breaks + (seen.last_byte not in (b"\n", b""))
    last = min(last, total)
    if first > last or not first:
        raise InvalidParams(f"`lines`: no lines {params.lines}; the file has {total}", field="lines")
    return _lines(seen, form, first, last, total, is_range=bool(params.lines))


class _Seen(msgspec.Struct):
    """What is known of the bytes so far, and the part of them that was asked for."""

    first_line: int = 0
    last_line: int = 0
    first_byte: int = -1
    most: int = HELD_BYTES
    size: int = 0
    breaks: int = 0
    pairs: int = 0
    last_byte: bytes = b""
    held: bytearray = msgspec.field(default_factory=bytearray)
    left: int = 0
    """Number of bytes asked for that were not held."""
    digest: hashlib._Hash = msgspec.field(default_factory=hashlib.sha256)

    def add(self, piece: bytes) -> None:
        breaks = piece.count(b"\n")
        if self.first_byte >= 0:
            start = max(self.first_byte - self.size, 0)
            stop = max(self.first_byte + self.most - self.size, 0)
            self.held += piece[start:stop]
        elif self.breaks < self.last_line and self.breaks + breaks >= self.first_line - 1:
            start = _after(piece, self.first_line - 1 - self.breaks)
            wanted = piece[start : _after(piece, self.last_line - self.breaks)]
            room = self.most - len(self.held)
            self.held += wanted[:room]
            self.left += max(len(wanted) - room, 0)
        self.digest.update(piece)
        self.size += len(piece)
        self.breaks += breaks
        self.pairs += piece.count(b"\r\n") + (self.last_byte == b"\r" and piece[:1] == b"\n")
        self.last_byte = piece[-1:] or self.last_byte


def _after(piece: bytes, breaks: int) -> int:
    """Return the offset after a number of line breaks, or the end if there are fewer."""
    at = 0
    for _ in range(breaks):
        at = piece.find(b"\n", at) + 1
        if not at:
            return len(piece)
    return at


def _form(head: bytes, params: ReadFile) -> Text:
    """Return the form of the file by its beginning. Raises InvalidParams, OperationError."""
    if is_document(head, params.path):
        raise _refused(params.path, "a document of this size has no text here; set `original` to read its bytes")
    marked = marked_charset(head)
    if params.encoding:
        form = Text("", codec(params.encoding))
    elif marked is not None and marked.codec != "utf-8":
        form = Text("", marked.codec)
    else:
        # Up to the last line break, so that no character is cut off.
        form = decode(head[: head.rfind(b"\n") + 1] or head, params.path)
    if "\n".encode(form.encoding.removesuffix("-sig")) != b"\n":
        raise _refused(params.path, f"{form.encoding} is not supported for files of this size; set `original`")
    return form


def _lines(seen: _Seen, form: Text, first: int, last: int, total: int, *, is_range: bool) -> FileText:
    data = bytes(seen.held)
    if seen.left and (end := data.rfind(b"\n") + 1):
        data = data[:end]
    if first == 1:
        data = data.removeprefix(form.mark)
    text = data.decode(form.encoding.removesuffix("-sig"), "replace")
    line_ends = "crlf" if seen.pairs and seen.pairs == seen.breaks else "mixed" if seen.pairs else ""
    if line_ends == "crlf":
        text = text.replace("\r\n", "\n")
    problem = f"some bytes are not {form.encoding}, and are shown as \N{REPLACEMENT CHARACTER}" if (
        "\N{REPLACEMENT CHARACTER}" in text and "\N{REPLACEMENT CHARACTER}".encode() not in data) else ""  # fmt: skip
    if seen.left and not text.endswith("\n"):
        problem = f"line {first} is too long: only its beginning can be read"
    found = answered(text, first, last, total, is_range=is_range)
    return msgspec.structs.replace(
        found, bytes=seen.size, hash=seen.digest.hexdigest(), encoding=form.encoding, encoding_from=form.reason,
        line_ends=line_ends, problem=problem,
    )  # fmt: skip


def _refused(path: str, why: str) -> OperationError:
    return OperationError(f"`path`: {path[:1000]}: {why}", field="path")
