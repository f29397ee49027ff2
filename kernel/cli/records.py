"""The records of a file that an agent left: lines of JSON, the elements of an array, or one document.

A file is read in parts of about a megabyte, so that its size does not matter, from wherever reading stopped before. A
last line that is not complete is left for the next time: its writer may be at work.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

PART_BYTES = 1024 * 1024
PART_RECORDS = 5_000
MAX_RECORD_BYTES = 40 * 1024 * 1024
"""Of one record: with its escapes it has to fit into one request."""

TAIL_BYTES = 4096

_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[\]{},]|"', re.DOTALL)
_BLANK = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class Part:
    """Records from byte `start` to `position`; `tail` is a digest of what precedes `position`.

    `too_long` counts records that were left out because of their length.
    """

    start: int
    position: int
    tail: str
    records: list[str]
    final: bool = False
    too_long: int = 0
    incomplete: bool = False


def parts(path: Path, position: int, tail: str) -> Iterator[Part]:
    """What is new in a file since `position`; all of it, from 0, where it did more than grow since.

    Raises OSError.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        form = _form(file, size)
        if form == "document":
            whole = _at(file, 0, size)
            digest = hashlib.sha256(whole).hexdigest()
            if digest != tail:
                yield Part(0, size, digest, [_text(whole)], final=True)
            return
        if position > size or (position and _digest(file, position) != tail):
            position = 0
        if position == size:
            return
        yield from _array(file, position, size) if form == "array" else _lines(file, position, size)


def _form(file: BinaryIO, size: int) -> str:
    """`lines`, `array`, or `document`: an object over several lines."""
    file.seek(0)
    first = file.read(64 * 1024).lstrip(_BLANK + b"\xef\xbb\xbf")
    if first[:1] == b"[":
        return "array"
    if size > MAX_RECORD_BYTES:
        return "lines"
    file.seek(0)
    if _is_json(file.readline()):
        return "lines"
    return "document" if _is_json(_at(file, 0, size)) else "lines"


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def _at(file: BinaryIO, start: int, size: int) -> bytes:
    file.seek(start)
    return file.read(size)


def _digest(file: BinaryIO, position: int) -> str:
    start = max(0, position - TAIL_BYTES)
    return hashlib.sha256(_at(file, start, position - start)).hexdigest()


def _text(record: bytes) -> str:
    return record.decode("utf-8", "replace").removeprefix("\ufeff")


def _lines(file: BinaryIO, position: int, size: int) -> Iterator[Part]:
    start = position
    records: list[str] = []
    held = too_long = 0
    incomplete = False
    while position < size:
        file.seek(position)
        line = file.readline(MAX_RECORD_BYTES + 1)
        length = len(line)
        if not line.endswith(b"\n"):
            if length > MAX_RECORD_BYTES:
                length += _rest_of_line(file)
                line = b""
                too_long += 1
            elif position + length >= size and not _is_json(line):
                incomplete = True
                break
        position += length
        if line.strip():
            records.append(_text(line))
            held += length
        if held >= PART_BYTES or len(records) >= PART_RECORDS:
            yield Part(start, position, _digest(file, position), records, position >= size, too_long)
            start, records, held, too_long = position, [], 0, 0
    if position > start or incomplete:
        yield Part(start, position, _digest(file, position), records, True, too_long, incomplete)


def _rest_of_line(file: BinaryIO) -> int:
    length = 0
    while block := file.readline(PART_BYTES):
        length += len(block)
        if block.endswith(b"\n"):
            break
    return length


def _array(file: BinaryIO, position: int, size: int) -> Iterator[Part]:
    start = position
    file.seek(position)
    buffer = bytearray()
    scanned = begun = 0
    depth = 1 if position else 0
    records: list[str] = []
    held = 0
    ended = False
    while not ended and (block := file.read(PART_BYTES)):
        buffer += block
        while (found := _TOKEN.search(buffer, scanned)) is not None:
            token = found[0]
            if token == b'"':
                # A text that goes on beyond what was read.
                scanned = found.start()
                break
            scanned = found.end()
            if token in (b"[", b"{"):
                depth += 1
                if depth == 1:
                    begun = scanned
            elif token in (b"]", b"}"):
                depth -= 1
            if depth == 0 or (token == b"," and depth == 1):
                element = bytes(buffer[begun : found.start()]).strip(_BLANK)
                begun = scanned
                if len(element) > MAX_RECORD_BYTES:
                    raise ValueError(f"an entry at byte {position} is longer than {MAX_RECORD_BYTES} bytes")
                if element:
                    records.append(_text(element))
                    held += len(element)
                if depth == 0:
                    ended = True
                    break
        else:
            scanned = len(buffer)
        position += begun
        del buffer[:begun]
        scanned -= begun
        begun = 0
        if len(buffer) > MAX_RECORD_BYTES:
            raise ValueError(f"an entry at byte {position} is longer than {MAX_RECORD_BYTES} bytes")
        if held >= PART_BYTES or len(records) >= PART_RECORDS:
            resume = file.tell()
            yield Part(start, position, _digest(file, position), records)
            file.seek(resume)
            start, records, held = position, [], 0
    if ended:
        # What follows the array is white space.
        position = size
    if position > start or not ended:
        yield Part(start, position, _digest(file, position), records, True, 0, not ended)


__all__ = ["Part", "parts"]
