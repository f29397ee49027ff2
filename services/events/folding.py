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

LEAST = 5
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

    def add(self, event: E, at_s: float, details: Mapping[str, Any]) -> None:
        """Add an event to its line, or as a new one."""
        key = key_of(event, details)
        if key is None or not self.join(key, event, at_s):
            self.begin(key, event, at_s, details)

    def join(self, key: Hashable, event: E, at_s: float) -> bool:
        """Add an event to the line with its key, if there is one that it is near to; return whether it was added."""
        line = self._open.get(key)
        if line is None or not line.first_s - NEAR_S <= at_s <= line.last_s + NEAR_S:
            return False
        line.count += 1
        line.subjects.add(event.subject)
        if at_s < line.first_s:
            line.first_s = at_s
        elif at_s > line.last_s:
            line.last_s = at_s
        if event.number < line.first:
            line.first = event.number
        else:
            line.last = event.number
        if line.count < LEAST:
            line.few.append(event)
        return True

    def begin(self, key: Hashable, event: E, at_s: float, details: Mapping[str, Any]) -> None:
        """Add an event as a line of its own, which later ones with its key may join, unless the key is None."""
        noun = _NOUNS.get(str(details.get("type", "")), "file")
        line = Line(noun, [event], at_s, at_s, event.number, event.number, subjects={event.subject})
        self.lines.append(line)
        if key is not None:
            self._open[key] = line


def counted(count: int, noun: str) -> str:
    """Return `1 file`, `2 files`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def key_of(event: Happened, details: Mapping[str, Any]) -> Hashable | None:
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
