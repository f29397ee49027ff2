"""Notes under kills: three are written and edited and one with links to it is renamed, through the Python SDK over
stdio, while `knowledge` is killed in the midst of it, again and again.

    scripts/bench note_writes [--kills 1000] [--seed 0]

Printed are the calls that were acknowledged, those that failed and how, and all that was wrong: nothing should be.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import trio

from tests.system.note_writing import SERVICES, audit, torment
from tests.system.running import running


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "notes"
        root.mkdir()
        with running(Path(folder) / "data", [root], services=SERVICES) as kernel:
            began = time.monotonic()

            async def work() -> list[str]:
                seen = await torment(kernel, root, given.kills, seed=given.seed)
                print(f"{seen.kills} kills in {time.monotonic() - began:.0f} s")
                print(f"{seen.acknowledged} calls acknowledged, {seen.renamed} of them renamings or finished ones")
                for reason, times in seen.failures.most_common():
                    print(f"  {times} times: {reason}")
                return seen.wrong + await trio.to_thread.run_sync(audit, kernel, root)

            wrong = trio.run(work)
    print(f"wrong: {len(wrong)}")
    for each in wrong[:20]:
        print(f"  {each[:1000]}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
