"""Background work on the store: text extraction, trigram indexing and garbage collection.

Each step is small and leaves a consistent state. After a crash, work resumes from the outboxes.

Texts in character sets other than UTF-8 are decoded here, and the visible text of pages is extracted. Text of PDFs and
other documents is extracted by `decode`, which may crash on it: a content on which it crashed twice stays stored
without text. The status, `add` and `get` say why a content has no text.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import apsw
import trio

from proto.errors import LinckiaError
from proto.ops.decode import MAX_SOURCE_BYTES, MAX_TEXT_CHARACTERS, TEXTUAL_TYPES, DecodedText, DecodeText
from services.documents.add.add import Adding
from services.documents.code import parsing
from services.documents.store import objects, tables, texts
from services.documents.store.compress import Codec, DamagedContent
from services.documents.store.databases import Store
from services.documents.store.kinds import PAGE_TYPES, base_type
from services.documents.store.objects import Stored
from services.documents.store.tables import TEXT_EXTRACTED, TEXT_NONE, TEXT_OWN, TEXT_QUARANTINED, TEXT_WAITING
from services.documents.text import trigram_index
from services.runtime.calls import Undecodable, decoded
from services.runtime.handlers import Environment
from services.runtime.storage import DiskFull
from services.shared.backoff import Backoff
from services.shared.text.charsets import charset_of
from services.shared.text.html import plain

INDEX_OBJECTS = 500
INDEX_BYTES = 8 * 1024 * 1024
EXTRACT_OBJECTS = 64
EXTRACT_BYTES = 8 * 1024 * 1024
EXTRACT_S = 1.0
"""Time after which no further text is extracted before the next step, so that the index keeps up."""
DECODED_AT_ONCE = 2
"""`decode` reads one content at a time; the next one waits for it in the kernel."""
COLLECT_OBJECTS = 500
PAUSE_S, IDLE_S = 1.0, 60.0
WORD = re.compile(r"[A-Za-zÀ-ɏЀ-ӿ][\wÀ-ɏЀ-ӿ]{3,39}")
MAX_REPORTED = 100
MAX_WORDS = 4000
"""Maximum number of words per text that are stored for spelling correction."""

_log = logging.getLogger("linckia.documents")


@dataclass(frozen=True, slots=True)
class Work:
    """Contents of the outbox by the work they need."""

    ids: list[int] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    long: list[int] = field(default_factory=list)
    encoded: list[int] = field(default_factory=list)
    texts: list[tuple[int, bytes]] = field(default_factory=list)


class Indexing:
    """The background task.  It calls `extracted` when the text of a content was extracted, so that it can be fed."""

    def __init__(self, env: Environment, store: Store, adding: Adding, extracted: Callable[[], None]) -> None:
        self._env = env
        self._store = store
        self._adding = adding
        self._wake = trio.Event()
        self._extracting = trio.Lock()
        self._extracted = extracted
        self.waiting: str | None = None
        """Why work is blocked; None if it is not."""

    def hurry(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Run until cancelled; may be run again.  Raises DiskFull."""
        await self._env.after_the_rush()
        await self._try(self._collect_chunks)
        backoff = Backoff(PAUSE_S, IDLE_S)
        while True:
            self._wake = trio.Event()
            await self._adding.give_way()
            self.waiting = None
            # Run each step on its own, so that damage to one part of the packs does not block the others.
            worked = [await self._try(step) for step in (self.extract_some, self._index_some, self._collect_some)]
            if any(worked):
                backoff.succeeded()
                continue
            if self.waiting is None:
                self._store.caught_up()
                await self._try(self._store.tidy)
            with trio.move_on_after(backoff.pause_s() if self.waiting else IDLE_S):
                await self._wake.wait()

    async def _try(self, step: Callable[[], Awaitable[object]]) -> bool:
        """Run a step.  Returns whether there was work, and False if the database cannot be read.  Raises DiskFull."""
        try:
            return bool(await step())
        except DiskFull:
            raise
        except LinckiaError as error:
            if self.waiting is None:
                _log.error("background work on the store is blocked: %s", error)
            self.waiting = str(error)
            return False

    async def extract_some(self) -> bool:
        """Extract the texts of the next contents, for about EXTRACT_S.  Returns whether any was waiting."""
        async with self._extracting:
            due = await self._store.read(_due)
            if due:
                await _Extraction(self._env, self._store, due).run()
                self.hurry()
                self._extracted()
            return bool(due)

    async def without_text(self, ids: list[int]) -> list[str]:
        """Return the first of these contents that lack text or part of it, each with the known reason."""

        def told(db: apsw.Connection) -> list[str]:
            query = (
                "SELECT path, problem FROM carray(?) AS one JOIN object ON object.id = one.value"
                " JOIN document ON document.object = object.id WHERE problem IS NOT NULL ORDER BY document.id LIMIT ?"
            )
            return [f"{path}: {problem}" for path, problem in db.execute(query, (tables.ids(ids), MAX_REPORTED))]

        return await self._store.read(told) if ids else []

    async def settled(self, ids: list[int], patience_s: float) -> int:
        """Wait for text extraction of these contents, at most `patience_s`.  Returns how many are not done."""

        def waiting(db: apsw.Connection) -> int:
            query = "SELECT count(*) FROM carray(?) AS one JOIN object ON id = one.value WHERE text_state=?"
            return int(db.execute(query, (tables.ids(ids), TEXT_WAITING)).get)

        left = len(ids)
        # The contents are stored, so an error in extraction must not fail the call.
        with trio.move_on_after(patience_s), contextlib.suppress(LinckiaError):
            # If none is due, the background task has just done the last one.
            while left and (left := await self._store.read(waiting)) and await self.extract_some():
                pass
        if left:
            # Some may have been extracted before the time was up, or the decoder failed.
            with contextlib.suppress(LinckiaError):
                left = await self._store.read(waiting)
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
                        # Stored by an earlier version, or not recognised by its beginning.
                        work.encoded.append(id_)
                    else:
                        work.texts.append((id_, text))
            except DamagedContent:
                # Treat it as unindexed, so that each grep reads it and reports the damage.
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
        # Checked inside the transaction: an upload that starts later cannot have stored a chunk yet.
        return bool(
            await self._store.write(lambda db: objects.collect(db, COLLECT_OBJECTS, chunks=self._adding.receiving == 0))
        )


def _write_index(db: apsw.Connection, work: Work) -> None:
    for id_ in work.encoded:
        parsing.forget(db, id_)
    for id_ in work.gone:
        trigram_index.remove(db, id_)
        db.execute("DELETE FROM unindexed WHERE object=?", (id_,))
        parsing.forget(db, id_)
    db.executemany("INSERT OR IGNORE INTO unindexed(object) VALUES(?)", ((id_,) for id_ in work.long))
    words: Counter[str] = Counter()
    for id_, text in work.texts:
        # After a crash between this write and the outbox's, a content is processed again.
        if db.execute("SELECT 1 FROM done WHERE object=?", (id_,)).fetchone() is not None:
            continue
        trigram_index.put(db, id_, text)
        found = {match.lower() for match in WORD.findall(text.decode("utf-8", "replace"))}
        words.update(sorted(found)[:MAX_WORDS])
    db.executemany(
        "INSERT INTO word(word, objects) VALUES(?, ?) ON CONFLICT(word) DO UPDATE SET objects=objects+excluded.objects",
        sorted(words.items()),
    )


def _strike(db: apsw.Connection, work: Work) -> None:
    query = "UPDATE object SET text_state=? WHERE id IN (SELECT value FROM carray(?))"
    db.execute(query, (TEXT_WAITING, tables.ids(work.encoded)))
    db.execute("DELETE FROM index_outbox WHERE object IN (SELECT value FROM carray(?))", (tables.ids(work.ids),))


class _Extraction:
    """Gets the texts of contents, and stores those that are ready while `decode` reads the next one."""

    def __init__(self, env: Environment, store: Store, due: Sequence[tuple[int, DecodedText | bytes]]) -> None:
        self._env = env
        self._store = store
        self._due = iter(due)
        self._until = trio.current_time() + EXTRACT_S
        self._made: list[tuple[int, DecodedText]] = []
        self._ready = trio.Event()
        self._extracting = DECODED_AT_ONCE
        self._failure: Exception | None = None

    async def run(self) -> None:
        """Raises LinckiaError if a text cannot be extracted now, once the others are stored; or what a write raises."""
        async with trio.open_nursery() as nursery:
            for _ in range(DECODED_AT_ONCE):
                nursery.start_soon(self._extract)
            try:
                await self._settle()
            except Exception as error:  # noqa: BLE001  # raised below, outside the nursery, which would wrap it
                self._failure = error
                nursery.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure

    async def _extract(self) -> None:
        while self._failure is None and trio.current_time() < self._until and (due := next(self._due, None)):
            id_, text = due
            try:
                made = await decoded(self._env.call, DecodeText(data=text)) if isinstance(text, bytes) else text
            except Undecodable as error:
                made = DecodedText(text=None, problem=str(error))
            except LinckiaError as error:
                self._failure = error
                break
            self._made.append((id_, made))
            self._ready.set()
        self._extracting -= 1
        self._ready.set()

    async def _settle(self) -> None:
        while self._extracting or self._made:
            await self._ready.wait()
            self._ready = trio.Event()
            made, self._made = self._made, []
            if made:
                await self._store.write(partial(_settle_all, codec=self._store.codec, made=made))


def _due(db: apsw.Connection) -> list[tuple[int, DecodedText | bytes]]:
    """Return the next contents without text: the text of each, or what `decode` needs for it."""
    found: list[tuple[int, DecodedText | bytes]] = []
    size = 0
    # A content in the outbox has a former text, which has to leave the index first.
    query = (
        "SELECT id FROM object WHERE text_state=? AND id NOT IN (SELECT object FROM index_outbox) ORDER BY id LIMIT ?"
    )
    waiting: list[int] = [id_ for (id_,) in db.execute(query, (TEXT_WAITING, EXTRACT_OBJECTS))]
    for id_ in waiting:
        stored = objects.by_id(db, id_)
        if stored is None:
            continue
        size += stored.size
        if found and size > EXTRACT_BYTES:
            break
        found.append((id_, source(db, stored)))
    return found


def _settle_all(db: apsw.Connection, codec: Codec, made: list[tuple[int, DecodedText]]) -> None:
    for id_, text in made:
        settle(db, codec, id_, text)


def settle(db: apsw.Connection, codec: Codec, id_: int, made: DecodedText) -> None:
    """Store the result of an extraction."""
    data = b"" if made.text is None else made.text.encode("utf-8", "replace")
    state = TEXT_QUARANTINED if made.text is None else TEXT_EXTRACTED if data.strip() else TEXT_NONE
    if state == TEXT_EXTRACTED:
        row = (id_, len(data), codec.pack_plain(data))
        db.execute("INSERT OR REPLACE INTO text(object, size, data) VALUES(?, ?, ?)", row)
    query = "UPDATE object SET text_state=?, problem=?, charset=? WHERE id=?"
    db.execute(query, (state, made.problem, made.charset, id_))


def source(db: apsw.Connection, stored: Stored) -> DecodedText | bytes:
    """Return the text, or the reason for its absence, or the bytes to be decoded by `decode`.  Blocks."""
    if stored.size > MAX_SOURCE_BYTES:
        said = f"too large for text extraction: {stored.size} bytes, the limit is {MAX_SOURCE_BYTES}"
        return DecodedText(text=None, problem=said)
    try:
        data = b"".join(objects.stream(db, stored))
    except DamagedContent as error:
        return DecodedText(text=None, problem=str(error))
    if _needs_decoding(stored):
        return data
    found = charset_of(data)
    text = found.decode(data)
    charset = None if found.reason == "utf-8" else f"{found.codec} ({found.reason})"
    return _of_page(text, charset) if base_type(stored.mime) in PAGE_TYPES else DecodedText(text=text, charset=charset)


def _needs_decoding(stored: Stored) -> bool:
    return not stored.is_text or stored.mime in TEXTUAL_TYPES.values()


def _of_page(source: str, charset: str | None) -> DecodedText:
    """Return the visible text of a page."""
    text = plain(source, MAX_TEXT_CHARACTERS)
    problem = None if text else "it has no visible text"
    if len(source) > MAX_TEXT_CHARACTERS:
        problem = f"only the first {MAX_TEXT_CHARACTERS} of {len(source)} characters are read"
    return DecodedText(text=text, problem=problem, charset=charset)
