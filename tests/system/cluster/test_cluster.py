"""A service runs on a node of a real Ray cluster, and outlives the node, the cluster's head and its driver."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.system.running import RunningKernel, running, wait_until
from tests.system.support.ray_nodes import RayNodes, node_of, ray_nodes, settings, wait_here, wait_on_node

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs linckia[ray]"),
    # Ray leaves files and sockets of its own to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

HELLO = {"message": "hello"}


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with ray_nodes(2) as found:
        yield found


@pytest.fixture(scope="module")
def kernel(nodes: RayNodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    folder = tmp_path_factory.mktemp("data")
    settings(folder, nodes.address, {"echo": "num_cpus = 1"})
    with running(folder, services=["front", "echo"]) as found:
        yield found


def driver_of(kernel: RunningKernel) -> psutil.Process:
    """The kernel's cluster driver."""

    def found() -> psutil.Process | None:
        for each in psutil.Process(kernel.process.pid).children():
            # Another child may end meanwhile, and has no command line then.
            with contextlib.suppress(psutil.ZombieProcess, psutil.NoSuchProcess):
                if "services.cluster.driver" in each.cmdline():
                    return each
        return None

    return wait_until(found)


def test_the_service_runs_on_a_node_in_its_sandbox_and_answers(kernel: RunningKernel) -> None:
    status = wait_on_node(kernel, "echo")
    assert kernel.call("mcp_echo", HELLO) == HELLO
    assert status["pid"] is None
    assert "seccomp" in status["info"]["confined"]
    cluster = kernel.status()["cluster"]
    assert [node["services"] for node in cluster["nodes"] if node["name"] == node_of(status)] == [["echo"]]
    assert len(cluster["nodes"]) == 3


def test_a_crash_on_a_node_is_reported_with_its_cause(kernel: RunningKernel) -> None:
    status = wait_on_node(kernel, "echo")
    os.kill(int(status["node"].partition("process ")[2].rstrip(")")), signal.SIGSEGV)
    after = wait_until(lambda: (s := kernel.service("echo"))["generation"] > status["generation"] and s, 10)
    assert "SIGSEGV" in after["last_death"]
    assert kernel.call("mcp_echo", HELLO) == HELLO


def test_a_node_that_falls_silent_is_noticed_within_five_seconds(kernel: RunningKernel, nodes: RayNodes) -> None:
    status = wait_on_node(kernel, "echo")
    silent = nodes.named(node_of(status))
    nodes.nodes.append(nodes.add())
    nodes.freeze(silent)
    # Sent to the silent node, and then to another process.
    assert kernel.call("mcp_echo", HELLO, timeout_s=10) == HELLO
    last_death = kernel.service("echo")["last_death"]
    assert f"on node {node_of(status)}" in last_death
    noticed_s = float(last_death.partition("no ping for ")[2].partition(" s")[0])
    assert noticed_s <= 5
    assert node_of(wait_on_node(kernel, "echo")) != node_of(status)
    nodes.kill(silent)
    nodes.nodes.remove(silent)


def test_the_service_moves_when_its_node_is_killed(kernel: RunningKernel, nodes: RayNodes) -> None:
    status = wait_on_node(kernel, "echo")
    nodes.kill(nodes.named(node_of(status)))
    assert kernel.call("mcp_echo", HELLO, timeout_s=10) == HELLO
    after = wait_on_node(kernel, "echo")
    assert node_of(after) != node_of(status)


def test_it_runs_on_this_machine_while_there_is_no_driver_and_returns(kernel: RunningKernel) -> None:
    status = wait_on_node(kernel, "echo")
    driver_of(kernel).kill()
    assert kernel.call("mcp_echo", HELLO, timeout_s=10) == HELLO
    after = wait_until(lambda: (s := wait_on_node(kernel, "echo"))["generation"] > status["generation"] and s, 90)
    assert after["state"] == "ready"


def test_it_runs_on_this_machine_once_the_head_is_killed(kernel: RunningKernel, nodes: RayNodes) -> None:
    wait_on_node(kernel, "echo")
    nodes.kill_head()
    wait_here(kernel, "echo", 5)
    assert kernel.call("mcp_echo", HELLO, timeout_s=5) == HELLO
    wait_until(lambda: "is gone" in kernel.status()["cluster"]["problem"], said=lambda: kernel.status()["cluster"])


def test_the_kernel_serves_without_a_cluster(tmp_path: Path) -> None:
    settings(tmp_path, "127.0.0.1:1", {"echo": "num_cpus = 1"})
    with running(tmp_path, services=["front", "echo"]) as kernel:
        assert kernel.call("mcp_echo", HELLO) == HELLO
        assert kernel.service("echo")["node"] == ""
        assert wait_until(lambda: kernel.status()["cluster"]["problem"])
