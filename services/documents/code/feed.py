"""The crash-safe feed of documents, their symbols and relations to the graph service.

Every change of a document puts its id into an outbox. Once its code is parsed, the current nodes of the file and its
symbols are delivered with all their edges. If the meaning of a name changes, the documents that use it are queued too.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import apsw

from proto.ops.decode import CODE_EXTENSIONS, stem
from proto.ops.documents.reading import CORPUS
from proto.ops.graph import MAX_WAIT_S, GraphDelete, GraphEpoch, GraphNodes, GraphPut, NodeState, Outgoing
from services.documents.add.add import Adding
from services.documents.code import parsing
from services.documents.code.nodes import file_node, symbol_node
from services.documents.code.parsing import Parsing
from services.documents.code.relations import AMBIGUOUS, Relations
from services.documents.store import tables
from services.documents.store.databases import Store
from services.runtime.handlers import Environment
from services.shared.outbox import pages

BATCH = 64
BATCH_NODES = 2000
CHANGED = 500
MAY_CALL = "MAY_CALL"
"""The graph's edge kind for an ambiguous call."""
MAX_ID = 1024
_EPOCH = "graph_epoch"


@dataclass(slots=True)
class Due:
    """The current state of some documents: nodes with their edges, and removed nodes."""

    numbers: list[int] = field(default_factory=list)
    states: list[NodeState] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    fed: list[tuple[int, list[str]]] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    behind: int = 0


class GraphFeed:
    """A feed for `services.shared.outbox` that parses code before delivering it."""

    def __init__(self, env: Environment, store: Store, parsing: Parsing, adding: Adding) -> None:
        self._adding = adding
        self._env = env
        self._store = store
        self._parsing = parsing
        self._epoch = ""

    async def epoch(self, delivered: str) -> str:
        asked = GraphEpoch(known=delivered, wait_s=MAX_WAIT_S)
        return (await self._env.call(asked, timeout_s=MAX_WAIT_S + 15)).epoch

    async def compare(self) -> None:
        """Queue everything if the graph is not the one that was fed before."""
        # Parse first, so that code is parsed even if the graph service is unavailable.
        await self._parse()
        epoch = (await self._env.call(GraphEpoch())).epoch
        query = "SELECT value FROM setting WHERE name=?"
        if epoch != await self._store.read(lambda db: db.execute(query, (_EPOCH,)).get):
            theirs = await pages(lambda after: self._env.call(GraphNodes(corpus=CORPUS, after=after)))
            for start in range(0, len(theirs), 4096):
                await self._env.call(GraphDelete(corpus=CORPUS, nodes=theirs[start : start + 4096]))
            await self._store.write(lambda db: _begin(db, epoch))
        self._epoch = epoch

    async def take(self) -> Due | None:
        """Return the next documents whose code is parsed."""
        await self._parse()
        while await self._spread():
            await self._parse()
        return await self._store.read(self._take)

    async def deliver(self, due: Due) -> bool:
        """Deliver the changes; repeating a delivery is harmless."""
        epochs: set[str] = set()
        for start in range(0, len(due.gone), 4096):
            gone = due.gone[start : start + 4096]
            epochs.add((await self._env.call(GraphDelete(corpus=CORPUS, nodes=gone, behind=due.behind))).epoch)
        for start in range(0, len(due.states), 4096):
            states = due.states[start : start + 4096]
            epochs.add((await self._env.call(GraphPut(corpus=CORPUS, nodes=states, behind=due.behind))).epoch)
        return not epochs - {self._epoch}

    async def strike(self, due: Due) -> None:
        """Remove delivered documents from the outbox.  Those changed since have a new number and stay."""
        if due.names:
            await self._store.write_index(lambda db: parsing.note_changed(db, due.names))
        await self._store.write(lambda db: _strike(db, due))

    async def _parse(self) -> None:
        await self._adding.give_way()
        while await self._parsing.step():
            await self._adding.give_way()

    async def _spread(self) -> bool:
        """Queue the documents that use names whose meaning changed.  Returns whether there were such names."""

        def users(db: apsw.Connection) -> tuple[list[str], list[int]]:
            names = [name for (name,) in db.execute("SELECT name FROM idx.changed LIMIT ?", (CHANGED,))]
            # Documents that were never delivered are queued anyway.
            query = (
                "SELECT DISTINCT document.id FROM idx.reference JOIN document ON document.object = reference.object"
                " WHERE reference.name=? AND EXISTS(SELECT 1 FROM graph_fed WHERE graph_fed.document=document.id)"
            )
            return names, sorted({id_ for name in names for (id_,) in db.execute(query, (name,))})

        names, documents = await self._store.read(users)
        if not names:
            return False
        if documents:
            queue = "INSERT OR REPLACE INTO graph_outbox(document) SELECT value FROM carray(?)"
            await self._store.write(lambda db: db.execute(queue, (tables.ids(documents),)).fetchall())
        strike = "DELETE FROM changed WHERE name IN (SELECT value FROM carray(?))"
        await self._store.write_index(lambda db: db.execute(strike, (apsw.carray(tuple(names)),)).fetchall())
        return True

    def _take(self, db: apsw.Connection) -> Due | None:
        due = Due()
        relations = Relations(db)
        query = "SELECT number, document FROM graph_outbox WHERE number <= ? ORDER BY number LIMIT ?"
        for number, id_ in db.execute(query, (self._parsing.reached, BATCH)):
            before = {node for (node,) in db.execute("SELECT node FROM graph_fed WHERE document=?", (id_,))}
            states = _states(db, relations, id_)
            now = {state.id for state in states}
            for node in before ^ now:
                if node.startswith("file:"):
                    # The names by which it can be imported or linked to.
                    folder, _, name = node.removeprefix("file:").rpartition("/")
                    due.names |= {name, stem(name), folder.rsplit("/", 1)[-1]} - {""}
            due.numbers.append(number)
            due.states += states
            due.gone += sorted(before - now)
            due.fed.append((id_, sorted(now)))
            if len(due.states) > BATCH_NODES:
                break
        if not due.numbers:
            return None
        due.behind = db.execute("SELECT count(*) FROM graph_outbox").get - len(due.numbers)
        return due


def _states(db: apsw.Connection, relations: Relations, id_: int) -> list[NodeState]:
    row = db.execute("SELECT path, extension FROM document WHERE id=?", (id_,)).fetchone()
    if row is None or row[1] not in CODE_EXTENSIONS:
        return []
    doc = relations.paths.exact(row[0])
    assert doc is not None
    states: list[NodeState] = []
    for node in (file_node(doc), *(symbol_node(doc, symbol) for symbol in relations.symbols(doc.object))):
        edges = {
            (MAY_CALL if edge.certainty == AMBIGUOUS else edge.relation, edge.target.key)
            for edge in relations.out(node)
            if len(edge.target.key) <= MAX_ID
        }
        out = [Outgoing(kind=kind, target=target) for kind, target in sorted(edges)]
        if len(node.key) <= MAX_ID:
            states.append(NodeState(id=node.key, label=node.label[:1024], source=doc.path[:8192], edges=out))
    return states


def _strike(db: apsw.Connection, due: Due) -> None:
    db.executemany("DELETE FROM graph_outbox WHERE number=?", ((number,) for number in due.numbers))
    db.executemany("DELETE FROM graph_fed WHERE document=?", ((id_,) for id_, _ in due.fed))
    tables.insert(db, "graph_fed(document, node)", [(id_, node) for id_, nodes in due.fed for node in nodes])


def _begin(db: apsw.Connection, epoch: str) -> None:
    """Start feeding the graph of this epoch from scratch."""
    db.execute("DELETE FROM graph_fed")
    db.execute("INSERT OR IGNORE INTO graph_outbox(document) SELECT id FROM document ORDER BY id")
    db.execute("INSERT OR REPLACE INTO setting(name, value) VALUES(?, ?)", (_EPOCH, epoch))
