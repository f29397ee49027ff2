"""What the loss of machines costs callers, and what a call to another machine costs.

    scripts/bench cluster [--no-model]

Three Ray nodes on this machine, one of which is the head. `embed` (with its model) or `decode` runs on the others, and
`echo` too. Callers keep idempotent calls in flight while a node is killed, and then the head. Printed are wrong, lost
and hung calls, the share that was answered within its deadline, and for each kill the longest time without an answer.

Then an `echo` on a node is timed beside one on this machine and beside an echo over a bare TLS socket with as many
bytes, all in turn.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import socket
import ssl
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import trio

from services.cluster import certificates
from tests.system.kills import Workload
from tests.system.running import RunningKernel, connection, running, wait_until
from tests.system.support.ray_nodes import RayNodes, node_of, ray_nodes, settings, wait_here, wait_on_node
from tests.system.support.workloads import WORKLOADS

NODES = 2
CALLERS = 8
DEADLINE_S = 30.0
"""The deadline of each operation called, unless the caller sets a shorter one."""

HUNG_S = 2 * DEADLINE_S
REST_S = 4.0
"""Load before and after each kill."""

ROUNDS, CALLS = 30, 20
MESSAGE = "x" * 1000


class Load:
    """Idempotent calls of one service, `CALLERS` at a time, and what became of them."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.sent = self.right = self.late = self.hung = 0
        self.wrong: list[Any] = []
        self.lost: list[Any] = []
        self.times: list[tuple[float, float]] = []
        """When each right answer's call was sent and answered."""
        self.done = trio.Event()

    async def call(self, data_dir: Path) -> None:
        """Make one call after another until `done`."""
        while not self.done.is_set():
            async with connection(data_dir) as line:
                while not self.done.is_set():
                    n = self.sent
                    self.sent += 1
                    name, params = self.workload.request(n)
                    with trio.move_on_after(HUNG_S) as waiting:
                        answer = await line.call(name, params)
                    if waiting.cancelled_caught:
                        self.hung += 1
                        break
                    if answer.failure is not None:
                        self.lost.append(answer.failure)
                    elif not self.workload.is_right(n, answer.result):
                        self.wrong.append(answer.result)
                    else:
                        self.right += 1
                        self.late += answer.returned - answer.sent > DEADLINE_S
                        self.times.append((answer.sent, answer.returned))

    def recovery_s(self, killed_at: float) -> float:
        """Return the longest time without an answer since a kill."""
        arrivals = [killed_at, *sorted(returned for _, returned in self.times if returned >= killed_at)]
        return max(after - before for before, after in itertools.pairwise(arrivals))

    def longest_s(self, since: float) -> float:
        """Return the longest that a call took that was answered after `since`."""
        return max(returned - sent for sent, returned in self.times if returned >= since)


async def _load(loads: list[Load], data_dir: Path, begun: Callable[[trio.lowlevel.TrioToken], None]) -> None:
    """Keep all loads up until they are `done`."""
    async with trio.open_nursery() as nursery:
        for load in loads:
            for _ in range(CALLERS):
                nursery.start_soon(load.call, data_dir)
        begun(trio.lowlevel.current_trio_token())


@contextmanager
def under(loads: list[Load], data_dir: Path) -> Iterator[None]:
    """Keep the loads up in a thread, since Ray starts nodes only in the main thread."""
    tokens: list[trio.lowlevel.TrioToken] = []
    thread = threading.Thread(target=trio.run, args=(_load, loads, data_dir, tokens.append))
    thread.start()
    try:
        yield
    finally:
        for load in loads:
            trio.from_thread.run_sync(load.done.set, trio_token=tokens[0])
        thread.join()


Recoveries = dict[str, list[tuple[str, float, float]]]
"""Per service: the killed process, the longest time without an answer, and the longest call after the kill."""


def assail(kernel: RunningKernel, nodes: RayNodes, loads: list[Load], kills: int) -> Recoveries:
    """Kill nodes and then the head, under load."""
    found: Recoveries = {load.workload.service: [] for load in loads}

    def strike(what: str, kill: Callable[[], None], after: Callable[[RunningKernel, str], object]) -> None:
        victim = loads[0].workload.service
        before = kernel.service(victim)["generation"]
        at = time.monotonic()
        kill()
        wait_until(lambda: kernel.service(victim)["generation"] > before, HUNG_S)
        for load in loads:
            after(kernel, load.workload.service)
            since = time.monotonic()
            wait_until(lambda: any(sent >= since for sent, _ in load.times[-CALLERS:]), HUNG_S)  # noqa: B023  # called now
        time.sleep(REST_S)
        for load in loads:
            found[load.workload.service].append((what, load.recovery_s(at), load.longest_s(at)))

    time.sleep(REST_S)
    for _ in range(kills):
        victim = nodes.named(node_of(kernel.service(loads[0].workload.service)))
        strike("node", partial(nodes.kill, victim), RunningKernel.wait_ready)
        nodes.nodes.remove(victim)
        nodes.nodes.append(nodes.add())
        for load in loads:
            wait_on_node(kernel, load.workload.service)
        time.sleep(REST_S)
    strike("head", nodes.kill_head, wait_here)
    return found


def show_log(kernel: RunningKernel) -> None:
    """Print what the kernel logged of the services."""
    for line in map(json.loads, kernel.log("kernel").splitlines()):
        print(line["time"][11:23], line["message"])


def main() -> None:
    arguments = _parser().parse_args()
    names = ["decode", "echo"] if arguments.no_model else ["embed", "echo"]
    with ExitStack() as stack:
        data = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        nodes = stack.enter_context(ray_nodes(NODES, cpus=len(names)))
        settings(data, nodes.address, dict.fromkeys(names, "num_cpus = 1"))
        kernel = stack.enter_context(running(data, services=["front", *names]))
        if arguments.log:
            stack.callback(show_log, kernel)
        for name in names:
            wait_on_node(kernel, name)
        time.sleep(1)
        report_calls(kernel)
        loads = [Load(WORKLOADS[name]) for name in names]
        with under(loads, data):
            found = assail(kernel, nodes, loads, arguments.kills)
        report(loads, found)
        if arguments.back:
            nodes.stop()
            began = time.monotonic()
            nodes.start(NODES)
            for name in names:
                wait_on_node(kernel, name, 60)
            print(f"\nback on the cluster {time.monotonic() - began:.1f} s after its head was started again")


def report(loads: list[Load], found: Recoveries) -> None:
    """Print what became of the calls."""
    print(
        f"\n{'service':<8} {'calls':>7} {'wrong':>6} {'lost':>6} {'hung':>6} {'in time':>8}  recovery p50, longest call"
    )
    for load in loads:
        share = (load.right - load.late) / load.sent
        kills = found[load.workload.service]
        times = []
        for what in ("node", "head"):
            own = [(recovery_s, longest_s) for which, recovery_s, longest_s in kills if which == what]
            p50_s = statistics.median(recovery_s for recovery_s, _ in own)
            times.append(f"{what} ({len(own)}): {p50_s:.2f} s, {max(longest for _, longest in own):.2f} s")
        print(
            f"{load.workload.service:<8} {load.sent:>7} {len(load.wrong):>6} {len(load.lost):>6} {load.hung:>6} "
            f"{share:>8.3%}  {'; '.join(times)}"
        )
        for failure in load.lost[:3]:
            print("   lost:", failure)


def report_calls(kernel: RunningKernel) -> None:
    """Print what an echo costs on a node, on this machine, and through a bare TLS socket."""
    times: tuple[list[float], list[float], list[float]] = ([], [], [])
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder), services=["front", "echo"]) as local,
        echo_over_tls() as exchange,
    ):
        trio.run(_measure, kernel, local, exchange, times)
    there, here, bare = map(statistics.median, times)
    print(f"an echo of {len(MESSAGE)} bytes, median of {len(times[0])}:")
    print(f"  a call to a node through the kernel      {there * 1e6:6.0f} µs")
    print(f"  a call to a process of this machine      {here * 1e6:6.0f} µs")
    print(f"  a bare TLS socket                        {bare * 1e6:6.0f} µs")
    print(f"  node / bare TLS {there / bare:.1f}, node / this machine {there / here:.1f}")
    print(f"  what the node adds, in bare TLS echoes   {(there - here) / bare:6.1f}")


async def _measure(
    kernel: RunningKernel,
    local: RunningKernel,
    exchange: Callable[[bytes], bytes],
    times: tuple[list[float], list[float], list[float]],
) -> None:
    data = MESSAGE.encode()
    async with connection(kernel.data_dir) as to_node, connection(local.data_dir) as to_local:
        for _ in range(ROUNDS):
            for line, found in ((to_node, times[0]), (to_local, times[1])):
                for _ in range(CALLS):
                    answer = await line.call("mcp.echo", {"message": MESSAGE})
                    assert answer.result == {"message": MESSAGE}, answer.failure
                    found.append(answer.returned - answer.sent)
            for _ in range(CALLS):
                began = time.monotonic()
                assert exchange(data) == data
                times[2].append(time.monotonic() - began)


@contextmanager
def echo_over_tls() -> Iterator[Callable[[bytes], bytes]]:
    """Yield a function that sends bytes over a TLS socket to a thread, which sends them back."""
    authority = certificates.Authority(datetime.datetime.now(datetime.UTC))
    bundle = authority.for_kernel("echo", authority.issued_at)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(bundle.certificate + bundle.key)
        file.flush()
        server.load_cert_chain(file.name)
    client = ssl.create_default_context(cadata=bundle.authority)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            accepted, _ = listener.accept()
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with server.wrap_socket(accepted, server_side=True) as end:
                while data := end.recv(65536):
                    end.sendall(data)

        thread = threading.Thread(target=serve)
        thread.start()
        plain = socket.create_connection(listener.getsockname())
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with client.wrap_socket(plain, server_hostname=certificates.kernel_name("echo")) as end:

            def exchange(data: bytes) -> bytes:
                end.sendall(data)
                found = b""
                while len(found) < len(data):
                    found += end.recv(65536)
                return found

            yield exchange
        thread.join()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-model", action="store_true", help="`decode` instead of `embed`, which needs a model")
    parser.add_argument("--kills", type=int, default=3, help="how many nodes are killed, one after the other")
    parser.add_argument("--log", action="store_true", help="print the kernel's log at the end")
    parser.add_argument("--back", action="store_true", help="start the cluster again at the end")
    return parser


if __name__ == "__main__":
    main()
