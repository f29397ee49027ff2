"""When to train a dictionary: once the store has seen enough texts, and again when it has grown many times over."""

from __future__ import annotations

import apsw
import trio

from services.documents.store.compress import DICTIONARY_FOR_BYTES, TRAIN_FROM_AT_MOST, Codec, train
from services.documents.store.store import Store

FIRST_SAMPLES_BYTES = 2 * 1024 * 1024
_EVERY = 7
"""Of the texts that are seen, one in so many is a sample: neighbours in a folder are too much alike."""


class Trainer:
    """Collects samples of what is stored; threads may call `see`, the event loop `train_if_due`."""

    def __init__(self, store: Store, codec: Codec) -> None:
        self._store = store
        self._codec = codec
        self._samples: list[bytes] = []
        self._bytes = 0
        self._seen = 0
        self._turn = trio.Lock()

    @property
    def is_done(self) -> bool:
        """Whether there is a dictionary, and nothing more to be seen for it."""
        return bool(self._codec.current)

    def see(self, data: bytes, *, is_text: bool) -> bool:
        """A content on its way in; answers whether there is enough to train on."""
        if self._codec.current or not is_text or not 64 <= len(data) <= DICTIONARY_FOR_BYTES:
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
            if self._codec.current or not samples:
                return
            trained = await trio.to_thread.run_sync(train, samples)
            if trained is None:
                return
            data: bytes = trained

            def keep(db: apsw.Connection) -> int:
                db.execute("INSERT INTO dictionary(data) VALUES(?)", (data,))
                return db.last_insert_rowid()

            # On disk before the first block that needs it.
            self._codec.take(await self._store.write(keep), data)
