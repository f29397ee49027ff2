"""The cost of the surfaces to a model, and of a `query` step compared with a separate call.

A token of a surface's `tools/list` is four characters of compact JSON; o200k_base, a large model's tokenizer, counts 2
% fewer for these lists. Steps and calls are `mcp.echo`, in turn, by the same raw client.

    scripts/bench surfaces [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from proto import ops
from proto.operation import SURFACES
from services.front.surfaces.surface import Surface
from tests.bench.parts.wire import Stdio, checked
from tests.system.running import running

STEPS = (1, 2, 5, 10)
CALLS = 200


def tokens() -> None:
    table = ops.load()
    print(f"{'surface':14}{'tools':>6}{'steps':>7}{'tokens':>8}{'with results':>14}{'instructions':>14}{'largest':>14}")
    for name in SURFACES:
        surface = Surface(name, table)
        listed = surface.listed_tools
        bare = [{key: value for key, value in tool.items() if key != "outputSchema"} for tool in listed]
        steps = len(surface.steps.names()) if "query" in surface.tools else 0
        counts = (size({"tools": bare}), size({"tools": listed}), size(surface.instructions), max(map(size, bare)))
        print(f"{name:14}{len(listed):6}{steps:7}{counts[0]:8}{counts[1]:14}{counts[2]:14}{counts[3]:14}")


def size(value: object) -> int:
    return len(json.dumps(value, separators=(",", ":"), ensure_ascii=False)) // 4


def request(name: str, arguments: dict[str, Any]) -> bytes:
    params = {"name": name, "arguments": arguments}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()


def seconds(client: Stdio, messages: list[bytes]) -> float:
    start = time.perf_counter()
    for message in messages:
        checked(client.exchange(message))
    return time.perf_counter() - start


def overhead(rounds: int) -> None:
    call = request("mcp.echo", {"message": "hello, sea star"})
    step = {"op": "mcp.echo", "params": {"message": "hello, sea star"}}
    taken: dict[tuple[str, int], list[float]] = {(kind, n): [] for n in STEPS for kind in ("calls", "query")}
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), all_ready=False) as kernel:
        kernel.wait_ready("echo")
        client = Stdio([sys.executable, "-P", "-m", "kernel.cli", "stdio", "--data", folder])
        seconds(client, [call] * 100)
        for _ in range(rounds):
            for n in STEPS:
                query = request("query", {"steps": [step] * n})
                for _ in range(CALLS // n):
                    taken["calls", n].append(seconds(client, [call] * n))
                    taken["query", n].append(seconds(client, [query]))
        client.close()
    print(f"\n{'steps':>6}{'calls ms':>10}{'query ms':>10}{'ratio':>8}   (p50; the same echoes, one after the other)")
    for n in STEPS:
        calls, query_s = (statistics.median(taken[kind, n]) * 1e3 for kind in ("calls", "query"))
        print(f"{n:6}{calls:10.2f}{query_s:10.2f}{query_s / calls:8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench surfaces", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="rounds over all counts of steps (default: 3)")
    rounds = parser.parse_args().rounds
    tokens()
    overhead(rounds)


if __name__ == "__main__":
    main()
