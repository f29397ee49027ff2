"""Files below the roots, opened so that no link leads out of them and no pipe blocks."""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from proto.errors import Forbidden, OperationError

_PIECE: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Opened:
    """An open file, where it truly is, and what tells it from what it was."""

    file: BinaryIO
    path: str
    status: os.stat_result

    @property
    def version(self) -> str:
        return version_of(self.status)


def version_of(status: os.stat_result) -> str:
    """As `decode` says it."""
    return f"{status.st_dev}-{status.st_ino}-{status.st_size}-{status.st_mtime_ns}-{status.st_ctime_ns}"


@contextlib.contextmanager
def opened(path: str, roots: Sequence[str]) -> Iterator[Opened]:
    """Open a regular file below the roots.

    Raises:
        Forbidden: it is outside, or a link leads there; also where it does not exist, so that nothing can be learned
            of files outside.
        OperationError: it is there and cannot be read, or is no file.
    """
    try:
        real = "" if "\0" in path else os.path.realpath(_absolute(path, roots))
        if not any(real.startswith(root.rstrip("/") + "/") for root in roots):
            raise Forbidden(f"{path[:200]} is not below a root")
        # Checked before it is opened, for to open some things does something; and after, for it may have changed.
        descriptor = os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW)
    except OSError as error:
        raise OperationError(f"{path[:200]} cannot be opened: {error.strerror}") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise OperationError(f"{path[:200]} is not a file")
    with open(descriptor, "rb", buffering=0) as raw:
        there = os.readlink(f"/proc/self/fd/{descriptor}")
        if not any(there.startswith(root.rstrip("/") + "/") for root in roots):
            raise Forbidden(f"{path[:200]} is not below a root")
        yield Opened(raw, real, status)


def _absolute(path: str, roots: Sequence[str]) -> str:
    """A relative path is one below the first root that has such an entry."""
    if os.path.isabs(path):
        return path
    candidates = [os.path.join(root, path) for root in roots]
    return next((each for each in candidates if os.path.lexists(each)), "/")


def digest(file: BinaryIO, check: Callable[[], None]) -> bytes:
    """SHA-256 of a file from its start; `check` is called now and then, and may raise to give up."""
    file.seek(0)
    found = hashlib.sha256()
    while piece := file.read(_PIECE):
        found.update(piece)
        check()
    return found.digest()


MAX_COUNTED_BYTES: Final = 256 * 1024 * 1024


def counts(file: BinaryIO, check: Callable[[], None]) -> dict[str, Any]:
    """Lines, words and characters; `check` is called now and then, and may raise to give up."""
    start = file.read(4)
    file.seek(0)
    encoding = "utf-8"
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif start.startswith(codecs.BOM_UTF8):
        encoding = "utf-8-sig"
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    lines = words = characters = total = 0
    in_word = False
    last = ""
    while piece := file.read(_PIECE):
        check()
        total += len(piece)
        text = decoder.decode(piece)
        if not text:
            continue
        characters += len(text)
        lines += text.count("\n")
        found = len(text.split())
        words += found - (1 if in_word and found and not text[0].isspace() else 0)
        in_word = not text[-1].isspace()
        last = text[-1]
        if total >= MAX_COUNTED_BYTES:
            return {
                "encoding": encoding,
                "counted_bytes": total,
                "lines": lines,
                "words": words,
                "characters": characters,
            }
    if last and last != "\n":
        lines += 1
    return {"encoding": encoding, "lines": lines, "words": words, "characters": characters}
