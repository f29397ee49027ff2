"""The service `memory`: opens the database, feeds the search, and serves calls."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from typing import Annotated

import apsw
import msgspec
from msgspec import Meta

from proto.errors import LinckiaError
from proto.ops.memory import COLLECTION
from proto.ops.retrieve import Group, Item
from services.memory import memory_db, validity
from services.memory.joining import Joining
from services.memory.memory_db import Row
from services.memory.operations import SESSION
from services.memory.recall import Recalling
from services.memory.writing import Writing
from services.runtime.database import Database, Kind
from services.runtime.handlers import Environment, Handlers
from services.shared.forgetting import ForgettingFeed
from services.shared.search_feed import Due
from services.shared.times import DAY_NS, NS

BATCH = 500


class MemorySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings table `[services.memory]`."""

    expired_days: Annotated[int, Meta(ge=0, le=36_500, description="How long expired memories are still listed")] = 30
    stale_days: Annotated[
        int, Meta(ge=0, le=36_500, description="After how long without being said again a memory is stale; 0 is never")
    ] = 365


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Open the service; it is ready once the database is open, even a damaged one."""
    settings = env.settings_as(MemorySettings)
    kept_ns = settings.expired_days * DAY_NS
    database = await env.opened(
        Database,
        env.data_dir / "memory.db",
        memory_db.SCHEMA,
        kind=Kind.SOURCE,
        readers=4,
        pragmas={"secure_delete": 1},
        on_damage=env.damaged,
        keeps_keys=True,
    )
    env.keeps_keys_in(database)
    with contextlib.suppress(LinckiaError):  # Existing memories are served even if the disk is full or damaged.
        await database.write(lambda db: validity.purge(db, time.time_ns() - kept_ns))
    feed = MemoryFeed(env, database, COLLECTION)
    env.background.start_soon(feed.run)
    yield Handlers(
        Writing(database, feed, kept_ns),
        Recalling(database, feed, settings.stale_days * DAY_NS),
        Joining(database, feed, kept_ns),
    )


class MemoryFeed(ForgettingFeed):
    """Feeds memories to the search."""

    def due(self, db: apsw.Connection) -> Due | None:
        rows = list(db.execute("SELECT number, id FROM outbox ORDER BY number LIMIT ?", (BATCH,)))
        there = memory_db.of_ids(db, [id_ for _, id_ in rows])
        put = [group_of(db, row) for row in there.values()]
        return Due(tuple(n for n, _ in rows), put, [id_ for _, id_ in rows if id_ not in there]) if rows else None

    def stored(self, db: apsw.Connection) -> int:
        return int(db.execute("SELECT count(*) FROM memory").get)

    def reconcile(self, db: apsw.Connection, theirs: set[str]) -> list[str]:
        mine = {id_ for (id_,) in db.execute("SELECT id FROM memory")}
        db.executemany("INSERT OR IGNORE INTO outbox(id) VALUES(?)", ((id_,) for id_ in mine - theirs))
        return sorted(theirs - mine)


def group_of(db: apsw.Connection, row: Row) -> Group:
    """Build the search entry of a memory.

    `in` names all scopes in which it can be found, `of` the only MCP session that may see it.
    """
    labels = {f"{SESSION}:{said.session}" for said in memory_db.sayings(db, row.number) if said.session}
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
            # Its end, for whichever reason. `begins` is there only if it is stated.
            "expires": validity.until_s(row),
            "holds_from": validity.seconds(validity.start_ns(db, row)),
            **({} if row.valid_from_ns is None else {"begins": validity.seconds(row.valid_from_ns)}),
        },
    )
