"""The service `graph`: opens the database and answers; every query runs in a worker thread and can be cancelled."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path as FolderPath
from typing import Any

import trio

from proto.errors import OperationError, Unavailable
from proto.operation import Params
from proto.ops.graph import (
    Direction,
    FeedResult,
    GraphDelete,
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
from services.graph import answers, feed, walk
from services.graph.feed import Done
from services.graph.store import Store
from services.runtime.handlers import Context, Environment, Handlers

_BACK = {Direction.OUT: Direction.IN, Direction.IN: Direction.OUT, Direction.BOTH: Direction.BOTH}


@contextlib.asynccontextmanager
async def open_service(env: Environment) -> AsyncIterator[Handlers]:
    """Ready once the database is open."""
    store = await trio.to_thread.run_sync(Store, env.data_dir / "graph.db")
    env.at_rest(store.give_back)
    try:
        yield handlers_of(store)
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(store.close)


def rehearse(root: FolderPath, settings: Mapping[str, Any]) -> Sequence[Params[Any]]:
    """A note that points to another, and a look at its neighbours."""
    note = NodeState(id="a", edges=[Outgoing(target="b", kind="LINKS")])
    return (GraphPut(corpus="notes", nodes=[note]), GraphNeighbors(corpus="notes", id="a"), GraphStats())


def handlers_of(store: Store) -> Handlers:
    """The operations on an open database."""
    handlers = Handlers()
    counted: tuple[int, GraphStatsResult] | None = None

    @handlers.handle(GraphPut)
    async def put(params: GraphPut, ctx: Context) -> FeedResult:
        return await write(lambda db: feed.put(db, params.corpus, params.nodes, params.behind))

    @handlers.handle(GraphDelete)
    async def delete(params: GraphDelete, ctx: Context) -> FeedResult:
        return await write(lambda db: feed.delete(db, params.corpus, params.nodes, params.behind))

    async def write(change: feed.Change) -> FeedResult:
        try:
            done: Done = await store.write(change)
        except sqlite3.OperationalError as error:
            raise OperationError(f"the graph cannot be written ({error}); nothing was changed") from error
        return FeedResult(
            epoch=store.epoch, nodes=done.nodes, edges_added=done.edges_added, edges_removed=done.edges_removed
        )

    @handlers.handle(GraphNodes)
    async def node_names(params: GraphNodes, ctx: Context) -> NodeNames:
        def query(db: sqlite3.Connection) -> list[str]:
            rows = db.execute(
                "SELECT id FROM node WHERE corpus_id=(SELECT corpus_id FROM corpus WHERE name=?) AND id > ? AND known"
                " ORDER BY id LIMIT ?",
                (params.corpus, params.after, params.limit + 1),
            )
            return [str(id_) for (id_,) in rows]

        ids = await store.read(query)
        return NodeNames(epoch=store.epoch, ids=ids[: params.limit], more=len(ids) > params.limit)

    @handlers.handle(GraphNeighbors)
    async def neighbors(params: GraphNeighbors, ctx: Context) -> Neighbourhood:
        def query(db: sqlite3.Connection) -> Neighbourhood:
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

        return await store.read(query)

    @handlers.handle(GraphPath)
    async def path(params: GraphPath, ctx: Context) -> Path:
        other = params.target_corpus or params.corpus

        def query(db: sqlite3.Connection) -> Path:
            source, target = _start(db, params.corpus, params.source), _start(db, other, params.target)
            forwards = answers.steps(db, params.direction, params.kinds)
            backwards = answers.steps(db, _BACK[params.direction], params.kinds)
            route = walk.shortest(
                source, target, forwards, backwards, params.max_length, trio.from_thread.check_cancelled
            )
            degraded = answers.behind(db, (params.corpus, other))
            if route.edges is None:
                return Path(
                    found=False, length=None, nodes=[], edges=[], complete=route.complete, degraded=degraded
                )  # fmt: skip
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

        return await store.read(query)

    @handlers.handle(GraphStats)
    async def stats(params: GraphStats, ctx: Context) -> GraphStatsResult:
        nonlocal counted
        # Taken before the snapshot: what is committed meanwhile makes the figures stale, never the reverse.
        version = store.version
        if counted is None or counted[0] != version:
            size = store.size_bytes()
            counted = version, await store.read(lambda db: answers.figures(db, size, store.rebuilt))
        return counted[1]

    return handlers


def _start(db: sqlite3.Connection, corpus: str, id_: str) -> int:
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
