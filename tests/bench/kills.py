"""How long a killed service keeps its callers waiting.

Each service is killed 20 times with 32 idempotent calls in flight. Printed are the answers, wrong and failed ones, the
time from the kill to the next answer, and the last time from the death as seen by the kernel to READY.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path

import trio

from tests.system.kills import assail
from tests.system.running import running
from tests.system.support.workloads import WORKLOADS, make_folder, wait_for_folder

KILLS = 20

REST_S = 0.2
"""Pause between two kills, since the next standby is created after each."""


def main() -> None:
    names = sys.argv[1:] or list(WORKLOADS)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as data:
        make_folder(Path(folder))
        with running(Path(data), [Path(folder)]) as kernel:
            wait_for_folder(kernel)
            print("service    answered  wrong failed  median ms   max ms  to READY")
            for name in names:
                outcome = trio.run(partial(assail, rest_s=REST_S), kernel, WORKLOADS[name], KILLS)
                waits = outcome.to_next_answer_ms
                print(
                    f"{name:<10} {outcome.answered:>8} {len(outcome.wrong):>6} {len(outcome.failed):>6} "
                    f"{statistics.median(waits):>10.1f} {max(waits):>8.1f} {kernel.service(name)['recovery_ms']:>8.1f}"
                )


if __name__ == "__main__":
    main()
