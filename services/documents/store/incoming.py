"""An incoming content: hashed as it arrives and cut into chunks once it is large, in bounded memory.

Small contents are buffered and become one block. Chunks of large ones are stored in batches. They are unreferenced
until the document is written, and are collected if it never is.

Chunking is content-defined: FastCDC (Xia et al., USENIX ATC 2016) with normalised chunk sizes. An insertion moves only
the boundaries around it, so two versions of a large file share most of their chunks. The gear hashes of all positions
are computed at once by doubling the window: h₂ₙ(i) = hₙ(i) + hₙ(i-n)·2ⁿ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import apsw
import numpy as np
from numpy.typing import NDArray

from services.documents.store.compress import Codec
from services.documents.store.kinds import SNIFF_BYTES, nature
from services.documents.store.objects import CHUNKED_FROM_BYTES, Block, PackedContent, put_chunk

BATCH_BYTES = 8 * 1024 * 1024
BATCH_CHUNKS = 128
"""Limits a batch even if its chunks compress well, since each chunk occupies its uncompressed size in memory."""
MIN_BYTES = 16 * 1024
NORMAL_BYTES = 64 * 1024
MAX_BYTES = 256 * 1024
WINDOW = 32
_STRICT, _LOOSE = 18, 14
"""Number of hash bits that must be 0 at a boundary: more before the normal chunk size, fewer after it."""

_HASHED_BYTES = 1024 * 1024


def _gear() -> NDArray[np.uint32]:
    # The values are part of the format: others would move every boundary and defeat deduplication.
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
    """Cuts a stream of bytes into chunks.  Memory is bounded by a block and a chunk."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._hashed = 0
        self._cuts: list[tuple[int, bool]] = []
        """Possible boundaries (offset of the chunk's end in the buffer), and whether they meet the strict condition."""

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        """Yield the chunks that `data` completes."""
        view = memoryview(data)
        for start in range(0, len(view), _HASHED_BYTES):
            self._buffer += view[start : start + _HASHED_BYTES]
            self._hash()
            yield from self._take(final=False)

    def finish(self) -> Iterator[bytes]:
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


class Incoming:
    """Receives the bytes of one content.  Call `settle` to store finished chunks whenever it is `full`."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._hash = hashlib.sha256()
        self._head = b""
        self._small = bytearray()
        self._chunker: Chunker | None = None
        self._packed: list[tuple[bytes, int, bytes]] = []
        """Hash, size and compressed bytes of finished chunks."""
        self._packed_bytes = 0
        self._components: list[tuple[int, int]] = []
        self._cut = 0
        self.size = 0

    @property
    def chunked(self) -> bool:
        return self._chunker is not None

    @property
    def full(self) -> bool:
        return self._packed_bytes >= BATCH_BYTES or len(self._packed) >= BATCH_CHUNKS

    @property
    def pending(self) -> bool:
        """Whether there are chunks to store."""
        return bool(self._packed)

    def feed(self, data: bytes | memoryview) -> None:
        """Take the next bytes; blocks while hashing and compressing them."""
        self._hash.update(data)
        if len(self._head) < SNIFF_BYTES:
            self._head += bytes(data[: SNIFF_BYTES - len(self._head)])
        self.size += len(data)
        if self._chunker is None:
            self._small += data
            if len(self._small) < CHUNKED_FROM_BYTES:
                return
            self._chunker = Chunker()
            data, self._small = bytes(self._small), bytearray()
        for chunk in self._chunker.feed(data):
            self._pack(chunk)

    def _pack(self, chunk: bytes) -> None:
        # Chunks are long enough not to need a dictionary.
        packed = self._codec.pack_plain(chunk)
        self._packed.append((hashlib.sha256(chunk).digest(), len(chunk), packed))
        self._packed_bytes += len(packed)

    def settle(self, db: apsw.Connection) -> None:
        """Store the finished chunks."""
        for hash_, size, packed in self._packed:
            self._components.append((self._cut, put_chunk(db, hash_, size, packed)))
            self._cut += size
        self._packed, self._packed_bytes = [], 0

    def finish(self) -> None:
        """End the input.  Then call `settle` once more, and `content`."""
        if self._chunker is not None:
            for chunk in self._chunker.finish():
                self._pack(chunk)

    @property
    def small(self) -> bytes:
        """The whole content, or nothing if it is large."""
        return bytes(self._small)

    @property
    def digest(self) -> bytes:
        return self._hash.digest()

    def content(self, name: str, mime: str | None) -> PackedContent:
        """Return the content, to be stored in the transaction that writes its document."""
        block = None if self.chunked else Block(*self._codec.pack(self.small))
        return PackedContent(self.digest, self.size, nature(self._head, name, mime), block, tuple(self._components))
