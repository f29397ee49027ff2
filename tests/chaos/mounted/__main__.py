"""Kills the processes of mounted MCP servers while clients call them, and reports what the clients noticed.

    python -m tests.chaos.mounted [--kills N] [--seed N] [--limit SECONDS] [--programs DIR | --small]

DIR has real servers: `server-everything`, `server-filesystem` and `server-memory` in `npm/node_modules`, and
`mcp-server-time` and `mcp-server-git` in the virtual environment `venv`. Exits with 1 if a call was lost, hung, wrong
or executed twice, if one failed that could be repeated, if a process was left over, or if a server did not come back.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from tests.chaos.mounted.report import lines
from tests.chaos.mounted.servers import five, small
from tests.chaos.mounted.storm import Storm
from tests.chaos.run import keep_logs


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    made = argparse.ArgumentParser(prog="python -m tests.chaos.mounted", description=(__doc__ or "").splitlines()[0])
    made.add_argument("--kills", type=int, default=1000, help="how many (1000)")
    made.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="seed; random by default")
    made.add_argument("--limit", type=float, default=600.0, help="seconds after which no more are made (600)")
    made.add_argument("--programs", type=Path, default=Path("/tmp/mcp-servers"), help="folder of the real servers")
    made.add_argument("--small", action="store_true", help="use handwritten servers")
    made.add_argument("--logs", type=Path, help="copy the logs of kernel and services to this folder at the end")
    made.add_argument("--verbose", action="store_true", help="print each kill")
    return made


def main() -> int:
    """Print the report. Returns 1 if something was wrong."""
    arguments = parser().parse_args()
    print(f"seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="linckia-mounted-") as made:
        folder = Path(made)
        is_real = not arguments.small and (arguments.programs / "npm").exists()
        servers = five(folder, arguments.programs) if is_real else small(folder, 5)
        storm = Storm(folder, servers, arguments.kills, random.Random(arguments.seed), limit_s=arguments.limit)
        if arguments.verbose:
            storm.told = lambda text: print(text, flush=True)
        try:
            storm.run()
        finally:
            keep_logs(folder, arguments.logs)
    print("\n".join(lines(storm)))
    return 1 if storm.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
