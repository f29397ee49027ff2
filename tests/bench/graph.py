"""The graph at scale: hops, paths and durable writes, compared with a recursive SQL query on the same tables.

    scripts/bench graph [--nodes 1000000] [--edges 5000000] [--folder DIR]

Times cover only the work itself in this process, in milliseconds, p50 and p95 over random nodes. Edges are random, so
that three hops from a node with five edges reach about 150 others.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import trio

from proto.ops.graph import Direction, NodeState, Outgoing
from services.graph import answers, tables, walk
from services.runtime.database import Database

ROUNDS = 300
KINDS = ("CITES", "LINKS_TO", "REFERENCES", "FOLLOWS")
WRITES = 10_000
EDGES_EACH = 10

_RECURSIVE = """
WITH RECURSIVE reached(node, depth) AS (
    VALUES(?1, 0) UNION SELECT dst, depth + 1 FROM reached JOIN edge ON src = node WHERE depth < ?2
) SELECT DISTINCT node FROM reached
"""


def build(database: Database, nodes: int, edges: int, chance: random.Random) -> float:
    """Fill the tables at once; returns the seconds."""
    began = time.perf_counter()

    def some() -> Iterator[tuple[int, int, int]]:
        each, extra = divmod(edges, nodes)
        for src in range(1, nodes + 1):
            for _ in range(each + (src <= extra)):
                yield src, chance.randrange(len(KINDS)) + 1, chance.randrange(nodes) + 1

    with database.transaction() as db:
        db.execute("INSERT INTO corpus(corpus_id, name) VALUES(1, 'notes')")
        db.executemany("INSERT INTO kind(name) VALUES(?)", ((kind,) for kind in KINDS))
        db.executemany(
            "INSERT INTO node(node_id, corpus_id, id, known, label) VALUES(?, 1, ?, 1, '')",
            ((n, f"note-{n:07}") for n in range(1, nodes + 1)),
        )
        db.execute("DROP INDEX edge_reverse")
        db.executemany("INSERT OR IGNORE INTO edge VALUES(?, ?, ?)", some())
        db.execute("CREATE INDEX edge_reverse ON edge(dst, kind, src)")
    trio.run(database.checkpoint)
    return time.perf_counter() - began


def show(name: str, work: Callable[[int], object], nodes: list[int]) -> float:
    """Print the times of `work` on each node; returns the median."""
    times = []
    for node in nodes:
        began = time.perf_counter()
        work(node)
        times.append((time.perf_counter() - began) * 1000)
    middle = statistics.median(times)
    print(f"{name:<44} p50 {middle:9.4f}   p95 {statistics.quantiles(times, n=20)[18]:9.4f}")
    return middle


def reads(db: apsw.Connection, count: int, chance: random.Random) -> None:
    """Measure hops and paths."""
    nodes = [chance.randrange(count) + 1 for _ in range(ROUNDS)]
    out = answers.steps(db, Direction.OUT, ())
    both = answers.steps(db, Direction.BOTH, ())

    def hops(steps: walk.Steps, depth: int) -> Callable[[int], object]:
        return lambda node: walk.around(node, steps, depth, 100, 10_000, lambda: None)

    def answered(node: int) -> object:
        found = walk.around(node, out, 3, 100, 10_000, lambda: None)
        names = answers.named(db, found.depth)
        return answers.nodes_of(names, found.depth), answers.edges_of(db, names, found.edges, "notes")

    for _ in range(2):
        # The first pass brings the pages into memory.
        show("1 hop out", hops(out, 1), nodes)
        show("1 hop in and out", hops(both, 1), nodes)
        ours = show("3 hops out", hops(out, 3), nodes)
        peer = show("3 hops out, recursive SQL", lambda node: db.execute(_RECURSIVE, (node, 3)).fetchall(), nodes)
        show("3 hops out, with names as answered", answered, nodes)
        show(
            "shortest path of two random nodes, both ends",
            lambda node: walk.shortest(node, nodes[0], out, 20, lambda: None),
            nodes[1:60],
        )
        print(f"{'recursive SQL / ours, 3 hops':<44} {peer / ours:9.2f}\n")


async def writes(database: Database, count: int, chance: random.Random) -> None:
    """Measure durable writes: each put is a transaction on disk."""
    for batch in (1, 100, WRITES // EDGES_EACH):
        states = [
            NodeState(
                id=f"new-{batch}-{n}",
                edges=[
                    Outgoing(kind=chance.choice(KINDS), target=f"note-{chance.randrange(count) + 1:07}")
                    for _ in range(EDGES_EACH)
                ],
            )
            for n in range(WRITES // EDGES_EACH)
        ]
        began = time.perf_counter()
        for start in range(0, len(states), batch):
            some = states[start : start + batch]
            await database.write(lambda db, some=some: tables.put(db, "notes", some, 0))  # type: ignore[misc]  # bound early
        took = time.perf_counter() - began
        print(f"{WRITES} edges of {len(states)} nodes, {batch:>4} nodes a commit {took:10.3f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=5_000_000)
    parser.add_argument("--folder", type=Path, help="where to build it (default: a temporary folder)")
    arguments = parser.parse_args()
    chance = random.Random(7)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        database = tables.open_database(Path(folder) / "graph.db")
        took = build(database, arguments.nodes, arguments.edges, chance)
        size = database.size_bytes() / 2**20
        print(f"{arguments.nodes} nodes, {arguments.edges} edges: built in {took:.1f} s, {size:.0f} MiB\n")
        with database.reader() as db:
            # One snapshot, as for every answer of the service.
            db.execute("BEGIN")
            reads(db, arguments.nodes, chance)
            db.execute("ROLLBACK")
        trio.run(writes, database, arguments.nodes, chance)
        began = time.perf_counter()
        with database.reader() as db:
            answers.figures(db, 0, rebuilt=False)
        print(f"{'graph_stats':<44} {time.perf_counter() - began:10.3f} s")
        database.close()


if __name__ == "__main__":
    main()
