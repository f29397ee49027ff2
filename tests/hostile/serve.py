"""Runs `linckia` with the implant in all its services.

    python -m tests.hostile.serve REPORT SEED ARGUMENT…
    python -m tests.hostile.serve REPORT - SERVICE,… ARGUMENT…

With `-` there is no implant, and there are no services but those named.

Each turn of the kernel's event loop that takes more than `LONG_S` of processor time is written to the file REPORT as a
line of JSON, with the task whose step took most of it.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import trio
from msgspec import structs

from kernel.cli.__main__ import main
from kernel.configure import catalog
from kernel.control import operations
from kernel.control.operations import Lateness
from tests.hostile.implant import MODULE, SEED
from tests.system import subset

LONG_S = 0.02

TESTS = Path(__file__).resolve().parents[1]


class Turns(Lateness):
    """Records long turns."""

    report: Path

    def __init__(self) -> None:
        super().__init__()
        self._turn = self._step = time.thread_time()
        self._longest, self._of = 0.0, ""

    def after_io_wait(self, timeout: float) -> None:
        super().after_io_wait(timeout)
        self._turn, self._longest = time.thread_time(), 0.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._step = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if (took := time.thread_time() - self._step) > self._longest:
            self._longest, self._of = took, task.name

    def before_io_wait(self, timeout: float) -> None:
        super().before_io_wait(timeout)
        if (took := time.thread_time() - self._turn) > LONG_S:
            with self.report.open("a") as file:
                file.write(json.dumps({"turn_s": took, "longest_s": self._longest, "of": self._of}) + "\n")


def implanted(entry: catalog.ServiceEntry, seed: str) -> catalog.ServiceEntry:
    """Return the entry with the implant in front of its service."""
    env = {**entry.spec.env, MODULE: entry.spec.module, SEED: seed}
    spec = structs.replace(entry.spec, module="tests.hostile.implant", zygote=None, env=env)
    return structs.replace(entry, spec=spec, folders=(*entry.folders, TESTS))


def run() -> None:
    """Run `linckia` with the arguments after the first two."""
    report, seed = sys.argv.pop(1), sys.argv.pop(1)
    Turns.report = Path(report)
    setattr(operations, "Lateness", Turns)  # noqa: B010  # replaced for the kernel started here
    if seed == "-":
        subset.run()
    entries = tuple(implanted(entry, seed) for entry in catalog.ENTRIES)
    setattr(catalog, "ENTRIES", entries)  # noqa: B010  # its type states its length
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
