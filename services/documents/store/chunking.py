"""Content-defined chunks of large contents: FastCDC (Xia et al., USENIX ATC 2016), with normalised chunk sizes.

An insertion moves the boundaries around it and no others, so that two versions of a large file share most of their
chunks.  The gear hash of every position is worked out at once, by doubling its window: h₂ₙ(i) = hₙ(i) + hₙ(i-n)·2ⁿ.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

MIN_BYTES = 16 * 1024
NORMAL_BYTES = 64 * 1024
MAX_BYTES = 256 * 1024
WINDOW = 32
_STRICT, _LOOSE = 18, 14
"""Bits of the hash that must be 0 at a boundary: more of them before the normal size, fewer after it."""

_BLOCK = 1024 * 1024


def _gear() -> NDArray[np.uint32]:
    # The values are part of the format: others would move every boundary, and nothing would be found again.
    numbers = np.empty(256, np.uint32)
    state = 0x9E3779B97F4A7C15
    for index in range(256):
        # SplitMix64 (Steele et al., 2014).
        state = (state + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        numbers[index] = (mixed ^ (mixed >> 31)) >> 32
    return numbers


_GEAR = _gear()


class Chunker:
    """Cuts a stream of bytes; memory is bounded by a block and a chunk."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._hashed = 0
        self._cuts: list[tuple[int, bool]] = []
        """Where a boundary may be (the chunk's end, from the buffer's start), and whether strictly so."""

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        """The chunks that are complete with this."""
        view = memoryview(data)
        for start in range(0, len(view), _BLOCK):
            self._buffer += view[start : start + _BLOCK]
            self._hash()
            yield from self._take(final=False)

    def finish(self) -> Iterator[bytes]:
        """What is left."""
        yield from self._take(final=True)

    def _hash(self) -> None:
        begin = max(0, self._hashed - WINDOW + 1)
        part = np.frombuffer(self._buffer, np.uint8)[begin:]
        sums = _GEAR[part]
        del part
        span = 1
        while span < WINDOW:
            sums[span:] += sums[:-span] << np.uint32(span)
            span *= 2
        found = np.flatnonzero(sums < np.uint32(1 << (32 - _LOOSE)))
        strict = sums[found] < np.uint32(1 << (32 - _STRICT))
        for position, is_strict in zip(found.tolist(), strict.tolist(), strict=True):
            end = begin + position + 1
            if end > self._hashed:
                self._cuts.append((end, is_strict))
        self._hashed = len(self._buffer)

    def _take(self, *, final: bool) -> Iterator[bytes]:
        start = 0
        index = 0
        while True:
            left = len(self._buffer) - start
            if left == 0 or (left < MAX_BYTES and not final):
                break
            end = start + min(left, MAX_BYTES)
            while index < len(self._cuts):
                cut, strict = self._cuts[index]
                if cut > end:
                    break
                index += 1
                length = cut - start
                if length >= MIN_BYTES and (strict or length >= NORMAL_BYTES):
                    end = cut
                    break
            yield bytes(memoryview(self._buffer)[start:end])
            start = end
        if start:
            del self._buffer[:start]
            self._hashed -= start
            self._cuts = [(cut - start, strict) for cut, strict in self._cuts[index:] if cut > start]
