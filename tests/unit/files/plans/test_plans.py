"""Plans: what their sources find gets its outcomes, once each, on record, through the death of the process; continuous
ones act on what happens from then on."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from proto.errors import InvalidParams, OperationError
from services.files.operations.plans import (
    All,
    ChainedOutcome,
    MediaCondition,
    Outcome,
    PathCondition,
    PlanCreate,
    PlanDelete,
    PlanExecute,
    PlanList,
    PlanSource,
    PlanUpdate,
    SelectionOutcome,
    SizeCondition,
    SourceConfig,
    ToolOutcome,
)
from services.files.operations.queries import QueryCreate
from services.files.operations.sets import ResourceSetAddChild, ResourceSetCreate, ResourceSetModify
from services.files.operations.shared import Filter
from tests.unit.files.plans.planning import Kernel, ended, executions, folder, make, members, with_kernel
from tests.unit.files.rig import files_service, followed, index
from tests.waiting import until


async def test_oneshot_plan_indexes_selects_and_records_what_it_did(tmp_path: Path) -> None:
    root = tmp_path / "root"
    make(root)
    async with files_service(tmp_path / "data", root) as bench:
        await bench.call(
            PlanCreate(
                name="p",
                sources=[folder(root, "everything")],
                conditions=All(conditions=[MediaCondition(mediaType="image"), SizeCondition(minSize=100)]),
                outcomes=[SelectionOutcome(selectionSetName="large images")],
            )
        )
        started = await bench.call(PlanExecute(name="p"))
        assert (started.execution_id, started.plan_name, started.status) == (1, "p", "running")
        done = await ended(bench, "p")
        assert (done.status, done.error) == ("completed", None)
        assert (done.entries_processed, done.entries_matched, done.outcomes_applied) == (4, 2, 2)
        assert done.completed_at is not None
        assert done.completed_at >= done.started_at == started.started_at
        assert await members(bench, "everything") == {"a.jpg", "b.png", "c.jpg", "d.txt"}
        assert await members(bench, "large images") == {"b.png", "c.jpg"}
        await bench.call(
            PlanUpdate(name="p", outcomes=[SelectionOutcome(selectionSetName="large images", operation="remove")])
        )
        assert (await bench.call(PlanExecute(name="p"))).execution_id == 2
        assert (await ended(bench, "p")).status == "completed"
        assert await members(bench, "large images") == set()
        assert [each.execution_id for each in await executions(bench, "p")] == [2, 1]


async def test_sources_find_what_they_name(tmp_path: Path) -> None:
    root = tmp_path / "root"
    make(root)
    async with files_service(tmp_path / "data", root) as bench:
        await index(bench, root)
        await bench.call(QueryCreate(name="texts", query=Filter(extension="txt")))
        for name, path in (("top", "a.jpg"), ("low", "b.png")):
            await bench.call(ResourceSetCreate(name=name))
            await bench.call(ResourceSetModify(name=name, operation="add", paths=[f"{root}/{path}"]))
        await bench.call(ResourceSetAddChild(parent="top", child="low"))
        for n, (source, found) in enumerate(
            (
                (PlanSource(type="query", config=SourceConfig(query="texts")), {"d.txt"}),
                (PlanSource(type="query", config=SourceConfig(name="texts")), {"d.txt"}),
                (PlanSource(type="query", config=SourceConfig(query=Filter(kind="directory"))), {"root", "in"}),
                (PlanSource(type="resource-set", config=SourceConfig(resource_set="top")), {"a.jpg", "b.png"}),
                (
                    PlanSource(type="resource-set", config=SourceConfig(name="top", include_children=False)),
                    {"a.jpg"},
                ),
                (folder(root, recursive=False), {"a.jpg", "b.png"}),
                (folder(root / "in", include_directories=True), {"c.jpg", "d.txt"}),
                (folder(root / "in/c.jpg"), {"c.jpg"}),
            )
        ):
            await bench.call(
                PlanCreate(name=f"p{n}", sources=[source], outcomes=[SelectionOutcome(selectionSetName=f"s{n}")])
            )
            await bench.call(PlanExecute(name=f"p{n}"))
            assert (await ended(bench, f"p{n}")).status == "completed"
            assert await members(bench, f"s{n}") == found


@pytest.mark.parametrize(
    ("mode", "left"), [("append", {"old", "new"}), ("merge", {"old", "new"}), ("replace", {"new"})]
)
async def test_update_mode_decides_what_stays_in_the_target_set(tmp_path: Path, mode: str, left: set[str]) -> None:
    root = tmp_path / "root"
    (root / "in").mkdir(parents=True)
    (root / "old").touch()
    (root / "in/new").touch()
    async with files_service(tmp_path / "data", root) as bench:
        await index(bench, root)
        await bench.call(ResourceSetCreate(name="s"))
        await bench.call(ResourceSetModify(name="s", operation="add", paths=[f"{root}/old"]))
        operation = PlanCreate.__operation__  # type: ignore[attr-defined]  # set by the decorator
        await bench.call(
            operation.parse(
                {
                    "name": "p",
                    "sources": [
                        {
                            "type": "filesystem.index",
                            "target_set": "s",
                            "update_mode": mode,
                            "config": {"path": f"{root}/in"},
                        }
                    ],
                }
            )
        )
        await bench.call(PlanExecute(name="p"))
        await ended(bench, "p")
        assert await members(bench, "s") == left


async def test_failures_are_recorded_and_invalid_plans_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    async with files_service(tmp_path / "data", root) as bench:
        await bench.call(PlanCreate(name="p", sources=[folder(root / "gone")]))
        await bench.call(PlanExecute(name="p"))
        failed = await ended(bench, "p")
        assert failed.status == "failed"
        assert "gone" in (failed.error or "")
        await bench.call(
            PlanCreate(name="q", sources=[PlanSource(type="query", config=SourceConfig(query="none of that name"))])
        )
        await bench.call(PlanExecute(name="q"))
        assert "query not found" in ((await ended(bench, "q")).error or "")

        async def refused(field: str, sources: list[PlanSource], outcomes: list[Outcome]) -> None:
            with pytest.raises(InvalidParams) as error:
                await bench.call(PlanCreate(name="r", sources=sources, outcomes=outcomes))
            assert error.value.failure.field == field

        await refused("sources[0].config.path", [PlanSource(type="filesystem.index")], [])
        await refused("sources[0].config.path", [folder(tmp_path)], [])
        await refused("sources[0].config.query", [PlanSource(type="query")], [])
        await refused("sources[0].config.resource_set", [PlanSource(type="resource-set")], [])
        tool = ToolOutcome(tool="no-such-tool")
        await refused("outcomes[0].tool", [folder(root)], [tool])
        await refused("outcomes[0].outcomes[0].tool", [folder(root)], [ChainedOutcome(outcomes=[tool])])
        await refused("outcomes[0].tool", [folder(root)], [ToolOutcome(tool="kernel_shutdown")])
        await refused("outcomes[0].tool", [folder(root)], [ToolOutcome(tool="graph_forget_nodes")])
        wrong = ToolOutcome(tool="inspect", arguments={"pfad": "x"})
        await refused("outcomes[0].arguments.pfad", [folder(root)], [wrong])
        await refused(
            "outcomes[0].arguments.path",
            [folder(root)],
            [ToolOutcome(tool="inspect", arguments={"path": "{{entry.soul}}"})],
        )
        with pytest.raises(InvalidParams, match="already"):
            await bench.call(PlanCreate(name="p", sources=[folder(root)]))
        with pytest.raises(InvalidParams, match="there are: p, q"):
            await bench.call(PlanExecute(name="r"))


async def test_update_keeps_what_it_does_not_name_and_status_decides_whether_it_runs(tmp_path: Path) -> None:
    root = tmp_path / "root"
    make(root)
    async with files_service(tmp_path / "data", root) as bench:
        await bench.call(
            PlanCreate(name="p", description="d", sources=[folder(root)], conditions=PathCondition(pathContains="a"))
        )
        changed = await bench.call(PlanUpdate(name="p", outcomes=[SelectionOutcome(selectionSetName="s")]))
        assert (changed.description, changed.mode, changed.status) == ("d", "oneshot", "active")
        assert (changed.conditions, len(changed.sources)) == (PathCondition(pathContains="a"), 1)
        with pytest.raises(InvalidParams, match="clear_conditions"):
            await bench.call(PlanUpdate(name="p", conditions=PathCondition(pathContains="b"), clear_conditions=True))
        cleared = await bench.call(PlanUpdate(name="p", clear_conditions=True))
        assert (cleared.conditions, cleared.outcomes) == (None, changed.outcomes)
        for status in ("paused", "disabled"):
            operation = PlanUpdate.__operation__  # type: ignore[attr-defined]  # set by the decorator
            await bench.call(operation.parse({"name": "p", "status": status}))
            with pytest.raises(OperationError, match=status):
                await bench.call(PlanExecute(name="p"))
        await bench.call(PlanUpdate(name="p", status="active"))
        await bench.call(PlanExecute(name="p"))
        await ended(bench, "p")
        assert [plan.execution_count for plan in (await bench.call(PlanList())).plans] == [1]
        assert (await bench.call(PlanDelete(name="p"))).deleted
        await bench.call(PlanCreate(name="p", sources=[folder(root)]))
        assert await executions(bench, "p") == []


async def test_continuous_plan_acts_on_what_happens_from_then_on(tmp_path: Path) -> None:
    root, data, kernel = tmp_path / "root", tmp_path / "data", Kernel()
    make(root)
    watch = PlanSource(type="filesystem.watch", target_set="all", config=SourceConfig(path=str(root), debounce_ms=0))
    async with with_kernel(data, root, kernel) as bench:
        await bench.call(
            PlanCreate(
                name="p",
                mode="continuous",
                sources=[watch],
                conditions=MediaCondition(mediaType="image"),
                outcomes=[SelectionOutcome(selectionSetName="images")],
            )
        )
        first = await bench.call(PlanExecute(name="p"))
        assert (await bench.call(PlanExecute(name="p"))).execution_id == first.execution_id

        async def seen(name: str, wanted: set[str]) -> None:
            async def check() -> bool:
                return await members(bench, name) == wanted

            await until(check)

        await seen("images", {"a.jpg", "b.png", "c.jpg"})
        (root / "new/deep").mkdir(parents=True)
        (root / "new/deep/n.jpg").touch()
        (root / "new/deep/n.txt").touch()
        await seen("images", {"a.jpg", "b.png", "c.jpg", "n.jpg"})
        await seen("all", {"a.jpg", "b.png", "c.jpg", "d.txt", "n.jpg", "n.txt"})
        await bench.stop("files")
        (root / "m.jpg").touch()
        (root / "a.jpg").unlink()
        await bench.start("files")
        await seen("images", {"b.png", "c.jpg", "n.jpg", "m.jpg"})
        await bench.call(PlanUpdate(name="p", outcomes=[SelectionOutcome(selectionSetName="other")]))
        (root / "o.jpg").touch()
        await seen("other", {"b.png", "c.jpg", "n.jpg", "m.jpg", "o.jpg"})
        assert [each.status for each in await executions(bench, "p")] == ["running", "cancelled"]
        await bench.call(PlanUpdate(name="p", status="paused"))
        assert [each.status for each in await executions(bench, "p")] == ["cancelled", "cancelled"]

        async def unwatched() -> bool:
            return await trio.to_thread.run_sync(followed, data) == 0

        await until(unwatched)
        assert await members(bench, "images") == {"b.png", "c.jpg", "n.jpg", "m.jpg"}
