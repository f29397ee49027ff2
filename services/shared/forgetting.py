"""A search feed that also handles permanent deletion, which is complete once no file of either service holds the data.

The settings of the service's database count permanent deletions. After the search has been told, the log of that
database is truncated, and the search scrubs its files.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import apsw
import trio

from proto.ops.retrieve import RetrieveScrub
from services.runtime.database import Database
from services.runtime.handlers import Environment
from services.shared.search_feed import Due, SearchFeed

_SCRUB, _SCRUBBED = "scrub", "scrubbed"
"""Settings that count permanent deletions, and how many of these no search file holds any more."""


@dataclass(frozen=True, slots=True)
class _Scrub(Due):
    """The files of both services need scrubbing."""


class ForgettingFeed(SearchFeed):
    """A `SearchFeed` that scrubs once nothing else from `due` is left."""

    def __init__(self, env: Environment, database: Database, collection: str, *, gather_s: float = 0.0) -> None:
        super().__init__(env, database, collection, gather_s=gather_s)
        self._database = database

    async def scrubbed(self, patience_s: float) -> bool:
        """Wait at most `patience_s` until no search file holds data deleted before this call. Returns True if done."""
        mine = (await self.database.read(_scrubs))[0]
        return await self.outbox.until(partial(self.database.read, lambda db: _scrubs(db)[1] >= mine), patience_s)

    def taken_over(self, db: apsw.Connection) -> None:
        super().taken_over(db)
        # What was forgotten meanwhile is scrubbed here too.
        request_scrub(db)

    async def take(self) -> Due | None:
        return await self.database.read(lambda db: self.due(db) or _scrub(db))

    async def deliver(self, due: Due) -> bool:
        if isinstance(due, _Scrub):
            while True:
                if await self._database.checkpoint():
                    break
                # A reader still needs the log and will soon end.
                await trio.sleep(0.25)
            await self.env.call(RetrieveScrub(collection=self.collection))
        return await super().deliver(due)


def request_scrub(db: apsw.Connection) -> None:
    """Record a permanent deletion; call in the transaction that deletes."""
    db.execute("INSERT OR REPLACE INTO setting(name, value) VALUES(?, ?)", (_SCRUB, str(_scrubs(db)[0] + 1)))


def _scrub(db: apsw.Connection) -> Due | None:
    owed, done = _scrubs(db)
    # Deletions that arrive meanwhile remain due.
    return None if owed == done else _Scrub(settings=((_SCRUBBED, str(owed)),))


def _scrubs(db: apsw.Connection) -> tuple[int, int]:
    """Return how many permanent deletions there were, and how many of them the search has scrubbed."""
    found = dict(db.execute("SELECT name, value FROM setting WHERE name IN (?, ?)", (_SCRUB, _SCRUBBED)))
    # An earlier version wrote an empty value.
    return int(found.get(_SCRUB, "0") or 1), int(found.get(_SCRUBBED, "0"))
