"""What modules of commands share: how commands are declared, and how they fail.

The commands of a service are in its `commands.py`: `add` declares them, `GROUP` is where they are listed. The kernel
finds the file.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

Run = Callable[[argparse.Namespace], int]
"""Runs a command, and returns its exit code. Raises Usage, Failed, ControlError, OSError."""


TAKES_SERVER = "server"
"""Default that a parser sets if it takes a server's command, after `--`."""


class Group(StrEnum):
    """The groups of the list of commands, in its order."""

    RUN = "run the kernel"
    CONNECT = "connect agents and other servers"
    USE = "call operations, see what happens"
    FILES = "notes and files"
    DOCUMENTS = "stored documents"
    CHATS = "conversations"
    DATA = "keep and move all data"


class Usage(Exception):
    """The command cannot be run as written; the message says what would be right."""


class Failed(Exception):
    """The command could not do what was asked; the message says why and what to do."""


class AddCommand(Protocol):
    """Declares a command, and returns its parser, to which options are added.

    `run` may be the name of a function of the kernel's own, below `kernel.cli`, which is imported when it runs.
    """

    def __call__(self, name: str, run: Run | str, help: str, epilog: str = "") -> argparse.ArgumentParser: ...


def add_json(*parsers: argparse.ArgumentParser, help: str = "everything, as JSON") -> None:
    for parser in parsers:
        parser.add_argument("--json", action="store_true", help=help)
