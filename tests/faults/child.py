"""Forks one process for each step of a write, and ends that process at the step: `python -m tests.faults.child`.

It has imported the services and used nothing of them, so that each fork is as a service just started.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import apsw
import trio

from tests.faults.scene import scene
from tests.faults.subjects import SUBJECTS, Subject
from tests.unit.runtime.faults import is_write

KILLED, PASSED = 9, 0
MAX_STEPS = 200


def die_at(step: int, subject: Subject, folder: Path) -> None:
    """Write 1, then be killed at the `step`th statement that writes while write 2 is under way."""
    counting = False
    seen = 0

    def trace(cursor: apsw.Cursor, statement: str, bindings: object) -> bool:
        nonlocal seen
        if counting and is_write(statement):
            seen += 1
            if seen == step:
                os._exit(KILLED)
        return True

    def hook(connection: apsw.Connection) -> None:
        connection.exec_trace = trace

    apsw.connection_hooks.append(hook)

    async def run() -> None:
        nonlocal counting
        async with scene(subject, folder) as (bench, root):
            await subject.write(bench, root, 1)
            counting = True
            await subject.write(bench, root, 2)
            # After the answer nothing is killed any more: what follows belongs to the next step.
            counting = False

    trio.run(run)


def main(name: str, folder: Path) -> None:
    """A folder for each step, `folder/STEP`, until a step was not reached."""
    for step in range(1, MAX_STEPS):
        here = folder / str(step)
        here.mkdir(parents=True)
        child = os.fork()
        if child == 0:
            try:
                die_at(step, SUBJECTS[name], here)
                os._exit(PASSED)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        print(step, code, flush=True)
        if code != KILLED:
            sys.exit(code)
    sys.exit(f"more than {MAX_STEPS} steps")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
