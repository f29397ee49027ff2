"""The file in hand, read through the service that asked for it: this process opens none."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from typing import Any, BinaryIO, Final

from proto.errors import LinckiaError
from proto.ops.media import MAX_CHUNK_BYTES

PIECE_BYTES: Final = MAX_CHUNK_BYTES
PIECES: Final = 128
"""Kept: what is read again and again, such as the index of a video, while the rest goes by."""
READ_AHEAD_BYTES: Final = 64 * 1024


class Source(io.RawIOBase):
    """A file of `size` bytes, for one thread.

    Args:
        read: blocks until it has so many bytes from an offset on, fewer at the end; raises LinckiaError.
    """

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read = read
        self._piece = functools.lru_cache(PIECES)(self._ask)
        self._size = size
        self._at = 0
        self.failure: LinckiaError | None = None
        """Why it could not be read: libraries do not pass on what was raised."""

    def buffered(self) -> BinaryIO:
        return io.BufferedReader(self, READ_AHEAD_BYTES)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    # Any writable buffer: the protocol has a name from Python 3.12 on.
    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        if self._at >= self._size:
            return 0
        number, start = divmod(self._at, PIECE_BYTES)
        data = self._piece(number)[start : start + len(view)]
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _ask(self, number: int) -> bytes:
        if self.failure is not None:
            raise OSError(str(self.failure))
        try:
            return self._read(number * PIECE_BYTES, PIECE_BYTES)
        except LinckiaError as error:
            self.failure = error
            raise OSError(str(error)) from error
