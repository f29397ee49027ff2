"""Compression of blocks with zstd, and a dictionary that is trained once the store has seen enough texts.

Every frame has a checksum, which is verified on decompression. Dictionaries are numbered and never deleted, so every
block can be decompressed.
"""

from __future__ import annotations

import functools
import hashlib
from threading import get_ident

from services.shared import zstd

LEVEL = 3
DICTIONARY_FOR_BYTES = 64 * 1024
"""Longer blocks are compressed without the dictionary, as they have enough history of their own."""


class DamagedContent(Exception):
    """A stored content is damaged; the message says which."""


class Codec:
    """Packs and unpacks blocks; usable from several threads at once."""

    def __init__(self) -> None:
        self._dictionaries: dict[int, zstd.ZstdDict] = {}
        self.current = 0
        """Number of the dictionary for new blocks; 0 while there is none."""
        # Cached by dictionary number and thread, as a compressor must not be used by two threads at once.
        self._compressor = functools.lru_cache(64)(self._new_compressor)

    def take(self, number: int, data: bytes) -> None:
        """Use this dictionary, already stored under `number`, from now on."""
        self._dictionaries[number] = zstd.ZstdDict(data)
        self.current = max(self.current, number)

    def pack(self, data: bytes | memoryview) -> tuple[int, bytes]:
        """Compress a block.  Returns the number of the dictionary it needs (0 for none), and the compressed block."""
        number = self.current if len(data) <= DICTIONARY_FOR_BYTES else 0
        return number, self._compressor(number, get_ident()).compress(data)

    def pack_plain(self, data: bytes | memoryview) -> bytes:
        return self._compressor(0, get_ident()).compress(data)

    def unpack(self, number: int, block: bytes | None, size: int, hash_: bytes | None, name: str) -> bytes | None:
        """Decompress a block, and verify its hash if given.  SQL calls this as `unpacked`.

        Raises DamagedContent, whose message begins with `name`.
        """
        if block is None:
            return None
        try:
            data = zstd.decompress(block, size, self._dictionary(number))
        except (zstd.ZstdError, DamagedContent) as error:
            raise DamagedContent(f"{name}: {error}") from None
        if len(data) != size:
            raise DamagedContent(f"{name}: {len(data)} bytes instead of {size}")
        if hash_ is not None and hashlib.sha256(data).digest() != hash_:
            raise DamagedContent(f"{name}: hash mismatch")
        return data

    def _new_compressor(self, number: int, thread: int) -> zstd.Compressor:
        return zstd.Compressor(LEVEL, checksum=True, dictionary=self._dictionary(number))

    def _dictionary(self, number: int) -> zstd.ZstdDict | None:
        if number and number not in self._dictionaries:
            raise DamagedContent(f"dictionary {number} is lost")
        return self._dictionaries.get(number)
