"""Hot paths of this checkout compared with those of an earlier commit, in one run on one machine.

Both kernels run at once on folders of the same content; one is idle while the other is measured, in short blocks in
the order ABBA. Each row shows the medians of both, how many times the base's cost this checkout has, and the range of
that ratio over the rounds. A row above the limit is measured a second time before it counts. The exit code is 1 if any
row is above the limit, or fails in this checkout only.

    scripts/bench regress --base COMMIT [--rounds N] [--only SUBSTRING] [--limit 1.1] [--json FILE]
    scripts/bench regress --base-folder PATH

The commit is checked out in ~/.cache/linckia/regress and set up there, which takes some minutes the first time. The
rows `NAME, without / with key` compare this checkout with itself.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.regress.checkouts import base_checkout, commit_of, this_checkout
from tests.bench.regress.figures import BASE, BOTH, THIS, Row, heading
from tests.bench.regress.trials import Bench

ANSWER_TIMEOUT_S = 120.0
BUSY = 0.5
"""Load per core above which the figures cannot be trusted."""


def options() -> argparse.Namespace:
    description, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(prog="scripts/bench regress", description=description)
    base = parser.add_mutually_exclusive_group(required=True)
    base.add_argument("--base", metavar="COMMIT", help="the commit to compare with")
    base.add_argument("--base-folder", metavar="PATH", type=Path, help="a checkout of it that is set up already")
    parser.add_argument("--rounds", type=int, default=6, help="blocks of each path and checkout (default: 6)")
    parser.add_argument("--only", metavar="SUBSTRING", default="", help="only the paths whose names contain this")
    parser.add_argument("--limit", type=float, default=1.1, help="highest ratio that is not flagged (default: 1.1)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures to this file as well")
    return parser.parse_args()


def processor() -> str:
    """Return the processor's model and its number of cores."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = {line.partition(":")[2].strip() for line in lines if line.startswith("model name")}
    model = " / ".join(sorted(names)) or "unknown processor"
    return f"{model}, {os.cpu_count()} cores"


def main() -> int:
    """Print the table. Returns 1 if a path is slower than the limit allows."""
    given = options()
    # As after Ctrl-C, the kernels are ended and their folders removed.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    began = time.monotonic()
    # `tests` puts this checkout on PYTHONPATH, and the base would import its modules from there. Without bytecode,
    # which one of them may have already, each start would compile all modules.
    for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE"):
        os.environ.pop(name, None)
    checkouts = {BASE: base_checkout(given.base, given.base_folder), THIS: this_checkout()}
    machine, load = processor(), os.getloadavg()[0]
    print(f"{machine}, load {load:.1f}, {given.rounds} rounds")
    if load > BUSY * (os.cpu_count() or 1):
        print("other programs are using the processors: ratios of single paths may be noise", file=sys.stderr)
    for subject in BOTH:
        checkout = checkouts[subject]
        print(f"{subject}: {commit_of(checkout.folder)} ({checkout.version()})")
    print(f"\n{heading()}", flush=True)
    # Both kernels serve loopback without a token, and no answer is waited for without end.
    os.environ["LINCKIA_TOKEN"] = "off"
    socket.setdefaulttimeout(ANSWER_TIMEOUT_S)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="linckia-regress-") as folder, contextlib.ExitStack() as stack:
        bench = Bench(checkouts, Path(folder), stack, rounds=given.rounds, limit=given.limit)
        for trial in bench.trials(given.only):
            for row in bench.measured(trial):
                rows.append(row)
                print(row.line(given.limit), flush=True)
    if not rows:
        print(f"scripts/bench regress: no path is named like {given.only!r}", file=sys.stderr)
        return 2
    slower = [row.name for row in rows if row.is_slower(given.limit)]
    print(f"\n{len(rows)} rows in {time.monotonic() - began:.0f} s; above {given.limit}: {', '.join(slower) or 'none'}")
    if given.json is not None:
        figures = {
            "machine": machine,
            "load": load,
            "base": commit_of(checkouts[BASE].folder),
            "this": commit_of(checkouts[THIS].folder),
            "limit": given.limit,
            "rows": [row.as_json(given.limit) for row in rows],
        }
        given.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
