"""Compression of blocks: zstd, with a dictionary that is trained once the store has seen enough texts.

Every frame carries a checksum, which is verified each time it is unpacked.  Dictionaries are numbered and kept: what
was packed with one can always be unpacked.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from threading import get_ident
from typing import TYPE_CHECKING

import trio
import zstandard

if TYPE_CHECKING:
    from linckia.services.documents.store.store import Store

LEVEL = 3
DICTIONARY_BYTES = 96 * 1024
DICTIONARY_FOR_BYTES = 64 * 1024
"""Longer blocks have their own history to refer to."""
TRAIN_FROM_BYTES = 1024 * 1024
TRAIN_FROM_AT_MOST = 8 * 1024 * 1024
MIN_SAMPLES = 100
FIRST_SAMPLES_BYTES = 2 * 1024 * 1024
_EVERY = 7
"""Of the texts that are seen, one in so many is a sample: neighbours in a folder are too much alike."""


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


class Trainer:
    """Trains a dictionary once enough texts were seen; threads may call `see`, the event loop `train_if_due`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._codec = store.codec
        self._samples: list[bytes] = []
        self._bytes = 0
        self._seen = 0
        self._turn = trio.Lock()

    def see(self, data: bytes) -> bool:
        """A text on its way in; answers whether there is enough to train on."""
        if self._codec.current or not 64 <= len(data) <= DICTIONARY_FOR_BYTES:
            return False
        self._seen += 1
        if self._bytes < TRAIN_FROM_AT_MOST and (self._seen % _EVERY == 0 or self._bytes < FIRST_SAMPLES_BYTES):
            self._samples.append(data)
            self._bytes += len(data)
        return self._bytes >= FIRST_SAMPLES_BYTES

    async def train_if_due(self) -> None:
        """Train and store a dictionary, where there is none yet and enough was seen."""
        if self._codec.current or self._bytes < FIRST_SAMPLES_BYTES:
            return
        async with self._turn:
            # Who waited finds it done.
            samples, self._samples, self._bytes = self._samples, [], 0
            if self._codec.current or (data := await trio.to_thread.run_sync(train, samples)) is None:
                return
            # On disk before the first block that needs it.
            query = "INSERT INTO dictionary(data) VALUES(?) RETURNING id"
            self._codec.take(await self._store.write(lambda db: db.execute(query, (data,)).get), data)


def train(samples: Sequence[bytes]) -> bytes | None:
    """A dictionary of what the samples have in common; None where they are too few, or have nothing."""
    if len(samples) < MIN_SAMPLES or sum(map(len, samples)) < TRAIN_FROM_BYTES:
        return None
    try:
        return zstandard.train_dictionary(DICTIONARY_BYTES, list(samples), k=1024, d=8).as_bytes()
    except zstandard.ZstdError:
        # Samples that have nothing in common: no dictionary would help.
        return None
