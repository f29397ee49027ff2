"""The service `graph`: opens the database and serves requests; every query runs in a worker thread and can be
cancelled."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import apsw
import trio

from proto.errors import OperationError, Unavailable
from proto.ops import graph as ops
from services.graph import answers, tables, walk
from services.runtime.database import Database
from services.runtime.handlers import Context, Environment, Handlers, handles


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Open the service; ready once the database is open."""
    graph = Graph(env)
    graph.database = await env.opened(tables.open_database, env.data_dir / "graph.db", graph.wake_waiters)
    env.at_rest(graph.database.give_back)
    env.background.start_soon(graph.end)
    yield Handlers(graph)


class Graph:
    """The service's operations; `database` must be open before the first."""

    database: Database

    def __init__(self, env: Environment) -> None:
        self._ending = env.ending
        self._changed = trio.Event()
        """Replaced by a new event each time it is set."""
        self._counted: tuple[int, ops.GraphStatsResult] | None = None
        """The last statistics, with the version of the database they belong to."""

    @handles(ops.GraphPut)
    async def put(self, params: ops.GraphPut, ctx: Context) -> ops.FeedResult:
        return await self.database.write(lambda db: tables.put(db, params.corpus, params.nodes, params.behind))

    @handles(ops.GraphDelete)
    async def delete(self, params: ops.GraphDelete, ctx: Context) -> ops.FeedResult:
        return await self.database.write(lambda db: tables.delete(db, params.corpus, params.nodes, params.behind))

    @handles(ops.GraphEpoch)
    async def epoch(self, params: ops.GraphEpoch, ctx: Context) -> ops.GraphDatabase:
        with trio.move_on_after(params.wait_s):
            # Taken before reading: a change in between is not missed.
            changed = self._changed
            while not self._ending.is_set() and await self.database.read(tables.epoch) == params.known:
                await changed.wait()
                changed = self._changed
        return ops.GraphDatabase(epoch=await self.database.read(tables.epoch))

    def wake_waiters(self) -> None:
        """Wake calls that wait for another database."""
        self._changed.set()
        self._changed = trio.Event()

    async def end(self) -> None:
        """Release waiting calls when the service ends."""
        await self._ending.wait()
        self.wake_waiters()

    @handles(ops.GraphNodes)
    async def node_names(self, params: ops.GraphNodes, ctx: Context) -> ops.NodeNames:
        def query(db: apsw.Connection) -> ops.NodeNames:
            rows = db.execute(
                "SELECT id FROM node WHERE corpus_id=(SELECT corpus_id FROM corpus WHERE name=?) AND id > ? AND known"
                " ORDER BY id LIMIT ?",
                (params.corpus, params.after, params.limit + 1),
            )
            ids = [str(id_) for (id_,) in rows]
            return ops.NodeNames(epoch=tables.epoch(db), ids=ids[: params.limit], more=len(ids) > params.limit)

        return await self.database.read(query)

    @handles(ops.GraphNeighbors)
    async def neighbors(self, params: ops.GraphNeighbors, ctx: Context) -> ops.Neighbourhood:
        def query(db: apsw.Connection) -> ops.Neighbourhood:
            start = _start(db, params.corpus, params.id)
            steps = answers.steps(db, params.direction, params.kinds)
            found = walk.around(
                start, steps, params.depth, params.fan_out, params.limit, trio.from_thread.check_cancelled
            )
            names = answers.named(db, found.depth)
            return ops.Neighbourhood(
                nodes=answers.nodes_of(names, found.depth)[1:],
                edges=answers.edges_of(db, names, found.edges, params.corpus),
                hubs=[
                    ops.Hub(id=names[n].id, corpus=names[n].corpus, edges=steps.count(n), followed=params.fan_out)
                    for n in found.cut
                ],
                complete=not found.cut and not found.full,
                degraded=answers.behind(db, (params.corpus,)),
            )

        return await self.database.read(query)

    @handles(ops.GraphPath)
    async def path(self, params: ops.GraphPath, ctx: Context) -> ops.Path:
        return await self.database.read(lambda db: _path(db, params))

    @handles(ops.GraphStats)
    async def stats(self, params: ops.GraphStats, ctx: Context) -> ops.GraphStatsResult:
        # Taken before the snapshot: a commit in between makes the figures stale, never the reverse.
        version = self.database.version
        if self._counted is None or self._counted[0] != version:
            size, rebuilt = self.database.size_bytes(), bool(self.database.rebuilt)
            self._counted = version, await self.database.read(lambda db: answers.figures(db, size, rebuilt))
        return self._counted[1]


def _path(db: apsw.Connection, params: ops.GraphPath) -> ops.Path:
    other = params.target_corpus or params.corpus
    source, target = _start(db, params.corpus, params.source), _start(db, other, params.target)
    steps = answers.steps(db, params.direction, params.kinds)
    route = walk.shortest(source, target, steps, params.max_length, trio.from_thread.check_cancelled)
    degraded = answers.behind(db, (params.corpus, other))
    if route.edges is None:
        return ops.Path(found=False, length=None, nodes=[], edges=[], complete=route.complete, degraded=degraded)
    order = {source: 0}
    for step, edge in enumerate(route.edges, 1):
        order[edge[2] if edge[0] in order and edge[2] not in order else edge[0]] = step
    names = answers.named(db, order)
    return ops.Path(
        found=True,
        length=len(route.edges),
        nodes=answers.nodes_of(names, order),
        edges=answers.edges_of(db, names, route.edges, params.corpus),
        complete=True,
        degraded=degraded,
    )


def _start(db: apsw.Connection, corpus: str, id_: str) -> int:
    """Return a node's number.

    Raises:
        Unavailable: it is missing, and the corpus is not completely in the graph.
        OperationError: it is missing.
    """
    number = answers.find(db, corpus, id_)
    if number is None:
        if lacking := answers.behind(db, (corpus,)):
            raise Unavailable(f"node {id_} is missing, or not in the graph yet: {lacking[0]}", retry_after_ms=1000)
        raise OperationError(f"Node not found: {id_}")
    return number
