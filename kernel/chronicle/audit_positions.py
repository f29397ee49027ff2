"""Reads the audit log from a position that outlives the kernel and the rotation of the files.

A position is the digest of a file's first line, which no rotation changes and no other file has, and an offset in that
file. Readers continue at the end of one file with the start of the next.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from kernel.chronicle.audit import AuditEntry, entries, files_of

MAX_BYTES: Final = 1024 * 1024
"""How much of a file is read at once."""

FIRST_LINE_BYTES: Final = 64 * 1024


class Page(NamedTuple):
    """Entries, the position after them, whether lines before them are missing, and whether there are more."""

    entries: list[AuditEntry]
    position: str
    is_lost: bool
    more: bool


def read_after(data_dir: Path, position: str, limit: int) -> Page:
    """Return the entries after `position`, or from the oldest if it is empty. Blocks. Raises OSError."""
    digest, _, offset_text = position.partition(":")
    offset = int(offset_text or 0)
    with contextlib.ExitStack() as opened:
        files = list(_opened(data_dir, opened))
        known = [each for each, _ in files]
        at = known.index(digest) if digest in known else 0
        is_lost = bool(digest) and digest not in known
        if is_lost or not digest:
            position, offset = "", 0
        found: list[AuditEntry] = []
        for number, (name, file) in enumerate(files[at:], start=at):
            lines, offset, rest = _lines(file, offset, limit - len(found))
            found += entries(lines)
            position = f"{name}:{offset}"
            if rest or len(found) >= limit:
                return Page(found, position, is_lost, rest or number + 1 < len(files))
            if number + 1 < len(files):
                offset = 0
        return Page(found, position, is_lost, more=False)


def _opened(data_dir: Path, opened: contextlib.ExitStack) -> Iterator[tuple[str, BinaryIO]]:
    """Yield the files with the digests of their first lines, oldest first; those without a whole line are left out."""
    found: dict[str, BinaryIO] = {}
    # The newest is opened first: files only ever move towards the oldest, so a rotation meanwhile hides none.
    for path in reversed(files_of(data_dir)):
        with contextlib.suppress(FileNotFoundError):
            file = opened.enter_context(path.open("rb"))
            first = file.readline(FIRST_LINE_BYTES)
            if first.endswith(b"\n"):
                found.setdefault(hashlib.sha256(first).hexdigest()[:32], file)
    yield from reversed(found.items())


def _lines(file: BinaryIO, offset: int, limit: int) -> tuple[list[bytes], int, bool]:
    """Return at most `limit` whole lines from `offset`, the offset after them, and whether there are more."""
    size = os.fstat(file.fileno()).st_size
    offset = min(offset, size)
    file.seek(offset)
    data = file.read(MAX_BYTES)
    end = data.rfind(b"\n") + 1
    if not end and len(data) == MAX_BYTES:
        # No entry is as long as that.
        return [], offset + len(data), True
    lines = data[:end].splitlines(keepends=True)[:limit]
    taken = offset + sum(map(len, lines))
    return lines, taken, taken < offset + end or len(data) == MAX_BYTES
