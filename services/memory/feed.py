"""Telling the search what is remembered: the feed of the outbox, see `services.runtime.forgetting`."""

from __future__ import annotations

import apsw

from proto.ops.memory import COLLECTION, SESSION
from proto.ops.retrieve import Group, Item
from services.memory import store
from services.memory.store import Row
from services.runtime.database import Database
from services.runtime.forgetting import ForgettingFeed
from services.runtime.handlers import Environment
from services.runtime.search_feed import Due
from services.runtime.times import NS

BATCH = 500

NEVER = 1e11
"""Unix seconds at which what does not expire does."""


class MemoryFeed(ForgettingFeed):
    """The feed, and the outbox that runs it."""

    def __init__(self, env: Environment, database: Database) -> None:
        super().__init__(env, database, COLLECTION)

    def due(self, db: apsw.Connection) -> Due | None:
        rows = list(db.execute("SELECT number, id FROM outbox ORDER BY number LIMIT ?", (BATCH,)))
        there = store.of_ids(db, [id_ for _, id_ in rows])
        put = [group_of(db, row) for row in there.values()]
        return Due(tuple(n for n, _ in rows), put, [id_ for _, id_ in rows if id_ not in there]) if rows else None

    def put_right(self, db: apsw.Connection, theirs: set[str]) -> list[str]:
        mine = {id_ for (id_,) in db.execute("SELECT id FROM memory")}
        db.executemany("INSERT OR IGNORE INTO outbox(id) VALUES(?)", ((id_,) for id_ in mine - theirs))
        return sorted(theirs - mine)


def group_of(db: apsw.Connection, row: Row) -> Group:
    """A memory as the search has it: `in` names all scopes that it is found in, `of` the one MCP session that may see
    it."""
    labels = {f"{SESSION}:{said.session}" for said in store.sayings(db, row.number) if said.session}
    own = {f"{SESSION} {row.owner}"} if row.owner else set()
    return Group(
        id=row.id,
        items=[Item(key="0", text=row.text)],
        names=" ".join(row.tags),
        metadata={
            "in": sorted({row.place} | labels | own),
            "of": row.owner,
            "scope": row.scope,
            "at": row.at_ns / NS,
            "expires": NEVER if row.expires_ns is None else row.expires_ns / NS,
        },
    )
