"""The service `graph`: opens the database and answers; every query runs in a worker thread and can be cancelled."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path as FolderPath
from typing import Any

import apsw
import trio

from proto.errors import OperationError, Unavailable
from proto.operation import Params
from proto.ops.graph import (
    Direction,
    FeedResult,
    GraphDelete,
    GraphEpoch,
    GraphEpochResult,
    GraphNeighbors,
    GraphNodes,
    GraphPath,
    GraphPut,
    GraphStats,
    GraphStatsResult,
    Neighbourhood,
    NodeNames,
    NodeState,
    Outgoing,
    Path,
)
from services.graph import answers, store, walk
from services.runtime.database import Database
from services.runtime.handlers import Context, Environment, Handlers, handles

_BACK = {Direction.OUT: Direction.IN, Direction.IN: Direction.OUT, Direction.BOTH: Direction.BOTH}


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Ready once the database is open."""
    graph: Graph

    def on_rebuilt() -> None:
        graph.on_rebuilt()

    database = await trio.to_thread.run_sync(store.open_database, env.data_dir / "graph.db", on_rebuilt)
    env.at_rest(database.give_back)
    try:
        graph = Graph(database)
        env.background.start_soon(graph.release, env.ending)
        yield Handlers(graph)
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(database.close)


def rehearse(root: FolderPath, settings: Mapping[str, object]) -> Sequence[Params[Any]]:
    """A note that points to another, and a look at its neighbours."""
    note = NodeState(id="a", edges=[Outgoing(target="b", kind="LINKS")])
    return (GraphPut(corpus="notes", nodes=[note]), GraphNeighbors(corpus="notes", id="a"), GraphStats())


class Graph:
    """The operations on an open database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._counted: tuple[int, GraphStatsResult] | None = None
        """The last figures, with the version of the database that they are of."""
        self._epoch_ended = trio.Event()

    def on_rebuilt(self) -> None:
        """The database was begun again, under another epoch."""
        self._epoch_ended.set()
        self._epoch_ended = trio.Event()

    async def release(self, ending: trio.Event) -> None:
        """At the service's end, answer the calls that wait for another epoch."""
        await ending.wait()
        self._epoch_ended.set()

    @handles(GraphPut)
    async def put(self, params: GraphPut, ctx: Context) -> FeedResult:
        return await self._database.write(lambda db: store.put(db, params.corpus, params.nodes, params.behind))

    @handles(GraphDelete)
    async def delete(self, params: GraphDelete, ctx: Context) -> FeedResult:
        return await self._database.write(lambda db: store.delete(db, params.corpus, params.nodes, params.behind))

    @handles(GraphEpoch)
    async def epoch(self, params: GraphEpoch, ctx: Context) -> GraphEpochResult:
        ended = self._epoch_ended
        epoch = await self._database.read(store.epoch)
        if epoch == params.known:
            with trio.move_on_after(params.wait_s):
                await ended.wait()
            epoch = await self._database.read(store.epoch)
        return GraphEpochResult(epoch=epoch)

    @handles(GraphNodes)
    async def node_names(self, params: GraphNodes, ctx: Context) -> NodeNames:
        def query(db: apsw.Connection) -> NodeNames:
            rows = db.execute(
                "SELECT id FROM node WHERE corpus_id=(SELECT corpus_id FROM corpus WHERE name=?) AND id > ? AND known"
                " ORDER BY id LIMIT ?",
                (params.corpus, params.after, params.limit + 1),
            )
            ids = [str(id_) for (id_,) in rows]
            return NodeNames(epoch=store.epoch(db), ids=ids[: params.limit], more=len(ids) > params.limit)

        return await self._database.read(query)

    @handles(GraphNeighbors)
    async def neighbors(self, params: GraphNeighbors, ctx: Context) -> Neighbourhood:
        def query(db: apsw.Connection) -> Neighbourhood:
            start = _start(db, params.corpus, params.id)
            steps = answers.steps(db, params.direction, params.kinds)
            found = walk.around(
                start, steps, params.depth, params.fan_out, params.limit, trio.from_thread.check_cancelled
            )
            names = answers.named(db, found.depth)
            reached = {number: depth for number, depth in found.depth.items() if number != start}
            return Neighbourhood(
                nodes=answers.nodes_of(names, reached),
                edges=answers.edges_of(db, names, found.edges, params.corpus),
                hubs=answers.hubs_of(found, names, steps, params.fan_out),
                complete=not found.cut and not found.full,
                degraded=answers.behind(db, (params.corpus,)),
            )

        return await self._database.read(query)

    @handles(GraphPath)
    async def path(self, params: GraphPath, ctx: Context) -> Path:
        return await self._database.read(lambda db: _path(db, params))

    @handles(GraphStats)
    async def stats(self, params: GraphStats, ctx: Context) -> GraphStatsResult:
        # Taken before the snapshot: a commit in between makes the figures stale, never the reverse.
        version = self._database.version
        if self._counted is None or self._counted[0] != version:
            size, rebuilt = self._database.size_bytes(), bool(self._database.rebuilt)
            self._counted = version, await self._database.read(lambda db: answers.figures(db, size, rebuilt))
        return self._counted[1]


def _path(db: apsw.Connection, params: GraphPath) -> Path:
    other = params.target_corpus or params.corpus
    source, target = _start(db, params.corpus, params.source), _start(db, other, params.target)
    forwards = answers.steps(db, params.direction, params.kinds)
    backwards = answers.steps(db, _BACK[params.direction], params.kinds)
    route = walk.shortest(source, target, forwards, backwards, params.max_length, trio.from_thread.check_cancelled)
    degraded = answers.behind(db, (params.corpus, other))
    if route.edges is None:
        return Path(found=False, length=None, nodes=[], edges=[], complete=route.complete, degraded=degraded)
    order = {source: 0}
    for step, edge in enumerate(route.edges, 1):
        order[edge[2] if edge[0] in order and edge[2] not in order else edge[0]] = step
    names = answers.named(db, order)
    return Path(
        found=True,
        length=len(route.edges),
        nodes=answers.nodes_of(names, order),
        edges=answers.edges_of(db, names, route.edges, params.corpus),
        complete=True,
        degraded=degraded,
    )


def _start(db: apsw.Connection, corpus: str, id_: str) -> int:
    """The node's number.

    Raises:
        Unavailable: there is none, and the corpus has not been fed to its end.
        OperationError: there is none.
    """
    number = answers.find(db, corpus, id_)
    if number is None:
        if lacking := answers.behind(db, (corpus,)):
            raise Unavailable(f"node {id_} is not in the graph, or not yet: {lacking[0]}", retry_after_ms=1000)
        raise OperationError(f"Node not found: {id_}")
    return number
