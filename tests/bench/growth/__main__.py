"""How the cost of each path grows with what is stored and served, and the exponents.

    scripts/bench growth [--kinds notes,files] [--sizes 1000,10000,100000] [--folder DIR] [--results FILE]

For each kind and size, a data directory is filled (`fills`), and a real kernel is started on it. Measured are one
write, one search and one list (p50 of 50, and the processor time of all processes until they are at rest again), the
time from the start until the first complete answer, the memory of the services that hold it (PSS), and bytes on disk.
The exponent is log(ratio of costs) / log(ratio of sizes), between the two largest sizes. `--results` names a file of
earlier results, which is shown as well and continued, so that the sizes can be measured one by one.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.bench.growth.measuring import Figures, exponent
from tests.bench.growth.served import clients, tools
from tests.bench.growth.stored import STORED, files, stored

KINDS: dict[str, Callable[[Path, int], Figures]] = {
    **{kind: functools.partial(stored, kind) for kind in STORED},
    "files": files,
    "tools": tools,
    "clients": clients,
}
SIZES = {"tools": "10,100,1000,10000", "clients": "1,10,100,1000"}
USUAL_SIZES = "1000,10000,100000"

Results = dict[str, dict[str, Figures]]
"""Figures by kind and size."""


def show(kind: str, results: dict[str, Figures]) -> None:
    """Print the figures of a kind at each size as a table, with the exponents."""
    sizes = sorted(map(int, results))
    print(f"\n| {kind} | {' | '.join(f'{size:,}' for size in sizes)} | exponent |")
    print("|---|" + "---:|" * (len(sizes) + 1))
    for name in results[str(sizes[-1])]:
        costs = [results[str(size)].get(name) for size in sizes]
        last = [(size, cost) for size, cost in zip(sizes, costs, strict=True) if cost is not None][-2:]
        power = f"{exponent((last[0][0], last[1][0]), (last[0][1], last[1][1])):.2f}" if len(last) == 2 else ""
        print(f"| {name} | {' | '.join('' if cost is None else f'{cost:,.2f}' for cost in costs)} | {power} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/bench growth", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--sizes", help=f"default: {USUAL_SIZES}; of tools and clients, {SIZES}")
    parser.add_argument("--most", type=int, default=10**9, help="leave out larger sizes")
    parser.add_argument("--folder", help="where the data are made, and removed again (default: a temporary folder)")
    parser.add_argument("--results", type=Path, help="a JSON file of results, which is read and written")
    given = parser.parse_args()
    results: Results = json.loads(given.results.read_text()) if given.results and given.results.exists() else {}
    for kind in given.kinds.split(","):
        for size in map(int, (given.sizes or SIZES.get(kind, USUAL_SIZES)).split(",")):
            if size > given.most:
                continue
            with tempfile.TemporaryDirectory(dir=given.folder) as folder:
                figures = KINDS[kind](Path(folder).resolve(), size)
            results.setdefault(kind, {})[str(size)] = figures
            print(f"{kind} {size}, load {os.getloadavg()[0]:.1f}: {json.dumps(figures)}", flush=True)
            if given.results:
                given.results.write_text(json.dumps(results, indent=1))
        if kind in results:
            show(kind, results[kind])


if __name__ == "__main__":
    main()
