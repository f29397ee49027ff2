"""Telling the search what was said: the feed of the outbox, see `services.runtime.outbox`.

Every new node leaves its number in the table `outbox`, in the transaction that keeps it, and every deleted one its
hash. Where the search holds another number of turns than it was told of (its folder was lost, or restored from a
copy), both sides' lists are compared. A deletion is done once no file of either side holds what was deleted: the feed
empties the log of this database, and has the search scrub its files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import apsw
import trio

from proto.ops.retrieve import (
    MAX_WAIT_S,
    Group,
    Item,
    RetrieveDelete,
    RetrieveEpoch,
    RetrieveGroups,
    RetrievePut,
    RetrieveScrub,
    RetrieveStatus,
)
from services.runtime.database import Database
from services.runtime.handlers import Environment
from services.runtime.outbox import Feed, Outbox, pages
from services.transcripts import forest
from services.transcripts.messages import calls_text, spoken_text
from services.transcripts.passages import Stripper, pieces

COLLECTION = "transcripts"
BATCH = 200
BATCH_CHARS = 2_000_000
SCRUB, SCRUBBED = "scrub", "scrubbed"
"""Names of the settings that count deletions for good, and those of them that no file of the search holds any more."""

GATHER_S = 0.1
"""How long a first new turn waits for more of them, unless a search waits for it: a hundred turns cost the search
little more than one."""


@dataclass(frozen=True, slots=True)
class Due:
    """What the search is to be told next; without numbers, that its files are to be scrubbed."""

    numbers: tuple[int, ...] = ()
    put: list[Group] = field(default_factory=list)
    drop: list[str] = field(default_factory=list)
    scrub: int = 0


class SearchFeed(Feed[Due]):
    """The feed, and the outbox that runs it."""

    def __init__(self, env: Environment, database: Database, strip: Stripper) -> None:
        self._env = env
        self._database = database
        self._strip = strip
        self.outbox = Outbox(env, "the search", self, gather_s=GATHER_S)

    async def caught_up(self, patience_s: float) -> int:
        """Until the search knows all that is kept now, at most `patience_s`; answers how much it does not know."""
        if not (last := (await self._database.read(behind)).last):
            return 0
        told = partial(self._database.read, lambda db: not 0 < behind(db).first <= last)
        await self.outbox.until(told, patience_s)
        return await self._database.read(lambda db: behind(db, last).waiting)

    async def forgotten(self, patience_s: float) -> bool:
        """Until no file of the search holds what has been deleted by now, at most `patience_s`; answers whether so."""
        mine = (await self._database.read(scrubs))[0]
        return await self.outbox.until(partial(self._database.read, lambda db: scrubs(db)[1] >= mine), patience_s)

    async def epoch(self, delivered: str) -> str:
        """See `Outbox.watch_epoch`."""
        asked = RetrieveEpoch(collection=COLLECTION, filled=delivered, wait_s=MAX_WAIT_S)
        return (await self._env.call(asked, timeout_s=MAX_WAIT_S + 15)).epoch

    async def compare(self) -> None:
        status = await self._env.call(RetrieveStatus(collection=COLLECTION))
        if status.groups != await self._database.read(told):
            theirs = await pages(lambda after: self._env.call(RetrieveGroups(collection=COLLECTION, after=after)))
            await self._database.write(lambda db: put_right(db, set(theirs)))

    async def take(self) -> Due | None:
        return await self._database.read(lambda db: take(db, self._strip))

    async def deliver(self, due: Due) -> bool:
        if due.scrub:
            while True:
                if await self._database.checkpoint():
                    break
                # A reader still needs the log; it ends.
                await trio.sleep(0.25)
            await self._env.call(RetrieveScrub(collection=COLLECTION))
        if due.put:
            await self._env.call(RetrievePut(collection=COLLECTION, groups=due.put))
        if due.drop:
            await self._env.call(RetrieveDelete(collection=COLLECTION, groups=due.drop))
        return True

    async def strike(self, due: Due) -> None:
        def change(db: apsw.Connection) -> None:
            if due.scrub:
                # What was deleted meanwhile is still owed.
                _set(db, SCRUBBED, due.scrub)
            db.executemany("DELETE FROM outbox WHERE number=?", ((number,) for number in due.numbers))

        await self._database.write(change)


class Behind(NamedTuple):
    """The outbox: how much is in it, and the first and the last number."""

    waiting: int
    first: int
    last: int


def behind(db: apsw.Connection, last: int = 2**62) -> Behind:
    """What of the outbox came no later than `last`."""
    query = "SELECT count(*), coalesce(min(number), 0), coalesce(max(number), 0) FROM outbox WHERE number<=?"
    return Behind(*next(db.execute(query, (last,))))


def told(db: apsw.Connection) -> int:
    """How many turns the search has been told of."""
    waiting = "SELECT count(*) FROM outbox JOIN node USING(node_id) WHERE found"
    return int(db.execute(f"SELECT (SELECT count(*) FROM node WHERE found) - ({waiting})").get)


def put_right(db: apsw.Connection, theirs: set[str]) -> None:
    """Into the outbox with what the two sides differ in, unless it waits there already."""
    queued = {node_id for (node_id,) in db.execute("SELECT node_id FROM outbox WHERE node_id IS NOT NULL")}
    mine = {
        hash_.hex(): (node_id, hash_) for node_id, hash_ in db.execute("SELECT node_id, hash FROM node WHERE found")
    }
    rows = [row for name, row in mine.items() if name not in theirs and row[0] not in queued]
    rows += [(None, digest) for name in theirs - mine.keys() if (digest := forest.digest_of(name)) is not None]
    db.executemany("INSERT INTO outbox(node_id, hash) VALUES(?, ?)", rows)


def take(db: apsw.Connection, strip: Stripper) -> Due | None:
    """The next that the search has to be told; None where it knows all."""
    rows = list(db.execute("SELECT number, node_id, hash FROM outbox ORDER BY number LIMIT ?", (BATCH,)))
    if not rows:
        owed, done = scrubs(db)
        return None if owed == done else Due(scrub=owed)
    held = {node.node_id: node for node in forest.nodes(db, [node_id for _, node_id, _ in rows if node_id])}
    numbers: list[int] = []
    told: dict[str, Group | None] = {}  # what came last of one hash is what counts
    chars = 0
    for number, node_id, hash_ in rows:
        node = held.get(node_id)
        group = None
        if node is not None and (root := forest.place(db, node.root)) is not None:
            group = group_of(node, root.hash.hex(), strip)
        told.pop(hash_.hex(), None)
        told[hash_.hex()] = group if group is not None and group.items else None
        chars += sum(len(item.text) for item in group.items) if group is not None else 0
        numbers.append(number)
        if chars > BATCH_CHARS:
            break
    put = [group for group in told.values() if group is not None]
    return Due(tuple(numbers), put, [name for name, group in told.items() if group is None])


def scrubs(db: apsw.Connection) -> tuple[int, int]:
    """How many deletions for good there were, and how many of them the search's files do not hold any more."""
    found = dict(db.execute("SELECT name, value FROM setting WHERE name IN (?, ?)", (SCRUB, SCRUBBED)))
    # Of an earlier version: there, and empty.
    return int(found.get(SCRUB, "0") or 1), int(found.get(SCRUBBED, "0"))


def owe_scrub(db: apsw.Connection) -> None:
    """In the transaction that deletes."""
    _set(db, SCRUB, scrubs(db)[0] + 1)


def _set(db: apsw.Connection, name: str, value: int) -> None:
    db.execute("INSERT OR REPLACE INTO setting(name, value) VALUES(?, ?)", (name, str(value)))


def group_of(node: forest.Node, root: str, strip: Stripper) -> Group:
    """A turn as the search has it."""
    blocks = node.blocks
    items = [
        Item(key=f"{index:04}", text=text, heading=node.role, embed=embedded)
        for index, (text, embedded) in enumerate(pieces(strip(spoken_text(blocks))))
    ]
    if called := calls_text(blocks):
        # Found by words alone.
        items.append(Item(key="calls", text=called[:16_000], heading=node.role, embed=False))
    return Group(
        id=node.hash,
        items=items,
        metadata={"role": node.role, "agent": node.agent, "project": node.project, "at": node.at, "root": root},
    )
