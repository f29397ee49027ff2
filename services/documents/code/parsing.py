"""Parsing stored code in the background: what each content defines and uses comes into the index, once.

A content that killed the process while it was parsed is tried once more, alone, and then counts as parsed with nothing
in it.  The outbox of documents for the graph tells which are parsed already, and which still wait.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence

import apsw
import trio

from proto.errors import LinckiaError
from services.documents.code.grammars import EXTENSIONS
from services.documents.code.symbols import MAX_CODE_BYTES, Parsed, parse
from services.documents.store import objects, texts
from services.documents.store.compress import Codec, DamagedContent
from services.documents.store.store import Store

BATCH = 24
LOOK_AHEAD = 2000
MAX_ATTEMPTS = 2
NOTHING = Parsed("none", "none")

_log = logging.getLogger("linckia.documents")


class Parsing:
    """Parses what comes; `reached` is the number in the outbox up to which all is parsed."""

    def __init__(self, store: Store, codec: Codec) -> None:
        self._store = store
        self._codec = codec
        self._turn = trio.Lock()
        self._recovered = False
        self._begun: set[int] = set()
        """Contents whose attempt was counted by this process, which has not died of them."""
        self._generation = store.index.generation
        self.reached = 0

    async def step(self) -> bool:
        """Parse a few contents; answers whether there may be more."""
        async with self._turn:
            await self._store.refill()
            if self._generation != self._store.index.generation:
                # What was parsed has gone with the index.
                self._generation, self.reached = self._store.index.generation, 0
            if not self._recovered:
                await self._recover()
            due, reached, has_ended = await self._store.read(self._look)
            if due:
                await self._parse(due)
            self.reached = reached
            return not has_ended

    async def settle(self, patience_s: float) -> int:
        """Parse on, so long at most; answers how many documents are still to be looked at."""
        # What cannot be parsed now, for want of room, is left.
        with trio.move_on_after(patience_s), contextlib.suppress(LinckiaError):
            while await self.step():
                pass
        query = "SELECT count(*) FROM graph_outbox WHERE number > ?"
        return await self._store.read(lambda db: int(db.execute(query, (self.reached,)).get))

    def _look(self, db: apsw.Connection) -> tuple[list[tuple[int, str]], int, bool]:
        """Contents to parse, with the extension that says how; up to which number of the outbox all documents are
        looked at, and whether that is its end."""
        due: dict[int, str] = {}
        reached = self.reached
        count = 0
        for number, object_, extension in db.execute(
            "SELECT number, document.object, document.extension FROM graph_outbox LEFT JOIN document"
            " ON document.id = graph_outbox.document WHERE number > ? ORDER BY number LIMIT ?",
            (self.reached, LOOK_AHEAD),
        ):
            is_new = extension in EXTENSIONS and object_ not in due
            if is_new and db.execute("SELECT 1 FROM idx.code WHERE object=?", (object_,)).get is None:
                if len(due) == BATCH:
                    return list(due.items()), reached, False
                due[object_] = extension
            reached = number
            count += 1
        return list(due.items()), reached, count < LOOK_AHEAD

    async def _recover(self) -> None:
        """What was being parsed when the process died is parsed again, one by one, or given up."""

        def left(db: apsw.Connection) -> list[tuple[int, int, str]]:
            rows = db.execute(
                "SELECT parsing.object, attempts, coalesce((SELECT extension FROM document WHERE object=parsing.object"
                " LIMIT 1), '') FROM parsing ORDER BY parsing.object"
            )
            return list(rows)

        for object_, attempts, extension in await self._store.read(left):
            if attempts >= MAX_ATTEMPTS and object_ not in self._begun:
                _log.error("content %d: the process died twice while it was parsed; it has no symbols", object_)
                await self._settle([(object_, NOTHING)])
            else:
                await self._parse([(object_, extension)])
        self._recovered = True

    async def _parse(self, due: Sequence[tuple[int, str]]) -> None:
        new = [(object_,) for object_, _ in due if object_ not in self._begun]
        query = (
            "INSERT INTO parsing(object, attempts) VALUES(?, 1) ON CONFLICT(object) DO UPDATE SET attempts=attempts+1"
        )
        await self._store.write(lambda db: db.executemany(query, new).fetchall())
        self._begun.update(object_ for (object_,) in new)
        await self._settle(await self._store.read(lambda db: [self._parsed(db, *one) for one in due]))

    def _parsed(self, db: apsw.Connection, object_: int, extension: str) -> tuple[int, Parsed]:
        try:
            stored = objects.by_id(db, object_)
            if not texts.has_text(stored) or stored.size > MAX_CODE_BYTES:
                return object_, NOTHING
            data = b"".join(texts.pieces(db, self._codec, stored))
        except DamagedContent:
            # Reading it says what is wrong.
            return object_, NOTHING
        return object_, parse(data, extension) or NOTHING

    async def _settle(self, parsed: Sequence[tuple[int, Parsed]]) -> None:
        def write(db: apsw.Connection) -> None:
            for object_, one in parsed:
                put(db, object_, one)

        await self._store.write_index(write)
        done = [(object_,) for object_, _ in parsed]
        await self._store.write(lambda db: db.executemany("DELETE FROM parsing WHERE object=?", done).fetchall())
        self._begun.difference_update(object_ for (object_,) in done)


def put(db: apsw.Connection, object_: int, parsed: Parsed) -> None:
    """Write what a content defines and uses."""
    forget(db, object_)
    db.execute(
        "INSERT INTO code(object, language, family) VALUES(?, ?, ?)",
        (object_, parsed.language, parsed.family),
    )
    first: int = db.execute("SELECT coalesce(max(id), 0) + 1 FROM symbol").get
    db.executemany(
        "INSERT INTO symbol(id, object, name, qualified, kind, first, last, parent) VALUES(?, ?, ?, ?, ?, ?, ?, ?)",
        ((first + index, object_, one.name, one.qualified, one.kind, one.first, one.last,
          0 if one.parent < 0 else first + one.parent) for index, one in enumerate(parsed.symbols)),
    )  # fmt: skip
    terms = _terms(db, {text for one in parsed.references for text in (one.kind, one.key, one.target)})
    db.executemany(
        "INSERT INTO used(object, number, symbol, kind, name, target, tentative) VALUES(?, ?, ?, ?, ?, ?, ?)",
        ((object_, number, 0 if one.symbol < 0 else first + one.symbol, terms[one.kind], terms[one.key],
          terms[one.target], one.tentative) for number, one in enumerate(parsed.references)),
    )  # fmt: skip
    note_changed(db, {one.name for one in parsed.symbols})


def _terms(db: apsw.Connection, texts: set[str]) -> dict[str, int]:
    """Their numbers; those that have none yet are given one, for as long as the index lasts."""
    db.executemany("INSERT OR IGNORE INTO term(text) VALUES(?)", ((text,) for text in sorted(texts)))
    return {text: db.execute("SELECT id FROM term WHERE text=?", (text,)).get for text in texts}


def forget(db: apsw.Connection, object_: int) -> None:
    """A content is gone, or will be parsed again."""
    note_changed(db, {name for (name,) in db.execute("SELECT name FROM symbol WHERE object=?", (object_,))})
    for table in ("symbol", "used", "code"):
        db.execute(f"DELETE FROM {table} WHERE object=?", (object_,))


def note_changed(db: apsw.Connection, names: set[str]) -> None:
    """These names may have another meaning now."""
    db.executemany("INSERT OR IGNORE INTO changed(name) VALUES(?)", ((name,) for name in sorted(names)))
