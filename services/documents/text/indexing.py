"""The background work on what is stored: text is extracted, the index of trigrams caught up, garbage collected.

Each step is small and leaves a consistent state; killed anywhere, the next start goes on from the outboxes.

Texts in other character sets than UTF-8 are decoded here, and text is extracted from PDFs and other documents by
`decode`, which may die of it: a content of which it died twice stays stored, without text. Why one has none is said by
the status, `add` and `get`.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import apsw
import trio

from linckia.proto.errors import LinckiaError
from linckia.proto.ops.decode import MAX_SOURCE_BYTES, TEXTUAL_TYPES, DecodedText, DecodeText
from linckia.services.documents.add.add import Adding
from linckia.services.documents.code import parsing
from linckia.services.documents.store import objects, schema, texts
from linckia.services.documents.store.compress import Codec, DamagedContent
from linckia.services.documents.store.objects import Stored
from linckia.services.documents.store.schema import TEXT_EXTRACTED, TEXT_NONE, TEXT_OWN, TEXT_QUARANTINED, TEXT_WAITING
from linckia.services.documents.store.store import Store
from linckia.services.documents.text import pieces
from linckia.services.runtime.calls import Undecodable, decoded
from linckia.services.runtime.handlers import Environment
from linckia.services.runtime.storage import DiskFull
from linckia.services.runtime.text.charsets import charset_of

INDEX_OBJECTS = 500
INDEX_BYTES = 8 * 1024 * 1024
COLLECT_OBJECTS = 500
PAUSE_S, IDLE_S = 1.0, 60.0
WORD = re.compile(r"[A-Za-zÀ-ɏЀ-ӿ][\wÀ-ɏЀ-ӿ]{3,39}")
MAX_TOLD = 100
MAX_WORDS = 4000
"""Of one text, that are kept for the sake of spelling."""

_log = logging.getLogger("linckia.documents")


@dataclass(frozen=True, slots=True)
class Work:
    """Contents of the outbox by what is to be done with them."""

    ids: list[int] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    long: list[int] = field(default_factory=list)
    encoded: list[int] = field(default_factory=list)
    texts: list[tuple[int, bytes]] = field(default_factory=list)


class Indexing:
    """The task; `extracted` is told when a content has got its text, which the search does not have yet."""

    def __init__(self, env: Environment, store: Store, adding: Adding, extracted: Callable[[], None]) -> None:
        self._env = env
        self._store = store
        self._adding = adding
        self._wake = trio.Event()
        self._extracting = trio.Lock()
        self._extracted = extracted
        self.waiting: str | None = None
        """Why something is not done at the moment."""

    def hurry(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Work until cancelled; may be run again.  Raises DiskFull."""
        await self._env.after_the_rush()
        await self._try(self._collect_chunks)
        pause_s = PAUSE_S
        while True:
            self._wake = trio.Event()
            await self._adding.give_way()
            self.waiting = None
            # Each on its own: where one part of the packs is damaged, work on the others goes on.
            worked = [await self._try(step) for step in (self.extract_some, self._index_some, self._collect_some)]
            if any(worked):
                pause_s = PAUSE_S
                continue
            if self.waiting is None:
                self._store.caught_up()
                await self._try(self._store.tidy)
            with trio.move_on_after(pause_s if self.waiting else IDLE_S):
                await self._wake.wait()
            pause_s = min(2 * pause_s, IDLE_S)

    async def _try(self, step: Callable[[], Awaitable[object]]) -> bool:
        """Answers whether there was work; not where the database cannot be read.  Raises DiskFull."""
        try:
            return bool(await step())
        except DiskFull:
            raise
        except LinckiaError as error:
            if self.waiting is None:
                _log.error("work on what is stored waits: %s", error)
            self.waiting = str(error)
            return False

    async def extract_some(self) -> bool:
        """Extract the text of one content; answers whether there was any."""
        async with self._extracting:
            stored = await self._store.read(due)
            if stored is None:
                return False
            made = await self._store.read(partial(source, stored=stored))
            if isinstance(made, bytes):
                try:
                    made = await decoded(self._env.call, DecodeText(data=made))
                except Undecodable as error:
                    made = DecodedText(text=None, problem=str(error))
            await self._store.write(partial(settle, codec=self._store.codec, id_=stored.id, made=made))
            self.hurry()
            self._extracted()
            return True

    async def without_text(self, ids: list[int]) -> list[str]:
        """Which of these contents have no text, or not all of it, and why: those of which that is known, the first."""

        def told(db: apsw.Connection) -> list[str]:
            query = (
                "SELECT path, problem FROM carray(?) AS one JOIN object ON object.id = one.value"
                " JOIN document ON document.object = object.id WHERE problem IS NOT NULL ORDER BY document.id LIMIT ?"
            )
            return [f"{path}: {problem}" for path, problem in db.execute(query, (schema.ids(ids), MAX_TOLD))]

        return await self._store.read(told) if ids else []

    async def settled(self, ids: list[int], patience_s: float) -> int:
        """Wait until the text of these contents is extracted, so long at most; answers how many are not."""

        def waiting(db: apsw.Connection) -> int:
            query = "SELECT count(*) FROM carray(?) AS one JOIN object ON id = one.value WHERE text_state=?"
            return int(db.execute(query, (schema.ids(ids), TEXT_WAITING)).get)

        left = len(ids)
        # What is stored is acknowledged, whatever becomes of its text now.
        with trio.move_on_after(patience_s), contextlib.suppress(LinckiaError):
            while left and (left := await self._store.read(waiting)):
                if not await self.extract_some():
                    # The task in the background has just done the last.
                    return await self._store.read(waiting)
        return left

    async def _index_some(self) -> bool:
        await self._store.refill()
        work = await self._store.read(self._gather)
        if not work.ids:
            return False
        await self._store.write_index(partial(_write_index, work=work))
        await self._store.write(partial(_strike, work=work))
        return True

    def _gather(self, db: apsw.Connection) -> Work:
        work = Work()
        size = 0
        for (id_,) in db.execute("SELECT object FROM index_outbox ORDER BY object LIMIT ?", (INDEX_OBJECTS,)):
            try:
                stored = objects.by_id(db, id_)
                if not texts.has_text(stored):
                    work.gone.append(id_)
                elif stored.size > texts.WHOLE_BYTES:
                    work.long.append(id_)
                else:
                    text = b"".join(texts.pieces(db, stored))
                    size += len(text)
                    if stored.text_state == TEXT_OWN and charset_of(text).codec != "utf-8":
                        # Stored by an earlier version, or not told by its beginning.
                        work.encoded.append(id_)
                    else:
                        work.texts.append((id_, text))
            except DamagedContent:
                # It stays stored as it is, and is looked at each time, which says what is wrong.
                work.long.append(id_)
            work.ids.append(id_)
            if size > INDEX_BYTES:
                break
        return work

    async def _collect_chunks(self) -> bool:
        return await self._store.write(lambda db: self._adding.receiving == 0 and objects.collect_chunks(db) > 0)

    async def _collect_some(self) -> bool:
        if not await self._store.read(lambda db: db.execute("SELECT 1 FROM loose LIMIT 1").get):
            return False
        # Asked at the moment of writing: who has begun to receive since has stored no chunk before this.
        return bool(
            await self._store.write(lambda db: objects.collect(db, COLLECT_OBJECTS, chunks=self._adding.receiving == 0))
        )


def _write_index(db: apsw.Connection, work: Work) -> None:
    for id_ in work.encoded:
        parsing.forget(db, id_)
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


def _strike(db: apsw.Connection, work: Work) -> None:
    query = "UPDATE object SET text_state=? WHERE id IN (SELECT value FROM carray(?))"
    db.execute(query, (TEXT_WAITING, schema.ids(work.encoded)))
    db.execute("DELETE FROM index_outbox WHERE object IN (SELECT value FROM carray(?))", (schema.ids(work.ids),))


def due(db: apsw.Connection) -> Stored | None:
    id_ = db.execute("SELECT id FROM object WHERE text_state=? ORDER BY id LIMIT 1", (TEXT_WAITING,)).get
    return None if id_ is None else objects.by_id(db, id_)


def settle(db: apsw.Connection, codec: Codec, id_: int, made: DecodedText) -> None:
    """Store what an attempt has come to."""
    data = b"" if made.text is None else made.text.encode("utf-8", "replace")
    state = TEXT_QUARANTINED if made.text is None else TEXT_EXTRACTED if data.strip() else TEXT_NONE
    if state == TEXT_EXTRACTED:
        row = (id_, len(data), codec.pack_plain(data))
        db.execute("INSERT OR REPLACE INTO text(object, size, data) VALUES(?, ?, ?)", row)
    query = "UPDATE object SET text_state=?, problem=?, charset=? WHERE id=?"
    db.execute(query, (state, made.problem, made.charset, id_))


def source(db: apsw.Connection, stored: Stored) -> DecodedText | bytes:
    """The text, or why there is none, or what is to be decoded elsewhere; blocks."""
    if stored.size > MAX_SOURCE_BYTES:
        said = f"{stored.size} bytes, more than the {MAX_SOURCE_BYTES} that text is extracted from"
        return DecodedText(text=None, problem=said)
    try:
        data = b"".join(objects.stream(db, stored))
    except DamagedContent as error:
        return DecodedText(text=None, problem=str(error))
    if stored.is_text and stored.mime not in TEXTUAL_TYPES.values():
        found = charset_of(data)
        return DecodedText(text=found.decode(data), charset=f"{found.codec} ({found.reason})")
    return data
