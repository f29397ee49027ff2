"""Train the compression dictionary for texts, once the store has seen enough of them."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from services.documents.store.compress import DICTIONARY_FOR_BYTES
from services.documents.store.databases import Store
from services.shared import zstd

DICTIONARY_BYTES = 96 * 1024
TRAIN_FROM_BYTES = 1024 * 1024
TRAIN_FROM_AT_MOST = 8 * 1024 * 1024
MIN_SAMPLES = 100
FIRST_SAMPLES_BYTES = 2 * 1024 * 1024
_EVERY = 7
"""One of this many texts is sampled, since neighbours in a folder are too similar."""


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
        """Consider an incoming text as a sample.  Returns whether there are enough samples to train."""
        if self._codec.current or not 64 <= len(data) <= DICTIONARY_FOR_BYTES:
            return False
        self._seen += 1
        if self._bytes < TRAIN_FROM_AT_MOST and (self._seen % _EVERY == 0 or self._bytes < FIRST_SAMPLES_BYTES):
            self._samples.append(data)
            self._bytes += len(data)
        return self._bytes >= FIRST_SAMPLES_BYTES

    async def train_if_due(self) -> None:
        """Train and store a dictionary, if there is none yet and there are enough samples."""
        if self._codec.current or self._bytes < FIRST_SAMPLES_BYTES:
            return
        async with self._turn:
            # Another task may have trained it while this one waited.
            samples, self._samples, self._bytes = self._samples, [], 0
            if self._codec.current or (data := await trio.to_thread.run_sync(train, samples)) is None:
                return
            # Store it before the first block that needs it.
            query = "INSERT INTO dictionary(data) VALUES(?) RETURNING id"
            self._codec.take(await self._store.write(lambda db: db.execute(query, (data,)).get), data)


def train(samples: Sequence[bytes]) -> bytes | None:
    """Return a dictionary trained on the samples; None if there are too few or they have nothing in common."""
    if len(samples) < MIN_SAMPLES or sum(map(len, samples)) < TRAIN_FROM_BYTES:
        return None
    try:
        return zstd.train(list(samples), DICTIONARY_BYTES)
    except zstd.ZstdError:
        # The samples have nothing in common, so no dictionary would help.
        return None
