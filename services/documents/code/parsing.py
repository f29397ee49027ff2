"""Parse stored code in the background, and index the definitions and uses in each content once.

`decode` does the parsing. A content that crashes it twice on its own counts as parsed and empty. The graph outbox shows
which documents still have to be parsed.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence

import apsw
import trio

from proto.errors import LinckiaError
from proto.ops.decode import (
    CODE_EXTENSIONS,
    CODES_AT_ONCE,
    MAX_CODE_BYTES,
    RENAMED,
    CodeText,
    DecodeCode,
    Parsed,
)
from services.documents.store import objects, texts
from services.documents.store.compress import DamagedContent
from services.documents.store.databases import Store
from services.documents.store.tables import TEXT_WAITING
from services.runtime.calls import Undecodable, decoded
from services.runtime.handlers import Environment

LOOK_AHEAD = 2000
NOTHING = Parsed("none", "none")

_log = logging.getLogger("linckia.documents")


class Parsing:
    """The parser task.  Everything in the graph outbox up to the number `reached` is parsed."""

    def __init__(self, env: Environment, store: Store) -> None:
        self._env = env
        self._store = store
        self._turn = trio.Lock()
        self._generation = store.index.generation
        self.reached = 0

    async def step(self) -> bool:
        """Parse a few contents.  Returns whether there may be more."""
        async with self._turn:
            await self._store.refill()
            if self._generation != self._store.index.generation:
                # The results were lost with the index.
                self._generation, self.reached = self._store.index.generation, 0
            due, reached, has_ended = await self._store.read(self._look)
            if due:
                await self._parse(due)
            self.reached = reached
            return not has_ended

    async def settle(self, patience_s: float) -> int:
        """Parse for at most `patience_s`.  Returns how many documents are left."""
        # Documents that cannot be parsed now, for example because the disk is full, are left.
        with trio.move_on_after(patience_s), contextlib.suppress(LinckiaError):
            while await self.step():
                pass
        query = "SELECT count(*) FROM graph_outbox WHERE number > ?"
        return await self._store.read(lambda db: int(db.execute(query, (self.reached,)).get))

    def _look(self, db: apsw.Connection) -> tuple[list[tuple[int, str]], int, bool]:
        """Find contents to parse.

        Returns the contents with their file extension, the outbox number that has been examined, and whether that is
        the end of the outbox.
        """
        due: dict[int, str] = {}
        reached = self.reached
        count = 0
        for number, object_, extension, state in db.execute(
            "SELECT number, document.object, document.extension, text_state FROM graph_outbox"
            " LEFT JOIN document ON document.id = graph_outbox.document LEFT JOIN object ON object.id = document.object"
            " WHERE number > ? ORDER BY number LIMIT ?",
            (self.reached, LOOK_AHEAD),
        ):
            # A content whose text is still to be decoded is queued again after that.
            is_new = extension in CODE_EXTENSIONS and object_ not in due and state != TEXT_WAITING
            if is_new and db.execute("SELECT 1 FROM idx.code WHERE object=?", (object_,)).get is None:
                if len(due) == CODES_AT_ONCE:
                    return list(due.items()), reached, False
                due[object_] = extension
            reached = number
            count += 1
        return list(due.items()), reached, count < LOOK_AHEAD

    async def _parse(self, due: Sequence[tuple[int, str]]) -> None:
        found = await self._store.read(lambda db: [self._text(db, *one) for one in due])
        parsed = await self._decoded([one for one in found if one is not None])
        parsed.reverse()

        def write(db: apsw.Connection) -> None:
            for (object_, _), one in zip(due, found, strict=True):
                put(db, object_, NOTHING if one is None else parsed.pop())

        await self._store.write_index(write)

    async def _decoded(self, contents: list[CodeText]) -> list[Parsed]:
        if not contents:
            return []
        with contextlib.suppress(Undecodable):
            made = (await decoded(self._env.call, DecodeCode(contents=contents))).contents
            if len(made) == len(contents):
                return made
        if len(contents) == 1:
            _log.error("a content of %d bytes cannot be parsed and will have no symbols", len(contents[0].data))
            return [NOTHING]
        # Parse them one by one to find the culprit.
        return [one for content in contents for one in await self._decoded([content])]

    def _text(self, db: apsw.Connection, object_: int, extension: str) -> CodeText | None:
        try:
            stored = objects.by_id(db, object_)
            if not texts.has_text(stored) or stored.size > MAX_CODE_BYTES:
                return None
            data = b"".join(texts.pieces(db, stored))
        except DamagedContent:
            # Reading the content reports the damage.
            return None
        return CodeText(data, extension) if len(data) <= MAX_CODE_BYTES else None


def put(db: apsw.Connection, object_: int, parsed: Parsed) -> None:
    forget(db, object_)
    db.execute("INSERT INTO code(object, language, family) VALUES(?, ?, ?)", (object_, parsed.language, parsed.family))
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
    renamed = {one.key for one in parsed.references if one.kind == RENAMED}
    note_changed(db, renamed | {one.name for one in parsed.symbols})


def _terms(db: apsw.Connection, texts: set[str]) -> dict[str, int]:
    """Return the ids of these texts, adding missing ones."""
    db.executemany("INSERT OR IGNORE INTO term(text) VALUES(?)", ((text,) for text in sorted(texts)))
    return {text: db.execute("SELECT id FROM term WHERE text=?", (text,)).get for text in texts}


def forget(db: apsw.Connection, object_: int) -> None:
    """Remove the parse results of a content that is gone or will be parsed again."""
    query = "SELECT name FROM symbol WHERE object=?1 UNION SELECT name FROM reference WHERE object=?1 AND kind=?2"
    note_changed(db, {name for (name,) in db.execute(query, (object_, RENAMED))})
    for table in ("symbol", "used", "code"):
        db.execute(f"DELETE FROM {table} WHERE object=?", (object_,))


def note_changed(db: apsw.Connection, names: set[str]) -> None:
    db.executemany("INSERT OR IGNORE INTO changed(name) VALUES(?)", ((name,) for name in sorted(names)))
