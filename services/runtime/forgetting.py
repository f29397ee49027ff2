"""A feed of the search for what is deleted for good: that is done once no file of either side holds it.

Deletions are counted in the settings of the service's database. Once the search was told of them, the log of that
database is emptied, and the search scrubs its files.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import apsw
import trio

from linckia.proto.ops.retrieve import RetrieveScrub
from linckia.services.runtime.database import Database
from linckia.services.runtime.handlers import Environment
from linckia.services.runtime.search_feed import Due, SearchFeed

_SCRUB, _SCRUBBED = "scrub", "scrubbed"
"""Names of the settings that count deletions for good, and those of them that no file of the search holds any more."""


@dataclass(frozen=True, slots=True)
class _Scrub(Due):
    """Both sides' files are to be scrubbed."""


class ForgettingFeed(SearchFeed):
    """As `SearchFeed`, of which `due` comes first."""

    def __init__(self, env: Environment, database: Database, collection: str, *, gather_s: float = 0.0) -> None:
        super().__init__(env, database, collection, gather_s=gather_s)
        self._database = database

    async def forgotten(self, patience_s: float) -> bool:
        """Until no file of the search holds what has been deleted by now, at most `patience_s`; answers whether so."""
        mine = (await self.database.read(_scrubs))[0]
        return await self.outbox.until(partial(self.database.read, lambda db: _scrubs(db)[1] >= mine), patience_s)

    async def take(self) -> Due | None:
        return await self.database.read(lambda db: self.due(db) or _scrub(db))

    async def deliver(self, due: Due) -> bool:
        if isinstance(due, _Scrub):
            while True:
                if await self._database.checkpoint():
                    break
                # A reader still needs the log; it ends.
                await trio.sleep(0.25)
            await self.env.call(RetrieveScrub(collection=self.collection))
        return await super().deliver(due)


def owe_scrub(db: apsw.Connection) -> None:
    """In the transaction that deletes for good."""
    db.execute("INSERT OR REPLACE INTO setting(name, value) VALUES(?, ?)", (_SCRUB, str(_scrubs(db)[0] + 1)))


def _scrub(db: apsw.Connection) -> Due | None:
    owed, done = _scrubs(db)
    # What is deleted meanwhile is still owed after it.
    return None if owed == done else _Scrub(settings=((_SCRUBBED, str(owed)),))


def _scrubs(db: apsw.Connection) -> tuple[int, int]:
    """How many deletions for good there were, and how many of them the search's files do not hold any more."""
    found = dict(db.execute("SELECT name, value FROM setting WHERE name IN (?, ?)", (_SCRUB, _SCRUBBED)))
    # Of an earlier version: there, and empty.
    return int(found.get(_SCRUB, "0") or 1), int(found.get(_SCRUBBED, "0"))
