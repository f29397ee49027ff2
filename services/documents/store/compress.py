"""Compression of blocks: zstd, with a dictionary trained on what the store holds where that pays.

Every frame carries a checksum, which is verified each time it is unpacked.  Dictionaries are numbered and kept: what
was packed with one can always be unpacked.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence

import apsw
import zstandard

from proto.machine import usable_cores

LEVEL = 3
DICTIONARY_BYTES = 96 * 1024
DICTIONARY_FOR_BYTES = 64 * 1024
"""Longer blocks have their own history to refer to."""
TRAIN_FROM_BYTES = 1024 * 1024
TRAIN_FROM_AT_MOST = 8 * 1024 * 1024
MIN_SAMPLES = 100
TOGETHER_FROM_BYTES = 1024 * 1024
"""Unpacked; for less, starting threads costs more than they save."""
MOST_THREADS = 4


class DamagedContent(Exception):
    """Stored bytes are not what was stored; the message says which."""


class Codec:
    """Packs and unpacks blocks; usable from several threads at once."""

    def __init__(self, connection: apsw.Connection | None = None) -> None:
        """Of the dictionaries that are stored; without a connection, of none."""
        self._dictionaries: dict[int, zstandard.ZstdCompressionDict] = {}
        self.current = 0
        """Number of the dictionary that new blocks are packed with; 0 while there is none."""
        self._local = threading.local()
        self._threads = min(MOST_THREADS, usable_cores())
        rows = () if connection is None else connection.execute("SELECT id, data FROM dictionary ORDER BY id")
        for number, data in rows:
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
            # The library refuses an empty list, and empty blocks.
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
        """The bytes of a block.  Raises DamagedContent."""
        try:
            data = self._decompressor(number).decompress(block, max_output_size=max(1, size))
        except zstandard.ZstdError as error:
            raise DamagedContent(str(error)) from None
        if len(data) != size:
            raise DamagedContent(f"{len(data)} bytes where there were {size}")
        return data

    def unpack_many(self, blocks: Sequence[tuple[int, bytes, int]]) -> list[bytes | None]:
        """The bytes of blocks (each with the number of its dictionary and its size), on several cores at once.

        None where they are to be had one by one: there is too little to share, or one of them is damaged.
        """
        unpacked: list[bytes | None] = [None] * len(blocks)
        by_number: dict[int, list[int]] = {}
        for index, (number, _, size) in enumerate(blocks):
            # It takes no frame of nothing.
            if size:
                by_number.setdefault(number, []).append(index)
            else:
                unpacked[index] = b""
        for number, indices in by_number.items():
            sizes = array("Q", [blocks[index][2] for index in indices])
            if len(sizes) < 2 or sum(sizes) < TOGETHER_FROM_BYTES or self._threads < 2:
                continue
            try:
                frames = self._decompressor(number).multi_decompress_to_buffer(
                    [blocks[index][1] for index in indices], decompressed_sizes=sizes.tobytes(), threads=self._threads
                )
            except (zstandard.ZstdError, DamagedContent):
                # One of them; the others are had one by one.
                continue
            for at, index in enumerate(indices):
                unpacked[index] = frames[at].tobytes()
        return unpacked

    def _decompressor(self, number: int) -> zstandard.ZstdDecompressor:
        """Raises DamagedContent."""
        decompressors: dict[int, zstandard.ZstdDecompressor] | None = getattr(self._local, "decompressors", None)
        if decompressors is None:
            decompressors = self._local.decompressors = {}
        decompressor = decompressors.get(number)
        if decompressor is None:
            if number and number not in self._dictionaries:
                raise DamagedContent(f"dictionary {number} is lost")
            decompressor = decompressors[number] = zstandard.ZstdDecompressor(dict_data=self._dictionaries.get(number))
        return decompressor


def train(samples: Sequence[bytes]) -> bytes | None:
    """A dictionary of what the samples have in common; None where they are too few, or have nothing."""
    if len(samples) < MIN_SAMPLES or sum(map(len, samples)) < TRAIN_FROM_BYTES:
        return None
    try:
        return zstandard.train_dictionary(DICTIONARY_BYTES, list(samples), k=1024, d=8).as_bytes()
    except zstandard.ZstdError:
        # Samples that have nothing in common: no dictionary would help.
        return None
