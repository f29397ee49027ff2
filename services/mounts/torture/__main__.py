"""The process that makes the storm: `python -m services.mounts.torture OPTIONS`, with the options as JSON.

It runs below a guardian, which ends everything if this process, or the command above it, is killed.
"""

from __future__ import annotations

import random
import signal
import sys

import msgspec
import trio

from proto.control.terminal import complain
from services.mounts.process import guardian
from services.mounts.torture.options import Options
from services.mounts.torture.report import Report, show
from services.mounts.torture.steps import STEPS
from services.mounts.torture.storm import Storm, Useless

FAULTS, CANNOT, INTERRUPTED = 1, 2, 130
TURN_S = 0.05


async def _storm(options: Options, report: Report) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_interrupted, nursery.cancel_scope, report)
        nursery.start_soon(_turns, report)
        storm = Storm(options, nursery, report, random.Random(options.seed))
        if options.verbose:
            storm.told = complain
        try:
            await storm.run(STEPS)
        except Useless as error:
            report.refused = str(error)
        finally:
            storm.tell()
            nursery.cancel_scope.cancel()


async def _interrupted(scope: trio.CancelScope, report: Report) -> None:
    with trio.open_signal_receiver(signal.SIGINT) as signals:
        async for _ in signals:
            report.interrupted = True
            scope.cancel()


async def _turns(report: Report) -> None:
    """Measure how late this process itself is."""
    while True:
        began = trio.current_time()
        await trio.sleep(TURN_S)
        report.slowest_turn_s = max(report.slowest_turn_s, round(trio.current_time() - began - TURN_S, 3))


def main() -> int:
    """Make the storm, and print the report. Returns 1 if something was wrong, 2 if there was nothing to storm."""
    options = msgspec.json.decode(sys.argv[1], type=Options)
    report = Report(command=options.command, seed=options.seed, seconds=0.0)
    guardian.become_subreaper()
    try:
        trio.run(_storm, options, report)
    finally:
        guardian.end_all()
    if report.refused:
        complain(report.refused)
        return CANNOT
    show(report, as_json=options.json)
    if report.interrupted:
        return INTERRUPTED
    if not report.starts_s:
        return CANNOT
    return FAULTS if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
