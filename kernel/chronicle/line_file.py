"""Files of JSON Lines that outlive the kernel: lines are appended, and a file that would get too long is shortened.

A killed kernel may leave an incomplete last line, which readers skip.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from proto.host.durable import append, replace_file

T = TypeVar("T", bound=msgspec.Struct)


def decoded(lines: Iterable[bytes], tp: type[T]) -> Iterator[T]:
    """Yield the readable lines."""
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            yield msgspec.json.decode(line, type=tp)


def _encoded(lines: Iterable[msgspec.Struct]) -> bytes:
    return b"".join(msgspec.json.encode(each) + b"\n" for each in lines)


class LineFile(Generic[T]):
    """One such file. Its methods block."""

    def __init__(self, path: Path, tp: type[T], max_bytes: int) -> None:
        self._path, self._type, self._max_bytes = path, tp, max_bytes
        self._ends_with_line = False

    def read(self) -> list[T]:
        """Return the readable lines; none if the file cannot be read."""
        with contextlib.suppress(OSError):
            return list(decoded(self._path.read_bytes().splitlines(), self._type))
        return []

    def append(self, new: Iterable[T], shortened: Callable[[], Iterable[T]]) -> None:
        """Append lines. If the file would get too long, it gets the `shortened` lines instead, which include the new
        ones. Raises OSError."""
        data = _encoded(new)
        if data and self._path.exists() and self._path.stat().st_size + len(data) > self._max_bytes:
            replace_file(self._path, _encoded(shortened()), sync=False)
        elif data:
            append(self._path, data if self._ends_with_line or self._is_complete() else b"\n" + data)
        self._ends_with_line |= bool(data)

    def _is_complete(self) -> bool:
        """Return whether the file ends with a whole line."""
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                return file.read(1) == b"\n"
        return True
