"""The graph has every note and every link once, whichever side dies in between."""

from __future__ import annotations

import contextlib
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import apsw
import pytest
import trio

from proto.errors import Unavailable
from proto.ops.graph import GraphNeighbors, GraphNodes, GraphStats
from services.graph import tables as graph_tables
from services.graph.main import open_service as open_graph
from services.knowledge import graph_feed, nodes
from services.knowledge.main import open_service as open_knowledge
from services.knowledge.nodes import Known, Update
from services.knowledge.note_database import open_database
from services.knowledge.notes import markdown
from services.knowledge.notes.files import Place
from services.knowledge.operations.notes import ExploreLinks, ReadNodeContent
from services.llm.main import open_service as open_llm
from services.shared.models.measure import ROUGH
from tests.in_process import services_in_process
from tests.unit.graph.rig import state
from tests.unit.knowledge.rig import Bench, MemorySearch, settled, until, write
from tests.unit.runtime.faults import damage_page, pages_of

if TYPE_CHECKING:
    from services.runtime.handlers import Environment

SETTINGS = {"knowledge": {"scan_interval_s": 0.02}}
REPOSITORY = Path(__file__).parents[3]


@asynccontextmanager
async def notes_and_graph(folder: Path, root: Path) -> AsyncIterator[Bench]:
    search = MemorySearch()
    services = {"retrieve": search.open, "graph": open_graph, "llm": open_llm, "knowledge": open_knowledge}
    async with services_in_process(services, folder, roots=[root], settings=SETTINGS) as bench:
        yield bench
        if "knowledge" in bench.running:
            await bench.stop("knowledge")


async def fed(bench: Bench, count: int) -> None:
    """Wait until a scan that ended after this call left `count` notes, and the graph has received all of them."""
    await settled(bench, count, within_s=20)
    await until(bench, lambda status: not status.graph_pending, within_s=20)


async def linked(bench: Bench, id_: str) -> set[tuple[str, str, str]]:
    found = await bench.call(GraphNeighbors(id=id_))
    return {(edge.source, edge.type, edge.target) for edge in found.edges}


async def test_graph_follows_links_as_they_come_and_go(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(root, "a.md", "# Alpha\n\n[[b]] [[later]]\n")
    write(root, "b.md", "# Beta\n")
    async with notes_and_graph(tmp_path / "data", root) as bench:
        await fed(bench, 2)
        assert await linked(bench, "b") == {("a", "CITES", "b")}
        near = await bench.call(GraphNeighbors(id="b"))
        assert [(node.id, node.label) for node in near.nodes] == [("a", "Alpha")]
        assert near.edges[0].stated_in == "a.md"
        assert (near.complete, near.degraded) == (True, [])
        write(root, "later.md", "# Later\n")
        await fed(bench, 3)
        assert await linked(bench, "a") == {("a", "CITES", "b"), ("a", "CITES", "later")}
        (root / "b.md").unlink()
        await fed(bench, 2)
        assert await linked(bench, "a") == {("a", "CITES", "later")}


async def test_a_graph_that_was_away_or_starts_empty_receives_everything(tmp_path: Path) -> None:
    root, folder = tmp_path / "root", tmp_path / "data"
    for n in range(20):
        write(root, f"n{n}.md", f"# N\n\n[[n{(n + 1) % 20}]]\n")
    async with notes_and_graph(folder, root) as bench:
        await fed(bench, 20)
        await bench.stop("graph")
        write(root, "new.md", "# New\n\n[[n0]]\n")
        await until(bench, lambda s: s.notes == 21 and not s.pending and s.graph_waiting is not None)
        # Replace the graph's lost database by one with links that no note contains.
        for file in (folder / "graph").glob("graph.db*"):
            file.unlink()
        other = graph_tables.open_database(folder / "graph" / "graph.db")
        await other.write(lambda db: graph_tables.put(db, "notes", [state("stranger", "n0")], 0))
        other.close()
        await bench.start("graph")
        expected = {("n19", "CITES", "n0"), ("n0", "CITES", "n1"), ("new", "CITES", "n0")}
        await fed(bench, 21)
        assert await linked(bench, "n0") == expected


async def test_the_graph_receives_a_note_once_it_was_read_or_found_unreadable(tmp_path: Path) -> None:
    database = open_database(tmp_path / "notes.db")
    try:
        place, other = Place("/root", "a.md"), Place("/root", "b.md")
        await database.write(lambda db: nodes.arrive(db, [place, other], {}, ["/root"]))
        assert await database.read(graph_feed.waiting) == 2
        assert await database.read(graph_feed.take) is None, "its links are not known yet"
        note = markdown.parse("# A\n\n[[c]]\n", place, ROUGH)
        await database.write(lambda db: nodes.settle(db, [Update(place, Known("a", hash="hash"), note=note)]))
        due = await database.read(graph_feed.take)
        assert due is not None
        assert ([state.id for state in due.states], due.behind) == (["a"], 1)
        await database.write(lambda db: nodes.give_up(db, [place, other]))
        due = await database.read(graph_feed.take)
        assert due is not None
        assert ([(state.id, state.label) for state in due.states], due.behind) == ([("b", "b"), ("a", "A")], 0)
    finally:
        database.close()


async def test_note_is_found_although_the_database_begins_again(tmp_path: Path) -> None:
    root, folder = tmp_path / "root", tmp_path / "data"
    write(root, "a.md", "# Alpha\n\n[[b]]\n")
    write(root, "b.md", "# Beta\n")
    async with notes_and_graph(folder, root) as bench:
        await fed(bench, 2)
        await bench.stop("knowledge")
        for file in (folder / "knowledge").glob("notes.db*"):
            file.unlink()
        await bench.start("knowledge")
        assert (await bench.call(ReadNodeContent(id="a"))).text.startswith("# Alpha")
        await bench.stop("knowledge")
        for file in (folder / "knowledge").glob("notes.db*"):
            file.unlink()
        await bench.start("knowledge")
        assert [link.target for link in await bench.call(ExploreLinks(id="a"))] == ["b"]


async def test_graph_that_begins_again_while_it_runs_is_fed_again(tmp_path: Path) -> None:
    root, folder = tmp_path / "root", tmp_path / "data"
    for n in range(100):
        write(root, f"n{n}.md", f"# N\n\n[[n{(n + 1) % 100}]]\n")
    async with notes_and_graph(folder, root) as bench:
        await fed(bench, 100)
        await bench.stop("graph")
        for page in pages_of(folder / "graph/graph.db", "edge_reverse"):
            damage_page(folder / "graph/graph.db", page)
        await bench.start("graph")
        before = (await bench.call(GraphNodes(corpus="notes", limit=0))).epoch
        with pytest.raises(Unavailable, match="being rebuilt"):
            await bench.call(GraphNeighbors(id="n1"))
        with trio.fail_after(10):
            while (await bench.call(GraphNodes(corpus="notes", limit=0))).epoch == before:  # noqa: ASYNC110
                await trio.sleep(0.01)
        # No note changes: the knowledge service notices the change in the graph itself.
        with trio.fail_after(10):
            while (await bench.call(GraphStats())).edges < 100:  # noqa: ASYNC110  # no event tells
                await trio.sleep(0.01)
        assert await linked(bench, "n1") == {("n0", "CITES", "n1"), ("n1", "CITES", "n2")}


async def test_a_note_that_changes_while_it_is_sent_is_sent_again(tmp_path: Path) -> None:
    store = open_database(tmp_path / "notes.db")
    add = "INSERT INTO edge VALUES('a', ?, 'CITES', ?, '', 1, ?)"
    await store.write(lambda c: c.execute("INSERT INTO node(id, root, path, title) VALUES('a', '/r', 'a.md', 'A')"))
    await store.write(lambda c: c.execute(add, (0, "b", "b")))
    feed = graph_feed.GraphFeed(cast("Environment", None), store)
    due = await feed.take()
    assert due is not None
    assert [edge.target for edge in due.states[0].edges] == ["b"]
    await store.write(lambda c: c.execute(add, (1, "c", "c")))
    await feed.strike(due)
    again = await feed.take()
    assert again is not None
    assert [edge.target for edge in again.states[0].edges] == ["b", "c"]
    await feed.strike(again)
    assert await feed.take() is None
    await store.write(lambda c: c.execute("UPDATE edge SET dst=NULL WHERE position=1"))
    assert await feed.take() is not None
    store.close()


def test_a_database_of_the_previous_version_is_migrated_and_sent_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    open_database(path).close()
    with contextlib.closing(apsw.Connection(str(path))) as db:
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='trigger'").fetchall():
            db.execute(f"DROP TRIGGER {name}")
        db.execute("DROP TABLE graph_outbox")
        db.execute("DROP TABLE former")
        db.execute("INSERT INTO node(id, root, path) VALUES('a', '/r', 'a.md')")
        db.execute("PRAGMA user_version=1")
    store = open_database(path)
    with store.snapshot() as db:
        assert db.execute("SELECT id FROM graph_outbox").fetchall() == [("a",)]
    store.close()


async def _serve(folder: Path, root: Path) -> None:
    async with notes_and_graph(folder, root) as bench:
        await until(bench, lambda status: status.notes > 0)
        print("up", flush=True)
        await trio.sleep_forever()


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(2))
def test_kills_at_any_moment_leave_graph_and_notes_in_step(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    root, folder = tmp_path / "root", tmp_path / "data"
    folder.mkdir()
    links: dict[str, str] = {}

    def change(count: int) -> None:
        for _ in range(count):
            id_ = f"n{chance.randrange(120)}"
            if id_ in links and chance.random() < 0.3:
                (root / f"{id_}.md").unlink()
                del links[id_]
            else:
                links[id_] = f"n{chance.randrange(120)}"
                write(root, f"{id_}.md", f"# N\n\n[[{links[id_]}]] {chance.random()}")

    change(150)
    for _ in range(3):
        command = [sys.executable, "-m", __name__, str(folder), str(root)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY, text=True)
        assert child.stdout is not None
        watchdog = threading.Timer(30, child.kill)
        watchdog.start()
        with child.stdout:
            assert child.stdout.readline() == "up\n"
            change(30)
            trio.run(trio.sleep, chance.uniform(0.0, 0.3))
            child.send_signal(signal.SIGKILL)
            assert child.wait() == -signal.SIGKILL
        watchdog.cancel()
        change(20)

    async def finish() -> None:
        async with notes_and_graph(folder, root) as bench:
            await fed(bench, len(links))

    trio.run(finish)
    with sqlite3.connect(folder / "graph/graph.db") as db:
        known = {id_ for (id_,) in db.execute("SELECT id FROM node WHERE known")}
        edges = db.execute(
            "SELECT a.id, b.id FROM edge JOIN node a ON a.node_id = src JOIN node b ON b.node_id = dst"
        ).fetchall()
    db.close()
    assert known == links.keys()
    expected = [(id_, target) for id_, target in links.items() if target in links and target != id_]
    assert sorted(edges) == sorted(expected)


if __name__ == "__main__":
    trio.run(_serve, Path(sys.argv[1]), Path(sys.argv[2]))
