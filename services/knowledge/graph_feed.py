"""The crash-safe feed of notes and their links to the graph service.

Every change of a note or an edge puts the note's id into an outbox in the same transaction. The epoch identifies the
graph's database. If it differs from the one fed before, both sides are compared and every note is delivered again.
"""

from __future__ import annotations

from typing import NamedTuple

import apsw

from proto.ops.graph import MAX_WAIT_S, GraphDelete, GraphEpoch, GraphNodes, GraphPut, NodeState, Outgoing
from services.knowledge import nodes
from services.runtime.database import Database
from services.runtime.handlers import Environment
from services.shared.outbox import pages

CORPUS = "notes"
BATCH = 256

_EPOCH = "graph_epoch"


class Due(NamedTuple):
    """A batch of the outbox.  `behind` is the number of entries after it, `epoch` identifies the graph being fed."""

    numbers: tuple[int, ...]
    states: list[NodeState]
    gone: list[str]
    behind: int
    epoch: str | None


class GraphFeed:
    """The feed for `Outbox`."""

    def __init__(self, env: Environment, database: Database) -> None:
        self._env = env
        self._database = database

    async def compare(self) -> None:
        """Queue every note if the graph is not the one that was fed before."""
        epoch = (await self._env.call(GraphEpoch())).epoch
        if epoch == await self._database.read(lambda db: nodes.setting(db, _EPOCH)):
            return
        theirs = await pages(lambda after: self._env.call(GraphNodes(corpus=CORPUS, after=after)))

        def begin(db: apsw.Connection) -> None:
            """Queue every note and every id in the graph, and store the epoch."""
            db.execute("INSERT OR REPLACE INTO graph_outbox(id) SELECT id FROM node")
            db.executemany("INSERT OR IGNORE INTO graph_outbox(id) VALUES(?)", ((id_,) for id_ in theirs))
            nodes.set_setting(db, _EPOCH, epoch)

        await self._database.write(begin)

    async def epoch(self, delivered: str) -> str:
        """See `Outbox.watch_epoch`."""
        asked = GraphEpoch(known=delivered, wait_s=MAX_WAIT_S)
        return (await self._env.call(asked, timeout_s=MAX_WAIT_S + 15)).epoch

    async def take(self) -> Due | None:
        return await self._database.read(take)

    async def deliver(self, due: Due) -> bool:
        epochs: set[str] = set()
        if due.states:
            put = GraphPut(corpus=CORPUS, nodes=due.states, behind=due.behind + len(due.gone))
            epochs.add((await self._env.call(put)).epoch)
        if due.gone:
            epochs.add((await self._env.call(GraphDelete(corpus=CORPUS, nodes=due.gone, behind=due.behind))).epoch)
        return epochs == {due.epoch}

    async def strike(self, due: Due) -> None:
        """Remove delivered notes.  Those that changed meanwhile have a new number and stay."""
        numbers = [(number,) for number in due.numbers]
        await self._database.write(lambda db: db.executemany("DELETE FROM graph_outbox WHERE number=?", numbers))


def take(db: apsw.Connection) -> Due | None:
    """Return the current state of the next notes in the outbox, except those never read, whose links are unknown.

    Starts with the latest number: notes that were read get a new number, so unread ones need not be skipped each time.
    """
    query = (
        "SELECT number, id FROM graph_outbox WHERE NOT EXISTS"
        " (SELECT 1 FROM node WHERE node.id=graph_outbox.id AND hash IS NULL AND title='') ORDER BY number DESC LIMIT ?"
    )
    if not (rows := list(db.execute(query, (BATCH,)))):
        return None
    states: list[NodeState] = []
    gone: list[str] = []
    for _, id_ in rows:
        node = nodes.find(db, id_)
        if node is None:
            gone.append(id_)
            continue
        edges = db.execute(
            "SELECT DISTINCT kind, dst FROM edge WHERE src=? AND dst IS NOT NULL AND dst <> '' AND kind <> ''"
            " AND length(kind) <= 256 AND length(dst) <= 1024",
            (id_,),
        )
        outgoing = [Outgoing(kind=kind, target=dst) for kind, dst in edges]
        states.append(NodeState(id=id_, label=node.title[:1024], source=node.place.path[:8192], edges=outgoing))
    numbers = tuple(number for number, _ in rows)
    return Due(numbers, states, gone, waiting(db) - len(rows), nodes.setting(db, _EPOCH))


def waiting(db: apsw.Connection) -> int:
    """Return the number of notes still to be delivered to the graph."""
    return int(db.execute("SELECT count(*) FROM graph_outbox").get)
