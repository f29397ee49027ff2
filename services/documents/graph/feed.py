"""Telling the graph of the documents, their symbols and how they are related, through any crash of either side.

Every change of a document leaves its number in an outbox, in the same transaction.  This task takes numbers whose code
is parsed, states the document's file and symbols with all their edges as they are now, and strikes the numbers out
once the graph has them on disk.  Where a name has got another meaning, who uses it is stated anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import apsw
import trio

from proto.errors import LinckiaError
from proto.ops.documents import CORPUS
from proto.ops.graph import GraphDelete, GraphNodes, GraphPut, NodeState, Outgoing
from services.documents.add.add import Adding
from services.documents.code.grammars import EXTENSIONS
from services.documents.code.parsing import Parsing
from services.documents.code.symbols import stem
from services.documents.graph.relations import AMBIGUOUS, Node, Relations, file_node, symbol_node
from services.documents.store.store import Store
from services.runtime.handlers import Environment

BATCH = 64
BATCH_NODES = 2000
CHANGED = 500
MAY_CALL = "MAY_CALL"
"""How the graph calls an ambiguous call."""
FIRST_PAUSE_S = 0.25
LAST_PAUSE_S = 15.0
MAX_ID = 1024
_EPOCH = "graph_epoch"


@dataclass(slots=True)
class _Due:
    numbers: list[int] = field(default_factory=list)
    states: list[NodeState] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    fed: list[tuple[int, list[str]]] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    behind: int = 0


class GraphFeed:
    """The task that parses code and tells the graph."""

    def __init__(self, env: Environment, store: Store, parsing: Parsing, adding: Adding) -> None:
        self._adding = adding
        self._env = env
        self._store = store
        self._parsing = parsing
        self._wake = trio.Event()
        self._epoch: str | None = None
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self.waiting: str | None = None
        """Why the feed waits at the moment."""

    def hurry(self) -> None:
        """Something may have come into the outbox."""
        self._wake.set()

    async def run(self) -> None:
        """Work until `stop`, or until cancelled."""
        pause_s = FIRST_PAUSE_S
        try:
            with self._scope:
                await self._env.after_the_rush()
                while True:
                    self._wake = trio.Event()
                    await self._parse()
                    try:
                        while await self._step():
                            pause_s = FIRST_PAUSE_S
                        self.waiting = None
                        await self._wake.wait()
                    except (LinckiaError, apsw.BusyError) as error:
                        # Who was away may have come back as another.
                        self._epoch = None
                        self.waiting = f"the graph is not available: {error}"
                        with trio.move_on_after(pause_s):
                            await self._wake.wait()
                            await trio.sleep(FIRST_PAUSE_S)
                        pause_s = min(2 * pause_s, LAST_PAUSE_S)
        finally:
            self._ended.set()

    async def stop(self) -> None:
        """End the task; once this returns it uses the databases no more."""
        self._scope.cancel()
        with trio.CancelScope(shield=True):
            await self._ended.wait()

    async def _parse(self) -> None:
        await self._adding.give_way()
        while await self._parsing.step():
            await self._adding.give_way()

    async def _step(self) -> bool:
        if self._epoch is None:
            await self._compare()
        if await self._spread():
            return True
        await self._parse()
        due = await self._store.read(self._take)
        if not due.numbers:
            return False
        epochs: set[str] = set()
        for start in range(0, len(due.gone), 4096):
            gone = due.gone[start : start + 4096]
            epochs.add((await self._env.call(GraphDelete(corpus=CORPUS, nodes=gone, behind=due.behind))).epoch)
        for start in range(0, len(due.states), 4096):
            states = due.states[start : start + 4096]
            epochs.add((await self._env.call(GraphPut(corpus=CORPUS, nodes=states, behind=due.behind))).epoch)
        if epochs - {self._epoch}:
            self._epoch = None
            return True
        if due.names:
            await self._store.write_index(
                lambda db: db.executemany(
                    "INSERT OR IGNORE INTO changed(name) VALUES(?)", ((name,) for name in sorted(due.names))
                ).fetchall()
            )
        await self._store.write(lambda db: _strike(db, due))
        return True

    async def _spread(self) -> bool:
        """Put who uses a name that has got another meaning into the outbox; answers whether there was such a name."""

        def users(db: apsw.Connection) -> tuple[list[str], list[int]]:
            names = [str(name) for (name,) in db.execute("SELECT name FROM idx.changed LIMIT ?", (CHANGED,))]
            # Those that were never told will be told anyway.
            query = (
                "SELECT DISTINCT document.id FROM idx.reference JOIN document ON document.object = reference.object"
                " WHERE reference.name=? AND EXISTS(SELECT 1 FROM graph_fed WHERE graph_fed.document=document.id)"
            )
            found = {int(str(id_)) for name in names for (id_,) in db.execute(query, (name,))}
            return names, sorted(found)

        names, documents = await self._store.read(users)
        if not names:
            return False
        if documents:
            await self._store.write(
                lambda db: db.executemany(
                    "INSERT OR REPLACE INTO graph_outbox(document) VALUES(?)", ((id_,) for id_ in documents)
                ).fetchall()
            )
        await self._store.write_index(
            lambda db: db.executemany("DELETE FROM changed WHERE name=?", ((name,) for name in names)).fetchall()
        )
        return True

    def _take(self, db: apsw.Connection) -> _Due:
        due = _Due()
        relations = Relations(db)
        for number, id_ in db.execute(
            "SELECT number, document FROM graph_outbox WHERE number <= ? ORDER BY number LIMIT ?",
            (self._parsing.reached, BATCH),
        ).fetchall():
            assert isinstance(number, int)
            assert isinstance(id_, int)
            before = {str(node) for (node,) in db.execute("SELECT node FROM graph_fed WHERE document=?", (id_,))}
            states = _states(db, relations, id_)
            now = {state.id for state in states}
            files = {node for node in (before ^ now) if node.startswith("file:")}
            for node in files:
                due.names |= names_of_path(node.removeprefix("file:"))
            due.numbers.append(number)
            due.states += states
            due.gone += sorted(before - now)
            due.fed.append((id_, sorted(now)))
            if len(due.states) > BATCH_NODES:
                break
        if due.numbers:
            (left,) = db.execute("SELECT count(*) FROM graph_outbox").fetchall()[0]
            due.behind = int(str(left)) - len(due.numbers)
        return due

    async def _compare(self) -> None:
        """Have everything stated anew if the graph is not the one that was fed."""
        page = await self._env.call(GraphNodes(corpus=CORPUS, limit=0))
        if page.epoch != await self._store.read(_epoch):
            theirs: list[str] = []
            more = True
            while more:
                page = await self._env.call(GraphNodes(corpus=CORPUS, after=theirs[-1] if theirs else ""))
                theirs += page.ids
                more = page.more and bool(page.ids)
            for start in range(0, len(theirs), 4096):
                await self._env.call(GraphDelete(corpus=CORPUS, nodes=theirs[start : start + 4096]))
            epoch = page.epoch
            await self._store.write(lambda db: _begin(db, epoch))
        self._epoch = page.epoch


def names_of_path(path: str) -> set[str]:
    """By what a document of this path is imported or linked to."""
    folder, _, name = path.rpartition("/")
    return {name, stem(name), folder.rsplit("/", 1)[-1]} - {""}


def _states(db: apsw.Connection, relations: Relations, id_: int) -> list[NodeState]:
    row = db.execute("SELECT path, extension FROM document WHERE id=?", (id_,)).fetchone()
    if row is None or row[1] not in EXTENSIONS:
        return []
    doc = relations.paths.exact(str(row[0]))
    assert doc is not None
    nodes = [file_node(doc), *(symbol_node(doc, symbol) for symbol in relations.symbols(doc.object))]
    return [_state(relations, node) for node in nodes if len(node.key) <= MAX_ID]


def _state(relations: Relations, node: Node) -> NodeState:
    assert node.doc is not None
    edges = {
        (MAY_CALL if edge.certainty == AMBIGUOUS else edge.relation, edge.target.key)
        for edge in relations.out(node)
        if len(edge.target.key) <= MAX_ID
    }
    return NodeState(
        id=node.key,
        label=node.label[:1024],
        source=node.doc.path[:8192],
        edges=[Outgoing(kind=kind, target=target) for kind, target in sorted(edges)],
    )


def _strike(db: apsw.Connection, due: _Due) -> None:
    db.executemany("DELETE FROM graph_outbox WHERE number=?", ((number,) for number in due.numbers))
    for id_, nodes in due.fed:
        _set_fed(db, id_, nodes)


def _set_fed(db: apsw.Connection, id_: int, nodes: Iterable[str]) -> None:
    db.execute("DELETE FROM graph_fed WHERE document=?", (id_,))
    db.executemany("INSERT INTO graph_fed(document, node) VALUES(?, ?)", ((id_, node) for node in nodes))


def _epoch(db: apsw.Connection) -> str | None:
    row = db.execute("SELECT value FROM setting WHERE name=?", (_EPOCH,)).fetchone()
    return None if row is None else str(row[0])


def _begin(db: apsw.Connection, epoch: str) -> None:
    """From here on the graph of this name is fed, from the beginning."""
    db.execute("DELETE FROM graph_fed")
    db.execute("INSERT OR IGNORE INTO graph_outbox(document) SELECT id FROM document ORDER BY id")
    db.execute("INSERT OR REPLACE INTO setting(name, value) VALUES(?, ?)", (_EPOCH, epoch))
