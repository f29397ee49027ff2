"""A Ray cluster of two machines: the head and the kernel on one, a node for services on the other."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import tomlkit

from tests.system.running import RunningKernel, running
from tests.system.support.network.machines import Machine, TwoMachines, two_machines
from tests.system.support.ray_nodes import STORE_BYTES, settings

HEAD_PORT = 6379
"""The machine has all ports for itself."""

QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
"""Usage is not reported to Ray's makers."""


class RayMachines:
    """Two machines, the cluster that they are, and the place for Ray's files."""

    def __init__(self, machines: TwoMachines, folder: Path, cpus: int) -> None:
        self.machines = machines
        self.address = f"{machines.here.address}:{HEAD_PORT}"
        self._folder = folder
        self._cpus = cpus

    def start_head(self) -> None:
        """Start the head of the cluster, which runs no services, on the machine with the kernel."""
        self._ray(
            self.machines.here, "--head", f"--port={HEAD_PORT}", "--num-cpus=0", "--include-dashboard=false",
            f"--temp-dir={self._folder / 'here'}",
        )  # fmt: skip

    def start_node(self) -> None:
        """Start a node on the other machine."""
        self._ray(
            self.machines.there, f"--address={self.address}", f"--num-cpus={self._cpus}",
            f"--temp-dir={self._folder / 'there'}",
        )  # fmt: skip

    def _ray(self, machine: Machine, *options: str) -> None:
        """Start Ray, and return once it is a part of the cluster."""
        log = self._folder / "start.log"
        command = (
            sys.executable, "-m", "ray.scripts.scripts", "start", *options, f"--node-ip-address={machine.address}",
            f"--object-store-memory={STORE_BYTES}",
        )  # fmt: skip
        if machine.start(*command, environment=QUIET, log=log).wait():
            raise AssertionError(f"Ray does not start: {log.read_text(errors='replace')}")

    @contextlib.contextmanager
    def kernel(
        self,
        data_dir: Path,
        services: Mapping[str, str],
        *,
        others: Sequence[str] = ("front",),
        mounts: Mapping[str, Mapping[str, object]] | None = None,
    ) -> Iterator[RunningKernel]:
        """Run a kernel with these `services` on the cluster, and `others` beside it.

        Args:
            services: the lines of each one's table in [cluster.services].
            mounts: the tables of mounted servers.
        """
        settings(data_dir, self.address, services)
        with (data_dir / "linckia.toml").open("a") as file:
            file.write(tomlkit.dumps({"mcp": mounts or {}}))
        names = ",".join([*others, *services])
        command = (*self.machines.here.within, sys.executable, "-m", "tests.system.subset", names, "serve")
        with running(data_dir, command=command) as found:
            yield found


@contextlib.contextmanager
def ray_machines(cpus: int = 3, *, seed: int = 1) -> Iterator[RayMachines]:
    """Start two machines that are a cluster; all their processes have ended afterwards. Raises CannotSeparate.

    Args:
        cpus: processors of the node.
        seed: decides which frames are lost.
    """
    # The paths of Ray's sockets are long, and may have 107 characters.
    short = tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True)
    with short as folder, two_machines(seed) as machines:
        found = RayMachines(machines, Path(folder), cpus)
        found.start_head()
        found.start_node()
        yield found
