"""Outcomes of backups, in `backup.json` of the data directory.

It is read before the kernel holds its directory, so it imports nothing that takes long.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import msgspec

from linckia.proto.durable import replace_file

FILE: Final = "backup.json"
"""In the data directory; written by whatever makes a backup."""

MAX_PLACES = 15
"""Of which the outcome is kept, beside the newest."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Of the latest backup: times in seconds since 1970; `at` it was tried, at `succeeded` one was last made."""

    to: str
    at: float
    succeeded: float | None = None
    snapshot: str = ""
    error: str = ""
    problems: list[str] = []


def known(data_dir: Path) -> dict[str, Outcome]:
    """What became of the latest backup to each place; the last is the one tried last."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return {each.to: each for each in msgspec.json.decode((data_dir / FILE).read_bytes(), type=list[Outcome])}
    return {}


def note(data_dir: Path, outcome: Outcome) -> None:
    """Replace what is known of its place.  Raises OSError."""
    others = [each for each in known(data_dir).values() if each.to != outcome.to]
    replace_file(data_dir / FILE, msgspec.json.encode([*others[-MAX_PLACES:], outcome]) + b"\n", sync=False)
