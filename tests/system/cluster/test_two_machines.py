"""A service and a mounted server on another machine, over a network that is slow, loses frames, or is cut."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator, Sequence

import pytest

from proto.control.client import CallFailed, Client
from tests.system.mounts.mounting import call, small
from tests.system.running import RunningKernel, wait_until
from tests.system.support.network.machines import FAR, FAR_AND_LOSSY, NEAR, CannotSeparate
from tests.system.support.network.ray_machines import RayMachines, ray_machines
from tests.system.support.ray_nodes import wait_here, wait_on_node

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs linckia[ray]"),
    # With its fixtures, on a busy machine: Ray takes 20 s to start on two machines.
    pytest.mark.timeout(300),
]

SMALL, LARGE, VERY_LARGE = 10, 60_000, 1_000_000
"""Characters of messages. Over the lossy network, two seconds or so are needed for a large one and its answer, and more
than the ten that the call may take for a very large one."""

ANSWERED_S = 60


class Callers:
    """A thread for each of `sizes`, which calls `echo` with messages of that size one after the other."""

    def __init__(self, kernel: RunningKernel, sizes: Sequence[int], *, mounted: bool = False) -> None:
        self._kernel = kernel
        self._echo = self._mounted if mounted else self._service
        self._changed = threading.Condition()
        self._answered = [0] * len(sizes)
        self._done = False
        self.failed: list[str] = []
        self._threads = [threading.Thread(target=self._call, args=pair) for pair in enumerate(sizes)]

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done = True
        for thread in self._threads:
            thread.join()

    def _call(self, number: int, size: int) -> None:
        with Client(self._kernel.data_dir) as client:
            while not self._done:
                message = f"{number}.{self._answered[number]} ".ljust(size, "x")
                try:
                    answer = self._echo(client, message)
                    problem = "" if answer == message else f"wrong: {answer[:100]}"
                except CallFailed as error:
                    problem = str(error)
                with self._changed:
                    self._answered[number] += 1
                    self.failed += [problem] if problem else []
                    self._changed.notify_all()

    def _service(self, client: Client, message: str) -> str:
        return str(client.call_named("mcp_echo", {"message": message})["message"])

    def _mounted(self, client: Client, message: str) -> str:
        return call(self._kernel, "one", "echo", text=message)

    def answered(self, calls: int) -> None:
        """Wait until each caller has sent and been answered so many calls from now on."""
        with self._changed:
            # One may be in flight.
            wanted = [count + calls + 1 for count in self._answered]
            assert self._changed.wait_for(
                lambda: all(a >= b for a, b in zip(self._answered, wanted, strict=True)), ANSWERED_S
            ), f"answered {self._answered} times instead of {wanted}"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayMachines]:
    try:
        with ray_machines() as found:
            yield found
    except CannotSeparate as why:
        pytest.skip(str(why))


@pytest.fixture(scope="module")
def kernel(cluster: RayMachines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningKernel]:
    services = {"echo": "num_cpus = 1", "decode": "num_cpus = 1"}
    mounts = {"one": small(cluster={"num_cpus": 0.5})}
    with cluster.kernel(tmp_path_factory.mktemp("data"), services, mounts=mounts) as found:
        yield found


@pytest.fixture(autouse=True)
def near(cluster: RayMachines) -> None:
    cluster.machines.set(NEAR)


def test_calls_large_and_small_are_answered_over_a_network_with_delay(
    kernel: RunningKernel, cluster: RayMachines
) -> None:
    before = wait_on_node(kernel, "echo", 60)
    cluster.machines.set(FAR)
    with Callers(kernel, [*[SMALL] * 8, *[VERY_LARGE] * 3]) as callers:
        callers.answered(3)
    assert callers.failed == []
    after = kernel.service("echo")
    assert (after["generation"], after["node"]) == (before["generation"], before["node"])


def test_calls_are_answered_over_a_network_that_loses_frames(kernel: RunningKernel, cluster: RayMachines) -> None:
    before = wait_on_node(kernel, "echo", 60)
    wait_on_node(kernel, "decode", 60)
    dropped = cluster.machines.set(FAR_AND_LOSSY).dropped
    with Callers(kernel, [*[SMALL] * 8, LARGE]) as callers:
        callers.answered(3)
        assert "JPEG" in kernel.call("decode_formats")["pictures"]
    assert callers.failed == []
    assert cluster.machines.set(NEAR).dropped > dropped
    after = kernel.service("echo")
    assert (after["generation"], after["node"]) == (before["generation"], before["node"])
    assert kernel.service("decode")["node"] != ""


def test_a_body_that_is_under_way_for_long_is_not_taken_for_silence(
    kernel: RunningKernel, cluster: RayMachines
) -> None:
    before = wait_on_node(kernel, "echo", 60)
    cluster.machines.set(FAR_AND_LOSSY)
    # Its pings wait behind it for much longer than a node may be silent.
    with pytest.raises(CallFailed, match="no answer from service echo within 10 s"):
        kernel.call("mcp_echo", {"message": "x" * 5 * VERY_LARGE})
    after = kernel.service("echo")
    assert (after["generation"], after["node"]) == (before["generation"], before["node"]), after["last_death"]


def test_a_short_outage_costs_nothing_but_time(kernel: RunningKernel, cluster: RayMachines) -> None:
    before = wait_on_node(kernel, "echo", 60)
    with Callers(kernel, [SMALL] * 8) as callers:
        callers.answered(1)
        carried = cluster.machines.cut(1.0).carried
        callers.answered(2)
    assert callers.failed == []
    assert cluster.machines.set(NEAR).carried > carried
    after = kernel.service("echo")
    assert (after["generation"], after["node"]) == (before["generation"], before["node"])


def test_a_cut_cable_costs_no_call_and_the_service_returns_once_it_is_mended(
    kernel: RunningKernel, cluster: RayMachines
) -> None:
    before = wait_on_node(kernel, "echo", 60)
    with Callers(kernel, [SMALL] * 8) as callers:
        callers.answered(1)
        cluster.machines.cut()
        callers.answered(2)
        cut = wait_here(kernel, "echo", 5)
        assert cut["generation"] > before["generation"]
        assert float(cut["last_death"].partition("no ping for ")[2].partition(" s")[0]) <= 5
        cluster.machines.mend()
        # Nothing is placed for a minute on a node whose link broke.
        after = wait_on_node(kernel, "echo", 120)
        callers.answered(2)
    assert callers.failed == []
    assert after["node"].partition(" ")[0] == before["node"].partition(" ")[0]


def where(kernel: RunningKernel, server: str) -> list[str]:
    """The nodes on which a mounted server runs."""
    return [node["name"] for node in kernel.status()["cluster"]["nodes"] if server in node["services"]]


def test_a_mounted_server_answers_over_a_bad_network_and_continues_here_once_that_is_cut(
    kernel: RunningKernel, cluster: RayMachines
) -> None:
    # The test before has cut the cable, after which nothing is placed there for a minute.
    wait_on_node(kernel, "echo", 120)
    call(kernel, "one", "echo", text="hello")
    there = wait_until(lambda: where(kernel, "mcp_one"), 120, said=lambda: kernel.log("mcp_one"))
    cluster.machines.set(FAR_AND_LOSSY)
    with Callers(kernel, [*[SMALL] * 4, LARGE], mounted=True) as callers:
        callers.answered(3)
        cluster.machines.set(NEAR)
        assert where(kernel, "mcp_one") == there
        cluster.machines.cut()
        callers.answered(2)
        assert "was lost: no sign of life for 5 s" in kernel.log("mcp_one")
        cluster.machines.mend()
    assert callers.failed == []
