"""The paths whose cost may depend on who and what is served: clients, and the tools of a mounted server."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

from proto.control.client import Client
from tests.bench.growth import server
from tests.bench.growth.measuring import Figures, ask, calls, disk_mb, memory_mb, processor_ns, since, started
from tests.bench.parts.wire import Http, call_body, checked
from tests.system.mounts.mounting import write
from tests.system.running import RunningKernel

MOUNT = "bench"
ROUNDS = 5


def _port(kernel: RunningKernel) -> int:
    return int(kernel.status()["http_url"].rsplit(":", 1)[1].split("/")[0])


def _list(client: Http) -> tuple[int, int]:
    """Return how many tools a list has, and its bytes. To decode it would take longer than the call."""
    answer = client.ask(b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}')
    assert b'"nextCursor"' not in answer, "the list has more than one page"
    return answer.count(b'"inputSchema"'), len(answer)


def tools(folder: Path, size: int) -> Figures:
    """Return the costs of a mounted server with this many tools."""
    data = folder / "data"
    folder.mkdir(parents=True, exist_ok=True)
    command = {"command": sys.executable, "args": ["-I", "-S", server.__file__, str(size)], "cwd": str(folder)}
    write(data, {MOUNT: command})

    def whole(client: Client) -> bool:
        port = int(ask(client, "kernel_status")["http_url"].rsplit(":", 1)[1].split("/")[0])
        return _list(Http(port, path=f"/mcp/{MOUNT}"))[0] == size

    with started(data, [], ["mounts", "echo"], whole, http=True) as (kernel, figures):
        http = Http(_port(kernel), path=f"/mcp/{MOUNT}", tool="tool_0")
        names = [name for name in kernel.services() if name in ("front", "mounts") or MOUNT in name]
        figures |= {"memory MiB": memory_mb(kernel, names), "disk MB": disk_mb(data / "services")}
        figures.update(calls(kernel, lambda number: _list(http), "list"))
        figures.update(calls(kernel, lambda number: checked(http.ask(call_body(number, f"tool_{size - 1}"))), "call"))
        figures["list MB"] = _list(http)[1] / 1e6
    return figures


def clients(folder: Path, size: int) -> Figures:
    """Return the costs of this many sessions over HTTP, each of which calls."""
    with started(folder / "data", [], ["echo"], lambda client: True, http=True) as (kernel, figures):
        port, pid = _port(kernel), kernel.process.pid
        Http(port).one_by_one(20)
        before = memory_mb(kernel, ["front"])
        began, used = time.perf_counter(), processor_ns(pid)
        every = [Http(port) for _ in range(size)]
        figures["opening ms"] = (time.perf_counter() - began) / size * 1e3
        figures["opening CPU ms"] = since(used, pid) / size * 1e3
        taken: list[float] = []
        used = processor_ns(pid)
        rounds = max(ROUNDS, 200 // size)
        for number in range(rounds):
            for each in every:
                began = time.perf_counter()
                checked(each.ask(call_body(number)))
                taken.append(time.perf_counter() - began)
        figures["call p50 ms"] = statistics.median(taken) * 1e3
        figures["call CPU ms"] = since(used, pid) / len(taken) * 1e3
        figures["memory of a client KiB"] = (memory_mb(kernel, ["front"]) - before) / size * 1024
        figures["memory MiB"] = memory_mb(kernel, ["front"])
        for each in every:
            each.close()
    return figures
