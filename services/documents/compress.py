"""Compression of blocks: zstd, with a dictionary trained on what the store holds where that pays.

Every frame carries a checksum, which is verified each time it is unpacked.  Dictionaries are numbered and kept: what
was packed with one can always be unpacked.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import apsw
import zstandard

LEVEL = 3
DICTIONARY_BYTES = 96 * 1024
DICTIONARY_FOR_BYTES = 64 * 1024
"""Longer blocks have their own history to refer to."""
TRAIN_FROM_BYTES = 1024 * 1024
TRAIN_FROM_AT_MOST = 8 * 1024 * 1024
MIN_SAMPLES = 100


class Damaged(Exception):
    """Stored bytes are not what was stored; the message says which."""


class Codec:
    """Packs and unpacks blocks; usable from several threads at once."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._dictionaries: dict[int, zstandard.ZstdCompressionDict] = {}
        self.current = 0
        """Number of the dictionary that new blocks are packed with; 0 while there is none."""
        self._local = threading.local()
        for number, data in connection.execute("SELECT id, data FROM dictionary ORDER BY id"):
            assert isinstance(number, int)
            assert isinstance(data, bytes)
            self.take(number, data)

    def take(self, number: int, data: bytes) -> None:
        """Use this dictionary, already stored under `number`, from now on."""
        dictionary = zstandard.ZstdCompressionDict(data)
        dictionary.precompute_compress(level=LEVEL)
        self._dictionaries[number] = dictionary
        self.current = max(self.current, number)

    def pack(self, data: bytes | memoryview) -> tuple[int, bytes]:
        """The block, and the number of the dictionary it needs (0 for none)."""
        number = self.current if len(data) <= DICTIONARY_FOR_BYTES else 0
        return number, self._compressor(number).compress(data)

    def pack_many(self, blocks: Sequence[bytes]) -> list[tuple[int, bytes]]:
        """The same of each; other threads are let go on all the while, and not only in between."""
        packed: list[tuple[int, bytes]] = [(0, b"")] * len(blocks)
        short = [index for index, data in enumerate(blocks) if self.current and len(data) <= DICTIONARY_FOR_BYTES]
        for number, indices in ((self.current, short), (0, sorted(set(range(len(blocks))) - set(short)))):
            # It takes neither nothing nor what is empty.
            some = [index for index in indices if blocks[index]]
            for index in set(indices).difference(some):
                packed[index] = self.pack(blocks[index])
            if some:
                frames = self._compressor(number).multi_compress_to_buffer([blocks[index] for index in some], threads=1)
                for at, index in enumerate(some):
                    packed[index] = (number, frames[at].tobytes())
        return packed

    def pack_plain(self, data: bytes | memoryview) -> bytes:
        """The block, without a dictionary."""
        return self._compressor(0).compress(data)

    def _compressor(self, number: int) -> zstandard.ZstdCompressor:
        compressors: dict[int, zstandard.ZstdCompressor] | None = getattr(self._local, "compressors", None)
        if compressors is None:
            compressors = self._local.compressors = {}
        compressor = compressors.get(number)
        if compressor is None:
            compressor = compressors[number] = zstandard.ZstdCompressor(
                level=LEVEL, write_checksum=True, dict_data=self._dictionaries.get(number)
            )
        return compressor

    def unpack(self, number: int, block: bytes, size: int) -> bytes:
        """The bytes of a block.  Raises Damaged."""
        decompressors: dict[int, zstandard.ZstdDecompressor] | None = getattr(self._local, "decompressors", None)
        if decompressors is None:
            decompressors = self._local.decompressors = {}
        decompressor = decompressors.get(number)
        if decompressor is None:
            if number and number not in self._dictionaries:
                raise Damaged(f"dictionary {number} is lost")
            decompressor = decompressors[number] = zstandard.ZstdDecompressor(dict_data=self._dictionaries.get(number))
        try:
            data = decompressor.decompress(block, max_output_size=max(1, size))
        except zstandard.ZstdError as error:
            raise Damaged(str(error)) from None
        if len(data) != size:
            raise Damaged(f"{len(data)} bytes where there were {size}")
        return data


def train(samples: Sequence[bytes]) -> bytes | None:
    """A dictionary of what the samples have in common; None where they are too few, or have nothing."""
    if len(samples) < MIN_SAMPLES or sum(map(len, samples)) < TRAIN_FROM_BYTES:
        return None
    try:
        return zstandard.train_dictionary(DICTIONARY_BYTES, list(samples), k=1024, d=8).as_bytes()
    except zstandard.ZstdError:
        # Samples that have nothing in common: no dictionary would help.
        return None
