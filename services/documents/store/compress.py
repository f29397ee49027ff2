"""Compression of blocks: zstd, with a dictionary that is trained once the store has seen enough texts.

Every frame carries a checksum, which is verified each time it is unpacked.  Dictionaries are numbered and kept: what
was packed with one can always be unpacked.
"""

from __future__ import annotations

import functools
import hashlib
from threading import get_ident

import zstandard

LEVEL = 3
DICTIONARY_FOR_BYTES = 64 * 1024
"""Longer blocks have their own history to refer to."""


class DamagedContent(Exception):
    """Stored bytes are not what was stored; the message says which."""


class Codec:
    """Packs and unpacks blocks; usable from several threads at once."""

    def __init__(self) -> None:
        self._dictionaries: dict[int, zstandard.ZstdCompressionDict] = {}
        self.current = 0
        """Number of the dictionary that new blocks are packed with; 0 while there is none."""
        # By the number of the dictionary and by thread: none may be used by two threads at once.
        self._compressor = functools.lru_cache(64)(self._new_compressor)
        self._decompressor = functools.lru_cache(64)(self._new_decompressor)

    def take(self, number: int, data: bytes) -> None:
        """Use this dictionary, already stored under `number`, from now on."""
        dictionary = zstandard.ZstdCompressionDict(data)
        dictionary.precompute_compress(level=LEVEL)
        self._dictionaries[number] = dictionary
        self.current = max(self.current, number)

    def pack(self, data: bytes | memoryview) -> tuple[int, bytes]:
        """The number of the dictionary that the block needs (0 for none), and the block."""
        number = self.current if len(data) <= DICTIONARY_FOR_BYTES else 0
        return number, self._compressor(number, get_ident()).compress(data)

    def pack_plain(self, data: bytes | memoryview) -> bytes:
        return self._compressor(0, get_ident()).compress(data)

    def unpack(self, number: int, block: bytes | None, size: int, hash_: bytes | None, name: str) -> bytes | None:
        """The bytes of a block, compared with their hash if one is given; SQL has this as `unpacked`.  Raises
        DamagedContent, which begins with the name."""
        if block is None:
            return None
        try:
            data = self._decompressor(number, get_ident()).decompress(block, max_output_size=max(1, size))
        except (zstandard.ZstdError, DamagedContent) as error:
            raise DamagedContent(f"{name}: {error}") from None
        if len(data) != size:
            raise DamagedContent(f"{name}: {len(data)} bytes where there were {size}")
        if hash_ is not None and hashlib.sha256(data).digest() != hash_:
            raise DamagedContent(f"{name} is not what was stored")
        return data

    def _new_compressor(self, number: int, thread: int) -> zstandard.ZstdCompressor:
        dictionary = self._dictionaries.get(number)
        return zstandard.ZstdCompressor(level=LEVEL, write_checksum=True, dict_data=dictionary)

    def _new_decompressor(self, number: int, thread: int) -> zstandard.ZstdDecompressor:
        if number and number not in self._dictionaries:
            raise DamagedContent(f"dictionary {number} is lost")
        return zstandard.ZstdDecompressor(dict_data=self._dictionaries.get(number))
