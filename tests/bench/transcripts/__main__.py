"""Conversations at scale: ingestion, search and the proxy.

    scripts/bench transcripts [ingest dedup lineage search stripping proxy import] [--folder DIR]

Runs all parts unless some are named. Each prints its figures next to a peer's, measured in the same run.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.bench.transcripts import importing, ingesting, proxying, searching

PARTS: dict[str, Callable[[Path], None]] = {
    "ingest": ingesting.ingest,
    "dedup": ingesting.dedup,
    "lineage": ingesting.lineage,
    "search": searching.search,
    "stripping": searching.stripping,
    "proxy": proxying.delay,
    "import": importing.import_,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench transcripts")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of: {', '.join(PARTS)}")
    parser.add_argument("--folder", type=Path, help="where to put the data (default: a temporary folder)")
    arguments = parser.parse_args()
    for name in arguments.parts or PARTS:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            print(f"# {name}", flush=True)
            PARTS[name](Path(folder))


if __name__ == "__main__":
    main()
