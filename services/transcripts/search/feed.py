"""Telling the search what was said, through any crash of either side.

Every new node leaves its number in an outbox, in the transaction that keeps it, and every deleted one its hash. This
task takes them from there, puts them into the search (or drops them from it), and strikes them out once that has
them on disk; killed in between it does the same again, which changes nothing. Where the search is found to hold another
number of turns than it was told of (its folder was lost, or put back from a copy), both sides are compared.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from proto.errors import LinckiaError
from proto.ops.retrieve import (
    Group,
    Item,
    RetrieveDelete,
    RetrieveGroups,
    RetrievePut,
    RetrieveScrub,
    RetrieveStatus,
)
from services.runtime.handlers import Environment
from services.transcripts.messages import calls_text, spoken_text
from services.transcripts.search.passages import Stripper, pieces
from services.transcripts.store import forest
from services.transcripts.store.database import Store

COLLECTION = "transcripts"
BATCH = 200
BATCH_CHARS = 2_000_000
SCRUB, SCRUBBED = "scrub", "scrubbed"
"""Names of the settings that count deletions for good, and those of them that no file of the search holds any more."""

GATHER_S = 0.1
"""How long what is new waits for more of it, where nobody waits for the search to know: a hundred turns cost the search
little more than one."""

FIRST_PAUSE_S = 0.25
LAST_PAUSE_S = 15.0

CALLS = "calls"
"""Key of the piece that names the tools which a turn called: found by words alone."""


@dataclass(frozen=True, slots=True)
class Due:
    """What the search has still to be told."""

    numbers: tuple[int, ...]
    put: list[Group]
    drop: list[str]


class Feed:
    """The task. `waiting` says why it waits at the moment; None where it does not."""

    def __init__(self, env: Environment, store: Store, strip: Stripper) -> None:
        self._env = env
        self._store = store
        self._strip = strip
        self._compared = False
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._passed = trio.Condition()
        self._wanted = trio.Event()
        self.waiting: str | None = None

    async def run(self) -> None:
        """Work until `stop`, or until cancelled."""
        pause_s = FIRST_PAUSE_S
        try:
            with self._scope:
                await self._env.after_the_rush()
                while True:
                    self._store.outbox_filled = trio.Event()
                    self._wanted = trio.Event()
                    try:
                        while await self._step():
                            pause_s = FIRST_PAUSE_S
                        self.waiting = None
                        await self._tell()
                        await self._store.outbox_filled.wait()
                        with trio.move_on_after(GATHER_S):
                            await self._wanted.wait()
                    except LinckiaError as error:
                        # Who was away may have come back with less than it had.
                        self._compared = False
                        self.waiting = f"the search is not available: {error}"
                        await self._tell()
                        await trio.sleep(pause_s)
                        pause_s = min(2 * pause_s, LAST_PAUSE_S)
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """End the task; once this returns it uses the database no more."""
        self._scope.cancel()
        with trio.CancelScope(shield=True):
            await self._ended.wait()

    async def caught_up(self, patience_s: float) -> int:
        """Until the search has been told all that is kept now, at most `patience_s`; answers how much it has not."""
        if not (last := (await self._store.read(behind)).last):
            return 0
        await self._passes(lambda db: not 0 < behind(db).first <= last, patience_s)
        return await self._store.read(lambda db: behind(db, last).count)

    async def forgotten(self, patience_s: float) -> bool:
        """Until no file of the search holds what has been deleted by now, at most `patience_s`; answers whether so."""
        mine = (await self._store.read(scrubs))[0]
        await self._passes(lambda db: scrubs(db)[1] >= mine, patience_s)
        return (await self._store.read(scrubs))[1] >= mine

    async def _passes(self, condition: Callable[[sqlite3.Connection], bool], patience_s: float) -> None:
        """Until `condition`, or until the search turns out to be away, at most `patience_s`."""
        self._wanted.set()
        with trio.move_on_after(patience_s):
            async with self._passed:
                # Looked at with the condition held, so that no step is missed between here and the wait.
                while not self.waiting and not await self._store.read(condition):
                    await self._passed.wait()

    async def _tell(self) -> None:
        async with self._passed:
            self._passed.notify_all()

    async def _step(self) -> bool:
        """Tell the search one batch; answers whether there was any."""
        due = await self._store.read(lambda db: take(db, self._strip))
        if not due.numbers:
            if not self._compared:
                await self._compare()
                self._compared = True
                return True
            owed, done = await self._store.read(scrubs)
            if owed == done:
                return False
            if not await self._store.scrub():
                # Somebody still reads a state of before, which ends.
                await trio.sleep(FIRST_PAUSE_S)
                return True
            await self._env.call(RetrieveScrub(collection=COLLECTION))
            # What was deleted meanwhile is still owed.
            await self._store.write(lambda db: _set(db, SCRUBBED, owed))
            await self._tell()
            return True
        if due.put:
            await self._env.call(RetrievePut(collection=COLLECTION, groups=due.put))
        if due.drop:
            await self._env.call(RetrieveDelete(collection=COLLECTION, groups=due.drop))
        await self._store.write(lambda db: strike(db, due.numbers))
        await self._tell()
        return True

    async def _compare(self) -> None:
        """Have told anew what the search should have and has not, and dropped what it should not have."""
        status = await self._env.call(RetrieveStatus(collection=COLLECTION))
        if status.groups == await self._store.read(told):
            return
        theirs: set[str] = set()
        after, more = "", True
        while more:
            page = await self._env.call(RetrieveGroups(collection=COLLECTION, after=after))
            theirs.update(page.ids)
            more = page.more and bool(page.ids)
            after = page.ids[-1] if page.ids else after
        await self._store.write(lambda db: put_right(db, theirs))


@dataclass(frozen=True, slots=True)
class Behind:
    """The outbox: how much is in it, and the first and the last number."""

    count: int
    first: int
    last: int


def behind(db: sqlite3.Connection, last: int = 2**62) -> Behind:
    """What of the outbox came no later than `last`."""
    row = db.execute(
        "SELECT count(*), coalesce(min(number), 0), coalesce(max(number), 0) FROM outbox WHERE number<=?", (last,)
    ).fetchone()
    return Behind(int(row[0]), int(row[1]), int(row[2]))


def told(db: sqlite3.Connection) -> int:
    """How many turns the search has been told of."""
    row = db.execute(
        "SELECT (SELECT count(*) FROM node WHERE found)"
        " - (SELECT count(*) FROM outbox JOIN node USING(node_id) WHERE found)"
    ).fetchone()
    return int(row[0])


def put_right(db: sqlite3.Connection, theirs: set[str]) -> None:
    """Into the outbox with whatever the two sides differ in."""
    for node_id, hash_ in db.execute("SELECT node_id, hash FROM node WHERE found").fetchall():
        if hash_.hex() in theirs:
            theirs.discard(hash_.hex())
        else:
            db.execute("INSERT INTO outbox(node_id, hash) VALUES(?, ?)", (node_id, hash_))
    strange = [digest for id_ in theirs if (digest := forest.digest_of(id_)) is not None]
    db.executemany("INSERT INTO outbox(node_id, hash) VALUES(NULL, ?)", ((digest,) for digest in strange))


def take(db: sqlite3.Connection, strip: Stripper) -> Due:
    """The next that the search has to be told."""
    rows = db.execute("SELECT number, node_id, hash FROM outbox ORDER BY number LIMIT ?", (BATCH,)).fetchall()
    held = {node.node_id: node for node in forest.nodes(db, [node_id for _, node_id, _ in rows if node_id])}
    roots = _root_hashes(db, {node.root for node in held.values()})
    numbers: list[int] = []
    put: dict[str, Group] = {}
    drop: dict[str, None] = {}
    chars = 0
    for number, node_id, hash_ in rows:
        node = held.get(node_id)
        group = None if node is None else group_of(node, roots[node.root], strip)
        # What came last of one hash is what counts.
        put.pop(hash_.hex(), None)
        drop.pop(hash_.hex(), None)
        if group is not None and group.items:
            chars += sum(len(item.text) for item in group.items)
            put[hash_.hex()] = group
        else:
            drop[hash_.hex()] = None
        numbers.append(number)
        if chars > BATCH_CHARS:
            break
    return Due(tuple(numbers), list(put.values()), list(drop))


def scrubs(db: sqlite3.Connection) -> tuple[int, int]:
    """How many deletions for good there were, and how many of them the search's files do not show any more."""
    found = dict(db.execute("SELECT name, value FROM setting WHERE name IN (?, ?)", (SCRUB, SCRUBBED)))
    # Of an earlier version: there, and empty.
    return int(found.get(SCRUB, "0") or 1), int(found.get(SCRUBBED, "0"))


def owe_scrub(db: sqlite3.Connection) -> None:
    """In the transaction that deletes."""
    _set(db, SCRUB, scrubs(db)[0] + 1)


def _set(db: sqlite3.Connection, name: str, value: int) -> None:
    db.execute("INSERT OR REPLACE INTO setting(name, value) VALUES(?, ?)", (name, str(value)))


def _root_hashes(db: sqlite3.Connection, roots: set[int]) -> dict[int, str]:
    marks = ",".join("?" * len(roots))
    rows = db.execute(f"SELECT node_id, hash FROM node WHERE node_id IN ({marks})", list(roots))
    return {int(node_id): hash_.hex() for node_id, hash_ in rows}


def group_of(node: forest.Node, root: str, strip: Stripper) -> Group:
    """A turn as the search has it."""
    blocks = node.blocks
    items = [
        Item(key=f"{index:04}", text=text, heading=node.role, embed=embedded)
        for index, (text, embedded) in enumerate(pieces(strip(spoken_text(blocks))))
    ]
    if called := calls_text(blocks):
        items.append(Item(key=CALLS, text=called[:16_000], heading=node.role, embed=False))
    return Group(
        id=node.hash,
        items=items,
        metadata={"role": node.role, "agent": node.agent, "project": node.project, "at": node.at, "root": root},
    )


def strike(db: sqlite3.Connection, numbers: Sequence[int]) -> None:
    """The search has these."""
    db.executemany("DELETE FROM outbox WHERE number=?", ((number,) for number in numbers))
