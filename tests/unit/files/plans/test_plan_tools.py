"""Plans that call tools: for each entry that matches, once, through a pause and the death of the process."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
import trio

from proto.errors import OperationError
from proto.later import filled
from services.files.operations.plans import (
    ChainedOutcome,
    MediaCondition,
    PlanCreate,
    PlanExecute,
    PlanUpdate,
    SelectionOutcome,
    ToolOutcome,
)
from services.files.plans import executions as executing
from services.files.plans import outcomes
from tests.unit.files.plans.planning import ENTRY, Kernel, ended, executions, folder, make, members, with_kernel
from tests.unit.files.rig import index
from tests.waiting import until

A_SET = ToolOutcome(tool="sets_create", arguments={"name": "{{entry.name}}"})
"""One set for each matching entry, with its name."""


def with_files(tmp_path: Path, count: int) -> Path:
    """A root with the files `0.txt`, `1.txt`, …"""
    root = tmp_path / "root"
    root.mkdir()
    for n in range(count):
        (root / f"{n}.txt").touch()
    return root


async def test_misses_of_a_plan_with_a_tool_cost_no_transaction_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, kernel = tmp_path / "root", Kernel()
    root.mkdir()
    for n in range(300):
        (root / f"{n:03}.{'jpg' if n % 50 == 7 else 'txt'}").touch()
    noted = 0
    note = executing._Execution._note

    def counting(self: object, *arguments: object) -> None:
        nonlocal noted
        noted += 1
        note(self, *arguments)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(executing._Execution, "_note", counting)
    async with with_kernel(tmp_path / "data", root, kernel) as bench:
        wanted = MediaCondition(mediaType="image")
        await bench.call(PlanCreate(name="p", sources=[folder(root)], conditions=wanted, outcomes=[A_SET]))
        await bench.call(PlanExecute(name="p"))
        done = await ended(bench, "p")
    assert (done.entries_processed, done.entries_matched, done.outcomes_applied) == (300, 6, 6)
    assert sorted(str(given["name"]) for _, given in kernel.calls) == [f"{n:03}.jpg" for n in range(7, 300, 50)]
    assert noted == 7


async def test_an_entry_deleted_during_an_execution_has_no_outcome(tmp_path: Path) -> None:
    root, kernel = with_files(tmp_path, 4), Kernel()
    async with with_kernel(tmp_path / "data", root, kernel) as bench:
        await bench.call(PlanCreate(name="p", sources=[folder(root)], outcomes=[A_SET]))
        kernel.pause = trio.Event()
        await bench.call(PlanExecute(name="p"))
        await kernel.called()
        left = {f"{n}.txt" for n in range(4)} - {str(kernel.calls[0][1]["name"])}
        (root / (gone := max(left))).unlink()
        await index(bench, root)
        kernel.pause.set()
        done = await ended(bench, "p")
    assert (done.entries_processed, done.entries_matched) == (4, 3)
    assert {given["name"] for _, given in kernel.calls[1:]} == left - {gone}


async def test_a_resumed_plan_continues_where_it_was_paused(tmp_path: Path) -> None:
    root, kernel = with_files(tmp_path, 6), Kernel()
    async with with_kernel(tmp_path / "data", root, kernel) as bench:
        await bench.call(PlanCreate(name="p", sources=[folder(root)], outcomes=[A_SET]))
        kernel.pause = trio.Event()
        started = await bench.call(PlanExecute(name="p"))
        await kernel.called()
        await bench.call(PlanUpdate(name="p", status="paused"))
        assert (await executions(bench, "p"))[0].status == "cancelled"
        kernel.pause = None
        await bench.call(PlanUpdate(name="p", status="active"))
        done = await ended(bench, "p")
        assert (done.execution_id, done.status, done.entries_processed) == (started.execution_id, "completed", 6)
        assert sorted(str(given["name"]) for _, given in kernel.calls) == [f"{n}.txt" for n in range(6)]
        # The call in flight may have been executed; it is not repeated.
        assert done.outcomes_failed == 1

        follow = SelectionOutcome(selectionSetName="seen")
        await bench.call(PlanCreate(name="q", mode="continuous", sources=[folder(root)], outcomes=[follow]))
        await bench.call(PlanExecute(name="q"))
        await bench.call(PlanUpdate(name="q", status="paused"))
        (root / "missed.txt").touch()
        await bench.call(PlanUpdate(name="q", status="active"))

        async def told() -> bool:
            return "missed.txt" in await members(bench, "seen")

        await until(told)
        assert [one.status for one in await executions(bench, "q")] == ["running", "cancelled"]


async def test_the_tool_is_called_for_each_entry_with_its_values(tmp_path: Path) -> None:
    root, kernel = tmp_path / "root", Kernel()
    make(root)
    async with with_kernel(tmp_path / "data", root, kernel) as bench:
        arguments = {
            "path": "{{entry.path}}",
            "note": "{{ entry.name }} has {{entry.size}}",
            "sizes": ["{{entry.size}}"],
        }
        assert filled(arguments, outcomes.values_of(ENTRY), "arguments") == {
            "path": "/in/a.txt",
            "note": "a.txt has 7",
            "sizes": [7],
        }
        kernel.fails = lambda given: str(given["path"]).endswith("c.jpg")
        await bench.call(
            PlanCreate(
                name="p",
                sources=[folder(root)],
                conditions=MediaCondition(mediaType="image"),
                outcomes=[
                    ChainedOutcome(
                        outcomes=[
                            ToolOutcome(tool="inspect", arguments={"path": "{{entry.path}}"}),
                            SelectionOutcome(selectionSetName="done"),
                        ],
                        stopOnError=True,
                    )
                ],
            )
        )
        await bench.call(PlanExecute(name="p"))
        done = await ended(bench, "p")
        called = {str(given["path"]) for name, given in kernel.calls if name == "inspect"}
        assert called == {f"{root}/a.jpg", f"{root}/b.png", f"{root}/in/c.jpg"}
        assert len(kernel.calls) == 3
        assert await members(bench, "done") == {"a.jpg", "b.png"}
        assert (done.status, done.outcomes_applied, done.outcomes_failed) == ("completed", 4, 1)
        assert "that one cannot be done" in (done.error or "")


async def test_an_execution_continues_after_a_death_and_repeats_no_call(tmp_path: Path) -> None:
    root, kernel = with_files(tmp_path, 6), Kernel()
    async with with_kernel(tmp_path / "data", root, kernel) as bench:
        await bench.call(
            PlanCreate(
                name="p",
                sources=[folder(root)],
                outcomes=[
                    ToolOutcome(tool="sets_create", arguments={"name": "{{entry.path}}"}),
                    SelectionOutcome(selectionSetName="seen"),
                ],
            )
        )
        kernel.pause = trio.Event()
        started = await bench.call(PlanExecute(name="p"))
        await kernel.called()
        await bench.stop("files")
        kernel.pause.set()
        await bench.start("files")
        done = await ended(bench, "p")
        assert (done.execution_id, done.status) == (started.execution_id, "completed")
        assert (done.entries_processed, done.entries_matched) == (6, 6)
        assert len(kernel.calls) == len({str(given["name"]) for _, given in kernel.calls}) == 6
        # The call in flight may have been executed; the result says so.
        assert done.outcomes_failed == 1
        assert "it may or may not have been done" in (done.error or "")


async def test_plan_of_a_version_that_kept_no_mandates_runs_once_its_outcomes_are_given_again(tmp_path: Path) -> None:
    root, kernel = with_files(tmp_path, 1), Kernel()
    async with with_kernel(tmp_path / "data", root, kernel) as bench:
        await bench.call(PlanCreate(name="p", sources=[folder(root)], outcomes=[A_SET]))
        await bench.stop("files")
        with contextlib.closing(sqlite3.connect(tmp_path / "data" / "files" / "files.db")) as db, db:
            db.execute("UPDATE plan SET definition = json_remove(definition, '$.mandates')")
        await bench.start("files")
        with pytest.raises(OperationError, match="set its `outcomes` again"):
            await bench.call(PlanExecute(name="p"))
        await bench.call(PlanUpdate(name="p", outcomes=[A_SET]))
        await bench.call(PlanExecute(name="p"))
        assert (await ended(bench, "p")).outcomes_applied == 1
