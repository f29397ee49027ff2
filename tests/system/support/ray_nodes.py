"""Several Ray nodes on this machine, each with processes of its own, for tests and benchmarks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from tests.system.running import RunningKernel, free_port, wait_until

STORE_BYTES = 80 * 1024 * 1024
"""The least that Ray allows. Nothing is stored there."""


class RayNodes:
    """A cluster: a head, which runs no services, and `count` nodes with `cpus` processors each."""

    def __init__(self, count: int, cpus: float = 1) -> None:
        # Usage is not reported to Ray's makers.
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        from ray.cluster_utils import Cluster

        self.port = free_port()
        self._cpus = cpus
        self._cluster: Any = None
        self._make = Cluster
        self.nodes: list[Any] = []
        self.start(count)

    def start(self, count: int) -> None:
        """Start a head at the same address as the one before, and nodes."""
        head = {
            "num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE_BYTES, "gcs_server_port": self.port,
        }  # fmt: skip
        self._cluster = self._make(initialize_head=True, head_node_args=head)
        self.nodes = [self.add() for _ in range(count)]

    def add(self) -> Any:
        """Start another node and return it."""
        return self._cluster.add_node(num_cpus=self._cpus, object_store_memory=STORE_BYTES)

    @property
    def address(self) -> str:
        found: str = self._cluster.address
        return found

    def kill(self, node: Any) -> None:
        """Kill all processes of a node and their children, as the loss of its machine does."""
        _kill(node)
        self._cluster.remove_node(node, allow_graceful=False)

    def freeze(self, node: Any) -> None:
        """Stop all processes of a node with SIGSTOP: its connections stay, and nothing answers."""
        for each in _processes(node):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.suspend()

    def kill_head(self) -> None:
        """Kill all processes of the head; the nodes are left alone."""
        _kill(self._cluster.head_node)

    def named(self, name: str) -> Any:
        """Return the node that `linckia status` shows with this name."""
        return next(node for node in self.nodes if name.partition("/")[2] and node.node_id.startswith(name[-8:]))

    def stop(self) -> None:
        """End everything."""
        for node in [*self.nodes, self._cluster.head_node]:
            # It may have been killed already.
            with contextlib.suppress(Exception):
                _kill(node)


def _processes(node: Any) -> list[psutil.Process]:
    own = [psutil.Process(each.process.pid) for listed in node.all_processes.values() for each in listed]
    return [*own, *(child for each in own for child in each.children(recursive=True))]


def _kill(node: Any) -> None:
    for each in _processes(node):
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    node.kill_all_processes(check_alive=False, allow_graceful=False)


@contextlib.contextmanager
def ray_nodes(count: int, cpus: float = 1) -> Iterator[RayNodes]:
    """Start a cluster; all its processes have ended afterwards."""
    nodes = RayNodes(count, cpus)
    try:
        yield nodes
    finally:
        nodes.stop()


def settings(folder: Path, address: str, services: Mapping[str, str]) -> None:
    """Write the settings of a kernel whose `services` run on the cluster, with the lines of each one's table."""
    tables = "".join(f"[cluster.services.{name}]\n{lines}\n" for name, lines in services.items())
    (folder / "linckia.toml").write_text(f'[cluster]\nengine = "ray"\naddress = "{address}"\n{tables}')


def wait_on_node(kernel: RunningKernel, service: str, timeout_s: float = 90) -> dict[str, Any]:
    """Wait until the service is ready on a node; return its status."""
    return wait_until(lambda: _where(kernel, service, on_node=True), timeout_s, said=lambda: kernel.service(service))


def wait_here(kernel: RunningKernel, service: str, timeout_s: float = 30) -> dict[str, Any]:
    """Wait until the service is ready on this machine; return its status."""
    return wait_until(lambda: _where(kernel, service, on_node=False), timeout_s, said=lambda: kernel.service(service))


def _where(kernel: RunningKernel, service: str, *, on_node: bool) -> dict[str, Any] | None:
    found = kernel.service(service)
    return found if found["state"] == "ready" and bool(found["node"]) is on_node else None


def node_of(status: Mapping[str, Any]) -> str:
    """Return the name of the node in a service's status."""
    found: str = status["node"].partition(" ")[0]
    return found
