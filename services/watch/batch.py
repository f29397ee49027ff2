"""A batch: entries that are looked at together, and decisions that wait until all of them were."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from services.watch.snapshot import Seen

MAX_NAMES: Final = 4096
"""Entries of one folder that are looked at one by one; with more, all of it is."""

Names = dict[bytes, bool]
"""Entries to look at, and whether something happened to them (or they are only looked at a second time)."""

Work = dict[int, Names | None]
"""Folders with the entries to look at; None stands for all."""


class Found(NamedTuple):
    """An entry that was not known, as it was in a certain turn."""

    folder: int
    name: bytes
    seen: Seen
    turn: int


class Missed(NamedTuple):
    """An entry that was not there in a certain turn."""

    folder: int
    name: bytes
    turn: int


@dataclass(slots=True)
class Batch:
    """Work that is done together, so that an entry gone from one place can be found in another.

    `sweep` has all folders of these trees looked at.
    """

    work: Work = field(default_factory=dict)
    roots: set[int] = field(default_factory=set)
    sweep: tuple[int, ...] = ()
    seconds: float = 0.0
    doubtful: dict[tuple[int, bytes], bool] = field(default_factory=dict)
    """Followed folders that are not where they were; True where something else is there now."""
    gone: dict[int, list[Missed]] = field(default_factory=dict)
    """Files by inode."""
    fresh: list[Found] = field(default_factory=list)
    """Files, and other entries without more below."""
    again: Work = field(default_factory=dict)
    """Work for another batch: entries that were seen too soon after their change, folders that were not where they were
    thought to be."""
    steps: Iterator[None] | None = None

    def add(self, folder: int) -> None:
        """Have a whole folder looked at."""
        self.work[folder] = None

    def postpone(self, folder: int, names: Names | None) -> None:
        """Leave work to another batch."""
        merge(self.again, folder, names)


def merge(work: Work, folder: int, names: Names | None) -> None:
    """Add to some work; with too many names of a folder, all of the folder is looked at."""
    known = None if names is None else work.setdefault(folder, {})
    if names is None or known is None:
        work[folder] = None
        return
    for name, touched in names.items():
        known[name] = known.get(name, False) or touched
    if len(known) > MAX_NAMES:
        work[folder] = None
