"""Runs a storm of faults against the whole system under a mixed load, and reports the result.

    scripts/chaos [--seconds N] [--seed N] [--every SECONDS] [--only KIND] [--logs DIR]
    scripts/chaos --soak [--seconds N] [--every SECONDS]
    scripts/chaos --restarts N
    scripts/chaos --duplicates [--seconds N] [--seed N] [--operation NAME]

Exits with 1 if a write was lost, an answer was wrong or missing, or a process was orphaned. `--soak` runs the load
without faults, and `--restarts` kills one light service N times: both show how memory, descriptors, threads and disk
usage grow, per hour and per thousand restarts.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

import trio

from tests.chaos import soak
from tests.chaos.duplicates import duplicates
from tests.chaos.faults import FAULTS
from tests.chaos.record import report
from tests.chaos.run import keep_logs, storm
from tests.chaos.system import small_disk


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    made = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__.splitlines()[0] if __doc__ else "")
    made.add_argument("--seconds", type=float, default=60.0, help="how long (60)")
    made.add_argument(
        "--seed", type=int, default=random.randrange(1_000_000), help="seed of the storm; random by default"
    )
    made.add_argument(
        "--every",
        type=float,
        help="average seconds between two faults (1); seconds between two measurements of a soak (5)",
    )
    made.add_argument("--only", choices=[fault.kind for fault in FAULTS], help="only this kind of fault")
    made.add_argument("--logs", type=Path, help="copy the logs of kernel and services to this folder at the end")
    made.add_argument("--soak", action="store_true", help="run the load without faults")
    made.add_argument("--duplicates", action="store_true", help="send each changing call 100 times with one key")
    made.add_argument("--operation", help="with --duplicates: only this operation")
    made.add_argument("--restarts", type=int, default=0, help="kill a light service this many times")
    return made


def main() -> int:
    """Print the report. Returns 1 if anything was lost, wrong, hung or orphaned."""
    arguments = parser().parse_args()
    named = [f"--{name} {given}" for name in ("every", "only") if (given := getattr(arguments, name)) is not None]
    again = " ".join([f"scripts/chaos --seed {arguments.seed} --seconds {arguments.seconds:g}", *named])
    print(f"seed {arguments.seed}; again: {again}", flush=True)
    with tempfile.TemporaryDirectory(prefix="linckia-chaos-") as made:
        folder = Path(made) / "disk"
        with small_disk(folder) as own_disk:
            chance = random.Random(arguments.seed)
            try:
                if arguments.duplicates:
                    tally = trio.run(
                        lambda: duplicates(folder, chance, seconds=arguments.seconds, only=arguments.operation)
                    )
                    print(tally.report())
                    return 1 if tally.wrong else 0
                if arguments.restarts:
                    print(trio.run(soak.restarts, folder, arguments.restarts))
                    return 0
                if arguments.soak:
                    record, further = trio.run(soak.soak, folder, chance, arguments.seconds, arguments.every or 5.0)
                else:
                    kinds = [
                        kind
                        for kind in FAULTS
                        if arguments.only in (None, kind.kind) and (own_disk or not kind.own_disk)
                    ]
                    record, further = trio.run(
                        lambda: storm(folder, kinds, chance, seconds=arguments.seconds, every_s=arguments.every or 1.0)
                    )
            finally:
                keep_logs(folder, arguments.logs)
    print(report(record, further))
    return 1 if record.failed else 0


if __name__ == "__main__":
    sys.exit(main())
