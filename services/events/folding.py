"""Folds events: many of the same kind in one folder within a short time become one line.

Only changes of files and calls about files are folded, and only with those that say the same of another path. A death,
the end of a task, a decision, a gap or a failed call always has a line of its own.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from proto.ops.events import EventKind

NEAR_S = 60.0
"""An event joins a line whose nearest event is at most this far from it."""

LEAST = 3
"""Fewer events keep a line each."""

_TARGET = re.compile(r"(?:path|file|file_path)=(/[^\s\"]*)\Z")
"""What a call was about, if that is one file."""

_NOUNS = {"directory": "folder", "symlink": "link", "other": "special file"}
_FOLDED = (EventKind.FILE, EventKind.CHANGE)
_DISTINCT = ("outcome", "executed", "message", "cause", "why")
"""Details that an event is not folded with: they are what a reader looks for."""


class Happened(Protocol):
    """An event, as it is stored or as clients see it."""

    @property
    def number(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def subject(self) -> str: ...
    @property
    def what(self) -> str: ...
    @property
    def who(self) -> str: ...


E = TypeVar("E", bound=Happened)


@dataclass(slots=True)
class Line(Generic[E]):
    """Events that are shown as one; `few` are the first that were added, fewer than `LEAST`."""

    noun: str
    few: list[E]
    first_s: float
    last_s: float
    first: int
    last: int
    count: int = 1
    subjects: set[str] = field(default_factory=set)

    @property
    def is_folded(self) -> bool:
        """Whether the line stands for its events; otherwise each of `few` has its own."""
        return self.count >= LEAST

    @property
    def folder(self) -> str:
        """The folder of all of them, with a slash at the end."""
        return _folder(_path(self.few[0]))

    def _takes(self, at_s: float) -> bool:
        return self.first_s - NEAR_S <= at_s <= self.last_s + NEAR_S

    def _add(self, event: E, at_s: float) -> None:
        self.count += 1
        self.subjects.add(event.subject)
        self.first_s, self.last_s = min(self.first_s, at_s), max(self.last_s, at_s)
        self.first, self.last = min(self.first, event.number), max(self.last, event.number)
        if self.count < LEAST:
            self.few.append(event)

    def in_words(self) -> str:
        """Say what happened, without the folder: `10,000 files created`."""
        paths, times = len(self.subjects), self.count
        often = "" if paths == times else f", {times:,} times"
        what = self.few[0].what
        if self.few[0].kind == EventKind.CHANGE:
            return f"{what} of {counted(paths, 'path')}{often}"
        return f"{counted(paths, self.noun)} {what}{often}"


class Folding(Generic[E]):
    """Collects events, in the order of their numbers or in the opposite one, as lines in the order of their first
    events."""

    def __init__(self) -> None:
        self.lines: list[Line[E]] = []
        self._open: dict[Hashable, Line[E]] = {}

    def joins(self, event: E, at_s: float, details: Mapping[str, Any]) -> bool:
        """Return whether the event was added to a line that there is."""
        key = _key(event, details)
        line = None if key is None else self._open.get(key)
        if line is None or not line._takes(at_s):
            return False
        line._add(event, at_s)
        return True

    def add(self, event: E, at_s: float, details: Mapping[str, Any]) -> None:
        """Add an event to its line, or as a new one."""
        if self.joins(event, at_s, details):
            return
        noun = _NOUNS.get(str(details.get("type", "")), "file")
        line = Line(noun, [event], at_s, at_s, event.number, event.number, subjects={event.subject})
        self.lines.append(line)
        if (key := _key(event, details)) is not None:
            self._open[key] = line


def counted(count: int, noun: str) -> str:
    """Return `1 file`, `2 files`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _key(event: Happened, details: Mapping[str, Any]) -> Hashable | None:
    """Return what events of one line have in common; None for an event that is never folded."""
    if event.kind not in _FOLDED or any(map(details.get, _DISTINCT)) or not (path := _path(event)):
        return None
    return event.kind, event.what, event.who, _folder(path), details.get("type"), details.get("source")


def _path(event: Happened) -> str:
    if event.kind == EventKind.FILE:
        return event.subject if event.subject.startswith("/") else ""
    found = _TARGET.match(event.subject)
    return found[1] if found else ""


def _folder(path: str) -> str:
    return path[: path.rstrip("/").rfind("/") + 1]
