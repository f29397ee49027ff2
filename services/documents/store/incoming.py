"""A content on its way in: hashed as it comes, cut into chunks once it is large, in bounded memory.

Small contents are kept until they are whole and become one block.  Of a large one each batch of chunks is stored when
it is full; they belong to nothing until the document is written, and are collected if it never is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import apsw

from services.documents.store.chunking import Chunker
from services.documents.store.compress import Codec
from services.documents.store.kinds import SNIFF_BYTES, Nature, nature
from services.documents.store.objects import CHUNKED_FROM_BYTES, Block, Content, put_chunk

BATCH_BYTES = 8 * 1024 * 1024

PackedChunk = tuple[bytes, int, bytes]
"""Hash, size and packed bytes."""


class Incoming:
    """Takes the bytes of one content.  `pending` holds chunks to be stored with `settle` whenever it is `full`."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._hash = hashlib.sha256()
        self._head = b""
        self._small = bytearray()
        self._chunker: Chunker | None = None
        self._packed: list[PackedChunk] = []
        self._packed_bytes = 0
        self._parts: list[tuple[int, int]] = []
        self._cut = 0
        self.size = 0

    @property
    def chunked(self) -> bool:
        """Whether the content is large."""
        return self._chunker is not None

    @property
    def full(self) -> bool:
        return self._packed_bytes >= BATCH_BYTES

    def feed(self, data: bytes | memoryview) -> None:
        """The next bytes; blocks for as long as it takes to hash and compress them."""
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
        # Chunks are long enough to do without a dictionary, and so can be read without one.
        packed = self._codec.pack_plain(chunk)
        self._packed.append((hashlib.sha256(chunk).digest(), len(chunk), packed))
        self._packed_bytes += len(packed)

    def settle(self, db: apsw.Connection) -> None:
        """Store the chunks that are ready."""
        for hash_, size, packed in self._packed:
            self._parts.append((self._cut, put_chunk(db, hash_, size, packed)))
            self._cut += size
        self._packed, self._packed_bytes = [], 0

    def finish(self) -> None:
        """No more bytes come; `settle` once more, then `content`."""
        if self._chunker is not None:
            for chunk in self._chunker.finish():
                self._pack(chunk)

    @property
    def small(self) -> bytes:
        """All of the content, unless it is large."""
        return bytes(self._small)

    @property
    def digest(self) -> bytes:
        return self._hash.digest()

    def content(self, name: str, mime: str | None, exists: Callable[[bytes], bool] = lambda _: False) -> Content:
        """The whole content, to be put in the transaction that writes its document."""
        digest = self.digest
        kind: Nature = nature(self._head, name, mime)
        if self._chunker is not None:
            return Content(digest, self.size, kind, None, tuple(self._parts))
        block = Block(0, None) if exists(digest) else Block(*self._codec.pack(bytes(self._small)))
        return Content(digest, self.size, kind, block)
