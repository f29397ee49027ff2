"""Runs commands of `linckia` one after the other in this process, since to start a process for each takes longer.

python -m tests.system.docs.run_commands FOLDER <COMMANDS

COMMANDS is a JSON list with the arguments of each. They are run in FOLDER. Prints the exit code of each, and what it
wrote to standard error.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import traceback
from collections.abc import Sequence

from kernel.cli.__main__ import main


def outcome(argv: Sequence[str]) -> tuple[int, str]:
    out, error = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            code = main(argv)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except Exception:  # noqa: BLE001  # the test reports the traceback
            code = 1
            traceback.print_exc()
    error.seek(0)
    return code, error.read()


if __name__ == "__main__":
    commands = json.load(sys.stdin)
    os.chdir(sys.argv[1])
    print(json.dumps([outcome(argv) for argv in commands]))
