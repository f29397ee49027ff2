"""JSON records in a file, in parts of about a megabyte: lines, the elements of an array, or one document.

The position in a file is stored with a digest of the bytes before it, which distinguishes a file that grew from one
that was replaced or truncated; the latter is read from the beginning. An incomplete last line is left for the next
time, since it may still be being written. The longest texts of a record that exceeds the limit are cut.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

SUFFIXES = (".jsonl", ".ndjson", ".json")
"""Suffixes of files that contain records."""

PART_BYTES = 1024 * 1024
PART_RECORDS = 5_000
MAX_RECORD_BYTES = 40 * 1024 * 1024
"""Maximum size of one record: with its escapes it must fit into one request."""

MAX_TEXT_BYTES = 1024 * 1024
"""How much is kept of each text of a record that is too long."""

TAIL_BYTES = 4096

_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{},]|"', re.DOTALL)
_BLANK = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class TooLong:
    """A record that is longer than the limit, from byte `start` on: its longest texts are cut, or it is skipped."""

    start: int
    size: int
    is_cut: bool = False

    def __str__(self) -> str:
        what = f"texts of more than {MAX_TEXT_BYTES} bytes in it are cut" if self.is_cut else "it is skipped"
        return f"the record at byte {self.start} has {self.size} bytes, more than {MAX_RECORD_BYTES}: {what}"


@dataclass(frozen=True, slots=True)
class Part:
    """Records from byte `start` to `position`; `too_long` names those that were cut or skipped.

    `tail` is a digest of the bytes before `position`.
    """

    start: int
    position: int
    tail: str
    records: list[str]
    final: bool = False
    too_long: tuple[TooLong, ...] = ()
    incomplete: bool = False


def parts(
    file: BinaryIO,
    position: int,
    tail: str,
    *,
    part_bytes: int = PART_BYTES,
    max_record_bytes: int = MAX_RECORD_BYTES,
) -> Iterator[Part]:
    """Yield the new parts of an open file since `position`, or all of it if it did more than grow.

    Raises OSError, ValueError.
    """
    reader = _Reader(file, part_bytes, max_record_bytes)
    form = reader.form()
    if form == "too long":
        digest = reader.digest(reader.size)
        if (position, tail) != (reader.size, digest):
            yield Part(0, reader.size, digest, [], final=True, too_long=(TooLong(0, reader.size),))
        return
    if form == "document":
        whole = reader.at(0, reader.size)
        digest = hashlib.sha256(whole).hexdigest()
        if digest != tail:
            yield Part(0, reader.size, digest, [_text(whole)], final=True)
        return
    if position > reader.size or (position and reader.digest(position) != tail):
        position = 0
    if position < reader.size:
        records = reader.elements(position) if form == "array" else reader.lines(position)
        yield from reader.grouped(records, position)


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def _text(record: bytes) -> str:
    return record.decode("utf-8", "replace").removeprefix("\ufeff")


Ended = tuple[bytes | None, int, bool]
"""A record (None if it is skipped), the position after it, and whether it was cut."""

_INSIDE = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_WHOLE = re.compile(rb'(?:[^"\\]++|\\u[0-9a-fA-F]{4}|\\[^u])*+', re.DOTALL)


class _Shortener:
    """Cuts the long strings of a record that is fed piece by piece, so that it fits into the memory."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._text_bytes = min(MAX_TEXT_BYTES, max_bytes // 8)
        self._out = bytearray()
        self._rest = b""
        self._is_string = False
        self._begun = 0  # where the current string begins in `_out`
        self._left_out = 0

    def feed(self, piece: bytes | bytearray) -> None:
        data = self._rest + piece
        self._rest = b""
        position = 0
        while position < len(data) and len(self._out) <= self._max_bytes:
            if not self._is_string:
                quote = data.find(b'"', position)
                end = quote + 1 or len(data)
                self._out += data[position:end]
                self._is_string, self._begun, self._left_out = quote >= 0, len(self._out), 0
                position = end
                continue
            inside = _INSIDE.match(data, position)
            end = position if inside is None else inside.end()
            self._keep(data[position:end])
            if data[end : end + 1] != b'"':
                # Half of an escape sequence.
                self._rest = data[end:]
                return
            if self._left_out:
                self._out += b" [%d bytes left out]" % self._left_out
            self._out += b'"'
            self._is_string = False
            position = end + 1

    def _keep(self, text: bytes) -> None:
        room = self._begun + self._text_bytes - len(self._out)
        if self._left_out or len(text) > room:
            kept = b"" if self._left_out else text[:room]
            self._left_out += len(text) - len(kept)
            self._out += kept
            if kept and (whole := _WHOLE.match(self._out, self._begun)) is not None:
                self._left_out += len(self._out) - whole.end()
                del self._out[whole.end() :]
        else:
            self._out += text

    def record(self) -> bytes | None:
        """Return the record; None if it is still too long, or not JSON."""
        record = bytes(self._out)
        return record if len(record) <= self._max_bytes and _is_json(record) else None


class _Reader:
    def __init__(self, file: BinaryIO, part_bytes: int, max_record_bytes: int) -> None:
        self._file = file
        self._part_bytes = part_bytes
        self._max_record_bytes = max_record_bytes
        self.size = file.seek(0, os.SEEK_END)
        file.seek(0)

    def at(self, start: int, size: int) -> bytes:
        """Return bytes of the file, without moving the read position."""
        before = self._file.tell()
        self._file.seek(start)
        data = self._file.read(size)
        self._file.seek(before)
        return data

    def digest(self, position: int) -> str:
        start = max(0, position - TAIL_BYTES)
        return hashlib.sha256(self.at(start, position - start)).hexdigest()

    def form(self) -> str:
        """Return `lines`, `array`, `document` (an object over several lines), or `too long` (for such an object)."""
        if self.at(0, 64 * 1024).lstrip(_BLANK + b"\xef\xbb\xbf")[:1] == b"[":
            return "array"
        if self.size > self._max_record_bytes:
            return "too long" if self._file.readline(TAIL_BYTES).strip(_BLANK + b"\xef\xbb\xbf") == b"{" else "lines"
        if _is_json(self._file.readline()):
            return "lines"
        return "document" if _is_json(self.at(0, self.size)) else "lines"

    def grouped(self, pieces: Iterator[Ended], start: int) -> Iterator[Part]:
        """Group records into parts of a suitable size for a request."""
        position = start
        records: list[str] = []
        too_long: list[TooLong] = []
        held = 0
        for record, end, is_cut in pieces:
            before, position = position, end
            if record is None or is_cut:
                too_long.append(TooLong(before, position - before, is_cut))
            if record is None:
                continue
            if record.strip():
                records.append(_text(record))
                held += len(record)
            if held >= self._part_bytes or len(records) >= PART_RECORDS:
                yield Part(start, position, self.digest(position), records, position >= self.size, tuple(too_long))
                start, records, held, too_long = position, [], 0, []
        incomplete = position < self.size
        if position > start or incomplete:
            yield Part(start, position, self.digest(position), records, True, tuple(too_long), incomplete)

    def lines(self, position: int) -> Iterator[Ended]:
        """Yield lines, up to an incomplete last line."""
        self._file.seek(position)
        while line := self._file.readline(self._max_record_bytes + 1):
            position += len(line)
            whole = line.endswith(b"\n")
            if not whole and len(line) > self._max_record_bytes:
                shortener = _Shortener(self._max_record_bytes)
                shortener.feed(line)
                while rest := self._file.readline(self._part_bytes):
                    position += len(rest)
                    shortener.feed(rest)
                    if rest.endswith(b"\n"):
                        break
                record = shortener.record()
                yield record, position, record is not None
            elif whole or _is_json(line):
                yield line, position, False
            else:
                return

    def elements(self, position: int) -> Iterator[Ended]:
        """Yield array elements, from the start or from after a comma."""
        self._file.seek(position)
        buffer = bytearray()
        # An element that is too long goes through `shortener`; `dropped` counts its bytes that are no longer in the
        # buffer, and `made` those at the beginning of the buffer that are not in the file.
        scanned = begun = dropped = made = 0
        shortener: _Shortener | None = None
        depth = 1 if position else 0
        while block := self._file.read(self._part_bytes):
            buffer += block
            while (found := _TOKEN.search(buffer, scanned)) is not None and (token := found[0]) != b'"':
                scanned = found.end()
                depth += (token in (b"[", b"{")) - (token in (b"]", b"}"))
                if depth == 1 and token == b"[":
                    begun = scanned
                elif depth == 0 or (token == b"," and depth == 1):
                    element: bytes | None = bytes(buffer[begun : found.start()]).strip(_BLANK)
                    is_long = shortener is not None or len(element or b"") > self._max_record_bytes
                    if is_long:
                        shortener = shortener or _Shortener(self._max_record_bytes)
                        shortener.feed(buffer[begun + made : found.start()])
                        element = shortener.record()
                    position, dropped, made, shortener, begun = position + dropped, 0, 0, None, scanned
                    # Only white space follows the array.
                    end = position + begun if depth else self.size
                    yield element, end, is_long and element is not None
                if depth == 0:
                    return
            # A string that continues beyond the data read so far is scanned again with the next block.
            scanned = len(buffer) if found is None else found.start()
            position += begun
            del buffer[:begun]
            scanned, begun = scanned - begun, 0
            if len(buffer) > self._max_record_bytes:
                rest = _shortened(buffer[scanned:]) if found is not None else b""
                shortener = shortener or _Shortener(self._max_record_bytes)
                kept = max(0, len(rest) - 1)
                shortener.feed(buffer[made : len(buffer) - kept])
                dropped += len(buffer) - len(rest)
                buffer[:] = rest
                scanned, made = 0, min(1, len(rest))


def _shortened(string: bytearray) -> bytes:
    """Return the beginning of a string that has the same end as this one, however it continues."""
    backslashes = len(string) - len(string.rstrip(b"\\"))
    return b'"' + b"\\" * (backslashes % 2)
