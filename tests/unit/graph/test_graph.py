"""The graph against answers found by looking at every edge, for graphs made by chance."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from proto.errors import Executed, InvalidParams, OperationError, Unavailable
from proto.ops.graph import (
    Direction,
    GraphDelete,
    GraphNeighbors,
    GraphNodes,
    GraphPath,
    GraphPut,
    GraphStats,
    NodeState,
    Outgoing,
)
from services.graph import tables
from services.graph.main import open_service
from tests.in_process import services_in_process
from tests.unit.graph.rig import chance_graph, database, distances, state, states, stored
from tests.unit.runtime.faults import damage_page, disk, files_in, pages_of

SERVICES = {"graph": open_service}
IDS = [f"n{n}" for n in range(40)]


@pytest.mark.parametrize("seed", range(4))
async def test_neighbourhoods_and_paths_take_all_edges_into_account(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    edges = chance_graph(chance, 40, 60)
    async with services_in_process(SERVICES, tmp_path) as bench:
        await bench.call(GraphPut(corpus="notes", nodes=states(edges, IDS)))
        for direction in Direction:
            out, into = direction is not Direction.IN, direction is not Direction.OUT
            for kinds in ("AB", "a"):
                wanted = list(kinds) if kinds == "a" else []
                for start in chance.sample(IDS, 6):
                    expected = distances(edges, start, out=out, into=into, kinds=kinds.upper())
                    depth = chance.randint(1, 4)
                    near = await bench.call(
                        GraphNeighbors(id=start, depth=depth, direction=direction, kinds=wanted)
                    )  # fmt: skip
                    assert {node.id: node.depth for node in near.nodes} == {
                        id_: steps for id_, steps in expected.items() if 0 < steps <= depth
                    }
                    assert near.complete
                    assert near.degraded == []
                    assert {(e.source, e.type, e.target) for e in near.edges} <= edges
                    for goal in chance.sample(IDS, 6):
                        path = await bench.call(
                            GraphPath(source=start, target=goal, direction=direction, kinds=wanted, max_length=50)
                        )
                        assert path.found == (goal in expected)
                        assert path.complete
                        if path.found:
                            assert path.length == expected[goal]
                            assert [node.id for node in path.nodes][:: len(path.nodes) - 1 or 1][-1:] == [goal]
                            hops = [{edge.source, edge.target} for edge in path.edges]
                            ids = [node.id for node in path.nodes]
                            assert hops == [{a, b} for a, b in itertools.pairwise(ids)]
                            assert {(e.source, e.type, e.target) for e in path.edges} <= edges


@pytest.mark.parametrize("seed", range(3))
def test_the_last_statement_of_a_document_replaces_earlier_ones(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    db = database(tmp_path / "graph.db")
    truth: dict[str, set[tuple[str, str]]] = {}
    for _ in range(60):
        ids = chance.sample(IDS, 5)
        if chance.random() < 0.3:
            tables.delete(db, "notes", ids, 0)
            for id_ in ids:
                truth.pop(id_, None)
        else:
            new = {id_: {(chance.choice("AB"), chance.choice(IDS)) for _ in range(chance.randint(0, 4))} for id_ in ids}
            nodes = [
                NodeState(id=id_, edges=[Outgoing(kind=kind, target=target) for kind, target in sorted(edges)])
                for id_, edges in new.items()
            ]
            tables.put(db, "notes", nodes, 0)
            truth.update(new)
            again = tables.put(db, "notes", nodes, 0)
            assert (again.edges_added, again.edges_removed) == (0, 0)
        expected = {(source, kind, target) for source, edges in truth.items() for kind, target in edges}
        assert stored(db) == expected
        held = dict(db.execute("SELECT id, known FROM node"))
        pointed = {target for _, _, target in expected}
        assert held == {id_: int(id_ in truth) for id_ in truth.keys() | pointed}
    db.close()


async def test_edges_lead_between_corpora(tmp_path: Path) -> None:
    async with services_in_process(SERVICES, tmp_path) as bench:
        cites = Outgoing(kind="CITES", target="page-1", corpus="documents")
        note = NodeState(id="note", label="A note", source="/notes/note.md", edges=[cites])
        await bench.call(GraphPut(corpus="notes", nodes=[note]))
        near = await bench.call(GraphNeighbors(id="note"))
        assert [(node.id, node.corpus, node.known) for node in near.nodes] == [("page-1", "documents", False)]
        assert (near.edges[0].target_corpus, near.edges[0].source_corpus) == ("documents", None)
        assert near.edges[0].stated_in == "/notes/note.md"
        await bench.call(GraphPut(corpus="documents", nodes=[state("page-1", "page-2", label="Page")]))
        back = await bench.call(GraphPath(source="page-2", corpus="documents", target="note", target_corpus="notes"))
        assert [(node.id, node.label) for node in back.nodes] == [
            ("page-2", "page-2"), ("page-1", "Page"), ("note", "A note"),
        ]  # fmt: skip
        stats = await bench.call(GraphStats())
        assert (stats.nodes, stats.edges) == (3, 2)
        assert [(each.corpus, each.nodes, each.unknown) for each in stats.corpora] == [
            ("documents", 1, 1), ("notes", 1, 0),
        ]  # fmt: skip
        assert [(kind.type, kind.edges) for kind in stats.kinds] == [("CITES", 2)]
        assert (stats.hubs[0].id, stats.hubs[0].edges) == ("page-1", 2)


async def test_neighbours_of_a_hub_are_cut_and_the_answer_says_so(tmp_path: Path) -> None:
    async with services_in_process(SERVICES, tmp_path) as bench:
        leaves = [f"leaf{n:03}" for n in range(300)]
        nodes = [state("hub", *leaves), state("start", "hub"), *(state(f"in{n}", "hub") for n in range(50))]
        await bench.call(GraphPut(corpus="notes", nodes=nodes))
        cut = await bench.call(GraphNeighbors(id="start", depth=2, fan_out=20))
        assert (cut.complete, [(hub.id, hub.edges, hub.followed) for hub in cut.hubs]) == (False, [("hub", 351, 20)])
        assert len(cut.edges) == 20
        assert {"leaf000", "in0"} <= {node.id for node in cut.nodes} | {"in0"}
        assert any(node.id.startswith("in") for node in cut.nodes)
        whole = await bench.call(GraphNeighbors(id="start", depth=2, fan_out=351))
        assert (whole.complete, len(whole.nodes)) == (True, 351)
        few = await bench.call(GraphNeighbors(id="start", depth=2, fan_out=1000, limit=10))
        assert (few.complete, len(few.nodes)) == (False, 10)


async def test_missing_or_pending_data_is_never_an_empty_answer(tmp_path: Path) -> None:
    async with services_in_process(SERVICES, tmp_path) as bench:
        with pytest.raises(Unavailable, match="notes"):
            await bench.call(GraphNeighbors(id="a"))
        await bench.call(GraphPut(corpus="notes", nodes=[state("a", "b")], behind=7))
        assert (await bench.call(GraphNeighbors(id="a"))).degraded == [
            "notes: 7 nodes are not in the graph yet"
        ]  # fmt: skip
        with pytest.raises(Unavailable, match="7 nodes"):
            await bench.call(GraphNeighbors(id="c"))
        await bench.call(GraphDelete(corpus="notes", nodes=["zzz"]))
        with pytest.raises(OperationError, match="Node not found: c"):
            await bench.call(GraphPath(source="a", target="c"))
        with pytest.raises(InvalidParams, match=r"kinds.*CITES"):
            await bench.call(GraphNeighbors(id="a", kinds=["NOPE"]))
        apart = await bench.call(GraphPath(source="a", target="a"))
        assert (apart.found, apart.length, [node.id for node in apart.nodes]) == (True, 0, ["a"])


async def test_ids_come_page_by_page_and_only_known_ones(tmp_path: Path) -> None:
    async with services_in_process(SERVICES, tmp_path) as bench:
        assert (await bench.call(GraphNodes(corpus="notes"))).ids == []
        await bench.call(GraphPut(corpus="notes", nodes=[state(f"n{n}", "stub") for n in range(5)]))
        first = await bench.call(GraphNodes(corpus="notes", limit=3))
        rest = await bench.call(GraphNodes(corpus="notes", after=first.ids[-1]))
        assert (first.ids, first.more) == (["n0", "n1", "n2"], True)
        assert (rest.ids, rest.more, rest.epoch) == (["n3", "n4"], False, first.epoch)


async def test_a_damaged_database_is_set_aside_and_the_epoch_changes(tmp_path: Path) -> None:
    path = tmp_path / "graph.db"
    before = await epoch_of(path)
    path.write_bytes(b"not a database, whatever its name may say " * 100)
    assert await epoch_of(path) != before
    assert files_in(tmp_path, "graph.db.damaged-*")


async def epoch_of(path: Path) -> str:
    database = tables.open_database(path)
    try:
        return await database.read(tables.epoch)
    finally:
        database.close()


async def test_a_damaged_page_makes_the_graph_start_again_and_the_service_lives(tmp_path: Path) -> None:
    async with services_in_process(SERVICES, tmp_path) as bench:
        nodes = [state(f"n{n}", *(f"n{m}" for m in range(n))) for n in range(60)]
        await bench.call(GraphPut(corpus="notes", nodes=nodes))
        before = (await bench.call(GraphNodes(corpus="notes"))).epoch
        await bench.stop("graph")
        path = tmp_path / "graph/graph.db"
        for page in pages_of(path, "edge_reverse"):
            damage_page(path, page)
        await bench.start("graph")
        with pytest.raises(Unavailable, match="being rebuilt"):
            await bench.call(GraphNeighbors(id="n1", direction=Direction.IN))
        with pytest.raises(Unavailable, match="not in the graph yet"):
            await bench.call(GraphNeighbors(id="n1"))
        fed = await bench.call(GraphPut(corpus="notes", nodes=nodes))
        assert fed.epoch != before
        assert len((await bench.call(GraphNeighbors(id="n1", direction=Direction.IN))).nodes) == 58
        assert (await bench.call(GraphStats())).rebuilt


async def test_full_disk_undoes_a_put_says_so_and_leaves_the_reads(tmp_path: Path) -> None:
    with disk() as full:
        async with services_in_process(SERVICES, tmp_path) as bench:
            await bench.call(GraphPut(corpus="notes", nodes=[state("a", "b")]))
            for at in range(1, 12):
                full.fill(at)
                with pytest.raises(OperationError, match="nothing was done") as caught:
                    await bench.call(GraphPut(corpus="notes", nodes=[state("a", "c"), state("d", "e", kind="NEW")]))
                assert caught.value.failure.executed is Executed.NO
                assert [node.id for node in (await bench.call(GraphNeighbors(id="a"))).nodes] == ["b"]
                full.room()
            await bench.call(GraphPut(corpus="notes", nodes=[state("a", "c")]))
            assert [node.id for node in (await bench.call(GraphNeighbors(id="a"))).nodes] == ["c"]
