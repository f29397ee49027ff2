"""The background work on what is stored: text is extracted, the index of trigrams caught up, garbage collected.

Each step is small and leaves a consistent state; killed anywhere, the next start goes on from the outboxes.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import partial

import apsw
import trio

from services.documents.add.add import Adding
from services.documents.code import parsing
from services.documents.store import objects, schema, texts
from services.documents.store.compress import Codec, Damaged
from services.documents.store.store import Store
from services.documents.text import extract, pieces
from services.runtime.handlers import Environment

INDEX_OBJECTS = 500
INDEX_BYTES = 8 * 1024 * 1024
COLLECT_OBJECTS = 500
PAUSE_S = 1.0
WORD = re.compile(r"[A-Za-zÀ-ɏЀ-ӿ][\wÀ-ɏЀ-ӿ]{3,39}")
MAX_WORDS = 4000
"""Of one text, that are kept for the sake of spelling."""


class Indexing:
    """The task."""

    def __init__(self, env: Environment, store: Store, codec: Codec, adding: Adding) -> None:
        self._env = env
        self._store = store
        self._codec = codec
        self._adding = adding
        self._wake = trio.Event()
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._extracting = trio.Lock()
        self.passed = trio.Condition()
        """Notified after each step that others may wait for."""

    def hurry(self) -> None:
        """There is something new."""
        self._wake.set()

    async def run(self) -> None:
        """Work until `stop`, or until cancelled."""
        try:
            with self._scope:
                await self._env.after_the_rush()
                await self._store.write(self._collect_chunks)
                while True:
                    self._wake = trio.Event()
                    await self._adding.give_way()
                    worked = await self.extract_some()
                    worked = await self._index_some() or worked
                    worked = await self._collect_some() or worked
                    async with self.passed:
                        self.passed.notify_all()
                    if not worked:
                        await self._store.tidy()
                        with trio.move_on_after(60 * PAUSE_S):
                            await self._wake.wait()
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """End the task; once this returns it uses the databases no more."""
        self._scope.cancel()
        with trio.CancelScope(shield=True):
            await self._ended.wait()

    async def extract_some(self) -> bool:
        """Extract the text of one content; answers whether there was any."""
        async with self._extracting:
            claimed = await self._store.write(extract.claim)
            for stored in claimed:

                def attempt(db: apsw.Connection, stored: objects.Stored = stored) -> tuple[str | None, str | None]:
                    try:
                        return extract.extract(db, self._codec, stored), None
                    except extract.Unreadable as error:
                        return None, str(error)

                text, problem = await self._store.read(attempt)
                await self._store.write(
                    partial(extract.settle, codec=self._codec, id_=stored.id, text=text, problem=problem)
                )
            return bool(claimed)

    async def settled(self, ids: list[int], patience_s: float) -> int:
        """Wait until the text of these contents is extracted, so long at most; answers how many are not."""
        if not ids:
            return 0

        def waiting(db: apsw.Connection) -> int:
            query = "SELECT 1 FROM object WHERE id=? AND text_state=?"
            return sum(db.execute(query, (id_, schema.TEXT_WAITING)).fetchone() is not None for id_ in ids)

        left = await self._store.read(waiting)
        with trio.move_on_after(patience_s):
            while left:
                worked = await self.extract_some()
                # Where there was nothing to take, the task in the background has just done the last.
                left = await self._store.read(waiting)
                if not worked:
                    break
        return left

    async def _index_some(self) -> bool:
        work = await self._store.read(self._gather)
        if not work.ids:
            return False
        await self._store.write_index(partial(_write_index, work=work))
        await self._store.write(
            lambda db: db.executemany(
                "DELETE FROM index_outbox WHERE object=?", ((id_,) for id_ in work.ids)
            ).fetchall()
        )
        return True

    def _gather(self, db: apsw.Connection) -> Work:
        work = Work()
        size = 0
        for (id_,) in db.execute(
            "SELECT object FROM index_outbox ORDER BY object LIMIT ?", (INDEX_OBJECTS,)
        ).fetchall():
            assert isinstance(id_, int)
            stored = objects.by_id(db, id_)
            if stored is None or not texts.has_text(stored):
                work.gone.append(id_)
            elif stored.size > texts.WHOLE_BYTES:
                work.long.append(id_)
            else:
                try:
                    text = b"".join(texts.pieces(db, self._codec, stored))
                except Damaged:
                    # It stays stored as it is, and is looked at each time, which says what is wrong.
                    work.long.append(id_)
                else:
                    work.texts.append((id_, text))
                    size += len(text)
            work.ids.append(id_)
            if size > INDEX_BYTES:
                break
        return work

    def _collect_chunks(self, db: apsw.Connection) -> None:
        if self._adding.receiving == 0:
            objects.collect_chunks(db)

    async def _collect_some(self) -> bool:
        def change(db: apsw.Connection) -> int:
            # Asked at the moment of writing: who has begun to receive since has stored no chunk before this.
            return objects.collect(db, COLLECT_OBJECTS, chunks=self._adding.receiving == 0)

        if not await self._store.read(lambda db: db.execute("SELECT 1 FROM loose LIMIT 1").fetchone() is not None):
            return False
        return bool(await self._store.write(change))


class Work:
    """Contents of the outbox by what is to be done with them."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.gone: list[int] = []
        self.long: list[int] = []
        self.texts: list[tuple[int, bytes]] = []


def _write_index(db: apsw.Connection, work: Work) -> None:
    for id_ in work.gone:
        pieces.remove(db, id_)
        db.execute("DELETE FROM unindexed WHERE object=?", (id_,))
        parsing.forget(db, id_)
    db.executemany("INSERT OR IGNORE INTO unindexed(object) VALUES(?)", ((id_,) for id_ in work.long))
    words: Counter[str] = Counter()
    for id_, text in work.texts:
        # Killed after this was written and before the outbox was, it comes again.
        if db.execute("SELECT 1 FROM done WHERE object=?", (id_,)).fetchone() is not None:
            continue
        pieces.put(db, id_, text)
        found = {match.lower() for match in WORD.findall(text.decode("utf-8", "replace"))}
        words.update(sorted(found)[:MAX_WORDS])
    db.executemany(
        "INSERT INTO word(word, objects) VALUES(?, ?) ON CONFLICT(word) DO UPDATE SET objects=objects+excluded.objects",
        sorted(words.items()),
    )
