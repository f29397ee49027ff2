"""Mounted servers run on nodes of a real Ray cluster, and outlive nodes without losing or doubling a write."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import tomlkit

from proto.control.client import CallFailed
from tests.system.mounts.mounting import call, small
from tests.system.running import RunningKernel, running, wait_until
from tests.system.support.ray_nodes import RayNodes, ray_nodes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs linckia[ray]"),
    # Ray leaves files and sockets of its own to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

ON_NODE: dict[str, Any] = {"cluster": {"num_cpus": 1}}


def settings(folder: Path, address: str, mounts: Mapping[str, Mapping[str, object]]) -> None:
    folder.mkdir(exist_ok=True)
    tables = {"cluster": {"engine": "ray", "address": address}, "mcp": mounts}
    (folder / "linckia.toml").write_text(tomlkit.dumps(tables))


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with ray_nodes(2) as found:
        yield found


@pytest.fixture(scope="module")
def kernel(nodes: RayNodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    folder = tmp_path_factory.mktemp("data")
    mounts = {"one": small(env={"GIVEN": "given"}, env_from=["SECRET_OF_ONE"], **ON_NODE)}
    settings(folder, nodes.address, mounts)
    with running(folder, services=["front", "echo"], environment={"SECRET_OF_ONE": "s3cret-s3cret"}) as found:
        connected(found)
        yield found


def connected(kernel: RunningKernel) -> None:
    wait_until(lambda: kernel.status()["cluster"]["nodes"], 60, said=lambda: kernel.status()["cluster"])


def nodes_of(kernel: RunningKernel, service: str) -> list[str]:
    """The nodes that run it, by name."""
    return [node["name"] for node in kernel.status()["cluster"]["nodes"] if service in node["services"]]


def on_node(kernel: RunningKernel, service: str) -> str:
    """Wait until one node runs it; return that node."""
    [found] = wait_until(lambda: nodes_of(kernel, service), 60, said=lambda: kernel.log(service))
    return found


def started(kernel: RunningKernel) -> str:
    """The node on which the server runs, which starts for this if it rests."""
    call(kernel, "one", "echo", text="here")
    return on_node(kernel, "mcp_one")


def test_a_server_runs_on_a_node_with_its_variables_and_answers(kernel: RunningKernel) -> None:
    large = "x" * 1_000_000
    assert call(kernel, "one", "echo", text=large) == large
    node = on_node(kernel, "mcp_one")
    found = json.loads(call(kernel, "one", "environment"))
    assert (found["GIVEN"], found["SECRET_OF_ONE"]) == ("given", "s3cret-s3cret")
    assert not [name for name in found if name.startswith(("LINCKIA_NODE", "RAY_"))]
    server = psutil.Process(int(call(kernel, "one", "pid")))
    assert any("node.host" in " ".join(each.cmdline()) for each in server.parents())
    assert f"runs on node {node} as process {server.pid}" in kernel.log("mcp_one")
    with ThreadPoolExecutor(8) as callers:
        texts = [f"{number}" * 1000 for number in range(100)]
        assert list(callers.map(lambda text: call(kernel, "one", "echo", text=text), texts)) == texts


def test_a_killed_server_is_started_again_with_its_cause(kernel: RunningKernel) -> None:
    started(kernel)
    pid = int(call(kernel, "one", "pid"))
    os.kill(pid, signal.SIGKILL)
    assert call(kernel, "one", "echo", text="again") == "again"
    assert "SIGKILL" in kernel.service("mcp_one")["last_death"]
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_no_acknowledged_write_is_lost_or_doubled_when_nodes_are_killed(
    kernel: RunningKernel, nodes: RayNodes, tmp_path: Path
) -> None:
    file, acknowledged, refused = tmp_path / "lines", set[str](), list[str]()
    for number in range(40):
        if number in (10, 25):
            killed = nodes.named(started(kernel))
            nodes.nodes.append(nodes.add())
            with ThreadPoolExecutor(1) as killer:
                killing = killer.submit(nodes.kill, killed)
                append(kernel, file, f"{number}", acknowledged, refused)
                killing.result(60)
            nodes.nodes.remove(killed)
        else:
            append(kernel, file, f"{number}", acknowledged, refused)
    lines = file.read_text().split()
    assert len(lines) == len(set(lines))
    assert acknowledged <= set(lines)
    # Only a call in flight fails, and says that it may have been executed.
    assert len(refused) <= 2
    assert all("while serving mcp_one.change" in each for each in refused), refused


def append(kernel: RunningKernel, file: Path, text: str, acknowledged: set[str], refused: list[str]) -> None:
    try:
        call(kernel, "one", "append", "change", path=str(file), text=text)
        acknowledged.add(text)
    except CallFailed as error:
        refused.append(str(error))


def test_a_node_that_falls_silent_is_noticed_and_the_call_goes_elsewhere(
    kernel: RunningKernel, nodes: RayNodes
) -> None:
    node = started(kernel)
    silent = nodes.named(node)
    nodes.nodes.append(nodes.add())
    nodes.freeze(silent)
    assert call(kernel, "one", "echo", text="elsewhere") == "elsewhere"
    assert f"node {node}, or the connection to it, was lost: no sign of life for 5 s" in kernel.log("mcp_one")
    assert nodes_of(kernel, "mcp_one") != [node]
    nodes.kill(silent)
    nodes.nodes.remove(silent)


def test_a_server_on_a_node_ends_with_the_kernel(nodes: RayNodes, tmp_path: Path) -> None:
    settings(tmp_path / "data", nodes.address, {"other": small(**ON_NODE)})
    with running(tmp_path / "data", services=["front", "echo"]) as kernel:
        connected(kernel)
        pid = int(call(kernel, "other", "pid"))
        on_node(kernel, "mcp_other")
        kernel.process.kill()
        kernel.process.wait()
        wait_until(lambda: not psutil.pid_exists(pid), 30)


def test_without_a_cluster_it_runs_here_and_moves_when_there_is_one(tmp_path: Path, nodes: RayNodes) -> None:
    mounts = {"calm": small(**ON_NODE), "keeps": small(stateful=True, **ON_NODE)}
    settings(tmp_path / "data", nodes.address, mounts)
    with running(tmp_path / "data", services=["front", "echo"]) as kernel:
        connected(kernel)
        for node in list(nodes.nodes):
            nodes.kill(node)
            nodes.nodes.remove(node)
        wait_until(lambda: len(kernel.status()["cluster"]["nodes"]) == 1, 60)
        assert call(kernel, "calm", "echo", text="here") == "here"
        assert call(kernel, "keeps", "echo", text="here") == "here"
        assert "runs on this machine instead of the cluster" in kernel.log("mcp_calm")
        kept = call(kernel, "keeps", "pid")
        nodes.nodes.append(nodes.add())
        on_node(kernel, "mcp_calm")
        assert call(kernel, "calm", "echo", text="there") == "there"
        # What it keeps would be lost.
        assert call(kernel, "keeps", "pid") == kept
