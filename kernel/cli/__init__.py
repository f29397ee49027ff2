"""The command line, and the commands of the kernel.

`parser` declares the commands, those of services among them (`services/NAME/commands.py`), and `__main__` runs one. It
imports the command's module only then, since an MCP client waits for `linckia stdio`, which imports nothing beyond the
standard library. Exit codes: 0 success, 1 failure, 2 wrong command or setting, 3 the data directory is held by another
kernel, 130 interrupted.
"""

from __future__ import annotations

import argparse
from importlib import import_module

from proto.control.commands import Run
from proto.names import module

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_HELD = 3
EXIT_INTERRUPTED = 130


def later(place: str) -> Run:
    """Return a function of a module below `kernel.cli`, which is imported only when the command runs."""
    name, _, function = place.rpartition(".")

    def run(arguments: argparse.Namespace) -> int:
        command: Run = getattr(import_module(module(f"kernel.cli.{name}")), function)
        return command(arguments)

    return run
