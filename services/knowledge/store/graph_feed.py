"""Telling the graph what notes there are and how they are linked, through any crash of either side.

Every change of a note or an edge leaves the note's id in an outbox, in the same transaction. This task takes ids from
it, states each note as it is now, and strikes them out once the graph has them on disk; killed in between, it states
them again, which changes nothing. The graph's database has a name; under another one than was fed before, both sides
are compared and every note is stated anew.
"""

from __future__ import annotations

import apsw
from collections.abc import Iterable
from dataclasses import dataclass

import trio

from proto.errors import LinckiaError
from proto.ops.graph import GraphDelete, GraphNodes, GraphPut, NodeState, Outgoing
from services.knowledge.store import nodes
from services.knowledge.store.store import Store
from services.runtime.handlers import Environment

CORPUS = "notes"
BATCH = 256
FIRST_PAUSE_S = 0.25
LAST_PAUSE_S = 15.0

_EPOCH = "graph_epoch"


@dataclass(frozen=True, slots=True)
class Due:
    """What the graph has still to be told, by number in the outbox; `behind` counts what comes after it."""

    numbers: tuple[int, ...]
    states: list[NodeState]
    gone: list[str]
    behind: int


class GraphFeed:
    """The task.

    `news` is to be notified when something may have come into the outbox.
    """

    def __init__(self, env: Environment, store: Store, news: trio.Condition) -> None:
        self._env = env
        self._store = store
        self._news = news
        self._epoch: str | None = None
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self.waiting: str | None = None
        """Why the feed waits at the moment."""

    async def run(self) -> None:
        """Work until `stop`, or until cancelled."""
        pause_s = FIRST_PAUSE_S
        try:
            with self._scope:
                await self._env.after_the_rush()
                while True:
                    try:
                        while await self._step():
                            pause_s = FIRST_PAUSE_S
                        self.waiting = None
                        async with self._news:
                            await self._news.wait()
                    except (LinckiaError, sqlite3.OperationalError) as error:
                        # Who was away may have come back as another.
                        self._epoch = None
                        self.waiting = f"the graph is not available: {error}"
                        await trio.sleep(pause_s)
                        pause_s = min(2 * pause_s, LAST_PAUSE_S)
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """End the task; once this returns it uses the database no more."""
        self._scope.cancel()
        with trio.CancelScope(shield=True):
            await self._ended.wait()

    async def _step(self) -> bool:
        """Tell the graph one batch; answers whether there was any."""
        if self._epoch is None:
            await self._compare()
        due = await self._store.read(take)
        if not due.numbers:
            return False
        epochs: set[str] = set()
        if due.states:
            put = GraphPut(corpus=CORPUS, nodes=due.states, behind=due.behind + len(due.gone))
            epochs.add((await self._env.call(put)).epoch)
        if due.gone:
            epochs.add((await self._env.call(GraphDelete(corpus=CORPUS, nodes=due.gone, behind=due.behind))).epoch)
        if epochs == {self._epoch}:
            await self._store.write(lambda connection: strike(connection, due.numbers))
        else:
            self._epoch = None
        return True

    async def _compare(self) -> None:
        """Have everything stated anew if the graph is not the one that was fed."""
        page = await self._env.call(GraphNodes(corpus=CORPUS, limit=0))
        if page.epoch != await self._store.read(lambda connection: nodes.setting(connection, _EPOCH)):
            theirs: list[str] = []
            more = True
            while more:
                page = await self._env.call(GraphNodes(corpus=CORPUS, after=theirs[-1] if theirs else ""))
                theirs += page.ids
                more = page.more and bool(page.ids)
            epoch = page.epoch
            await self._store.write(lambda connection: begin(connection, epoch, theirs))
        self._epoch = page.epoch


def begin(connection: apsw.Connection, epoch: str, theirs: Iterable[str]) -> None:
    """Put every note, and every id that the graph has, into the outbox: from here on it is fed under this name."""
    connection.execute("INSERT OR REPLACE INTO graph_outbox(id) SELECT id FROM node")
    connection.executemany("INSERT OR IGNORE INTO graph_outbox(id) VALUES(?)", ((id_,) for id_ in theirs))
    nodes.set_setting(connection, _EPOCH, epoch)


def take(connection: apsw.Connection) -> Due:
    """The next notes that the graph has to be told, as they are now."""
    rows = connection.execute("SELECT number, id FROM graph_outbox ORDER BY number LIMIT ?", (BATCH,)).fetchall()
    waiting = connection.execute("SELECT count(*) FROM graph_outbox").fetchone()[0]
    states: list[NodeState] = []
    gone: list[str] = []
    for _, id_ in rows:
        node = nodes.find(connection, id_)
        if node is None:
            gone.append(id_)
            continue
        edges = connection.execute(
            "SELECT DISTINCT kind, dst FROM edge WHERE src=? AND dst IS NOT NULL AND dst <> '' AND kind <> ''"
            " AND length(kind) <= 256 AND length(dst) <= 1024",
            (id_,),
        )
        states.append(
            NodeState(
                id=id_,
                label=node.title[:1024],
                source=node.place.path[:8192],
                edges=[Outgoing(kind=kind, target=dst) for kind, dst in edges],
            )
        )
    return Due(tuple(number for number, _ in rows), states, gone, int(waiting) - len(rows))


def strike(connection: apsw.Connection, numbers: Iterable[int]) -> None:
    """The graph has these; a note that changed meanwhile has another number and stays."""
    connection.executemany("DELETE FROM graph_outbox WHERE number=?", ((number,) for number in numbers))


def waiting(connection: apsw.Connection) -> int:
    """Notes whose state the graph has still to be told."""
    return int(connection.execute("SELECT count(*) FROM graph_outbox").fetchone()[0])
