"""JSON records in a file, in parts of about a megabyte: lines, the elements of an array, or one document.

The position in a file is stored with a digest of the bytes before it, which distinguishes a file that grew from one
that was replaced or truncated; the latter is read from the beginning. An incomplete last line is left for the next
time, since it may still be being written.
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

TAIL_BYTES = 4096

_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{},]|"', re.DOTALL)
_BLANK = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class TooLong:
    """A record that is longer than the limit, from byte `start` on."""

    start: int
    size: int

    def __str__(self) -> str:
        return f"the record at byte {self.start} has {self.size} bytes, more than the limit of {MAX_RECORD_BYTES}"


@dataclass(frozen=True, slots=True)
class Part:
    """Records from byte `start` to `position`, except `too_long` ones; `tail` is a digest of the bytes before
    `position`."""

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


Ended = tuple[bytes | None, int]
"""A record (None if it is too long), and the position after it."""


class _Reader:
    def __init__(self, file: BinaryIO, part_bytes: int, max_record_bytes: int) -> None:
        self._file = file
        self._part_bytes = part_bytes
        self._max_record_bytes = max_record_bytes
        self.size = os.fstat(file.fileno()).st_size

    def at(self, start: int, size: int) -> bytes:
        """Return bytes of the file, without moving the read position."""
        return os.pread(self._file.fileno(), size, start)

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
        for record, end in pieces:
            before, position = position, end
            if record is None:
                too_long.append(TooLong(before, position - before))
            elif record.strip():
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
                while (rest := self._file.readline(self._part_bytes)) and not rest.endswith(b"\n"):
                    position += len(rest)
                yield None, position + len(rest)
                position += len(rest)
            elif whole or _is_json(line):
                yield line, position
            else:
                return

    def elements(self, position: int) -> Iterator[Ended]:
        """Yield array elements, from the start or from after a comma."""
        self._file.seek(position)
        buffer = bytearray()
        # `dropped` counts the bytes of an element that is too long; they are no longer in the buffer.
        scanned = begun = dropped = 0
        depth = 1 if position else 0
        while block := self._file.read(self._part_bytes):
            buffer += block
            while (found := _TOKEN.search(buffer, scanned)) is not None and (token := found[0]) != b'"':
                scanned = found.end()
                depth += (token in (b"[", b"{")) - (token in (b"]", b"}"))
                if depth == 1 and token == b"[":
                    begun = scanned
                elif depth == 0 or (token == b"," and depth == 1):
                    element = bytes(buffer[begun : found.start()]).strip(_BLANK)
                    is_too_long = dropped or len(element) > self._max_record_bytes
                    position, dropped, begun = position + dropped, 0, scanned
                    # Only white space follows the array.
                    yield None if is_too_long else element, position + begun if depth else self.size
                if depth == 0:
                    return
            # A string that continues beyond the data read so far is scanned again with the next block.
            scanned = len(buffer) if found is None else found.start()
            position += begun
            del buffer[:begun]
            scanned, begun = scanned - begun, 0
            if len(buffer) > self._max_record_bytes:
                rest = _shortened(buffer[scanned:]) if found is not None else b""
                dropped += len(buffer) - len(rest)
                buffer[:] = rest
                scanned = 0


def _shortened(string: bytearray) -> bytes:
    """Return the beginning of a string that has the same end as this one, however it continues."""
    backslashes = len(string) - len(string.rstrip(b"\\"))
    return b'"' + b"\\" * (backslashes % 2)
