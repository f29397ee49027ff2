"""Forks a process for each step of a write, which ends at that step: `python -m tests.faults.child` reads lines of
`[subject, folder, step, …]`, and prints a line for each step: the exit code, or for step 0 how many steps there are.

It has imported the services and used nothing of them, so that each fork is as a service just started.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import apsw
import trio

from tests.faults.scene import scene
from tests.faults.subjects import SUBJECTS, Subject
from tests.unit.runtime.faults import is_write

KILLED, PASSED = 9, 0


def die_at(step: int, subject: Subject, folder: Path) -> int:
    """Write 1, then be killed at the `step`th statement that writes of write 2; or say how many write."""
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
    return seen


def forked(step: int, subject: Subject, folder: Path) -> int:
    """Return the child's exit code, or the number of steps if it was not killed at one."""
    folder.mkdir(parents=True)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, str(die_at(step, subject, folder)).encode())
            os._exit(PASSED)
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as said:
        count = said.read()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (KILLED, PASSED):
        sys.exit(code)
    return code if step else int(count)


def main() -> None:
    """Make a folder for each step of each write, `FOLDER/STEP`; background work may leave the last ones out."""
    for line in sys.stdin:
        name, folder, *steps = json.loads(line)
        for step in steps:
            print(forked(step, SUBJECTS[name], Path(folder, str(step))), flush=True)


if __name__ == "__main__":
    main()
