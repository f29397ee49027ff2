"""Live sources and plans in processes of their own: killed in a storm, and none the worse; tools called with a client's
rights."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.system.running import REPOSITORY, RunningKernel, running, wait_until
from tests.unit.files.rig import differences

"""Time after which a test fails; no wait takes that long if all is well."""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    folder = tmp_path_factory.mktemp("folder")
    with running(tmp_path_factory.mktemp("data"), [folder], services=["files", "compare", "watch"]) as started:
        yield started


@pytest.fixture
def root(kernel: RunningKernel, tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    folder = Path(kernel.status()["roots"][0]) / tmp_path.name
    folder.mkdir()
    return folder


MAX_KILLS = 5


def test_storm_while_files_and_watcher_are_killed_is_in_the_index_at_its_end(
    kernel: RunningKernel, root: Path, tmp_path: Path
) -> None:
    chance = random.Random(2)
    kernel.call("sources_create", {"name": "storm", "type": "live", "path": str(root), "debounce_ms": 0})
    command = [sys.executable, "-m", "tests.unit.watch.storm", str(root), str(tmp_path / "outside"), "2", "4000"]
    kills = {"files": 0, "watch": 0}

    async def run() -> None:
        storm = await trio.lowlevel.open_process(command, cwd=REPOSITORY)
        while storm.poll() is None:
            await trio.sleep(chance.uniform(0.05, 0.15))
            name = min(kills, key=kills.__getitem__)
            # On a busy machine the storm takes long; a service that died more often would be a stated failure.
            if kills[name] < MAX_KILLS:
                await trio.to_thread.run_sync(kernel.kill, name)
                kills[name] += 1
        assert storm.returncode == 0

    trio.run(run)
    assert min(kills.values()) >= 1
    data = kernel.data_dir / "services"
    wait_until(
        lambda: not differences(data, root),
        said=lambda: (
            kernel.call("sources_get", {"name": "storm"}),
            kernel.call("watch_status"),
            differences(data, root),
        ),
    )
    kernel.wait_ready("files")
    assert kernel.call("files_diagnose")["wrong_sums"] == 0
    kernel.call("sources_delete", {"name": "storm"})


def test_plan_calls_operations_with_the_rights_of_a_client(kernel: RunningKernel, root: Path) -> None:
    for name in ("one", "two"):
        (root / f"{name}.txt").write_text(name)

    def executed(plan: str) -> dict[str, Any]:
        kernel.call("plans_execute", {"name": plan})
        wait_until(
            lambda: kernel.call("plans_get", {"name": plan})["executions"][0]["status"] != "running",
            said=lambda: json.dumps(kernel.call("plans_get", {"name": plan})),
        )
        execution: dict[str, Any] = kernel.call("plans_get", {"name": plan})["executions"][0]
        return execution

    source = {"type": "filesystem.index", "config": {"path": str(root)}}
    tool = {
        "type": "tool",
        "tool": "sets_create",
        "arguments": {"name": "set of {{entry.name}}", "description": "{{entry.path}}"},
    }
    kernel.call("plans_create", {"name": "sets", "sources": [source], "outcomes": [tool]})
    done = executed("sets")
    assert (done["status"], done["outcomes_applied"], done["outcomes_failed"]) == ("completed", 2, 0)
    made = {each["name"]: each["description"] for each in kernel.call("sets_list")["resource_sets"]}
    assert {"set of one.txt": f"{root}/one.txt", "set of two.txt": f"{root}/two.txt"}.items() <= made.items()
    again = executed("sets")
    assert (again["status"], again["outcomes_applied"], again["outcomes_failed"]) == ("completed", 0, 2)
    assert "already" in again["error"]
