"""The tasks: what is asked, and whether it is solved. Agents get no more of a task than its `request`."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.bench.agents.chooser import Answer, Request, learned

FILE = Path(__file__).with_name("tasks.toml")

Call = tuple[str, dict[str, Any]]


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a server must have stored."""

    call: Call
    says: list[str] = []
    lacks: list[str] = []


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One task of `tasks.toml`."""

    request: str
    facts: dict[str, Any]
    calls: list[Call]
    peers: dict[str, Call] = {}
    says: list[str] = []
    file: str = ""
    has: list[str] = []
    lacks: list[str] = []
    exist: list[str] = []
    gone: list[str] = []
    state: State | None = None

    def asked(self) -> Request:
        """Return what an agent is told."""
        return Request(self.request, self.facts)

    def changes(self) -> bool:
        """Return whether it is solved by a change."""
        return bool(self.file or self.exist or self.gone or self.state)

    def is_solved(self, root: Path, answer: Answer, stored: Callable[[Call], str]) -> bool:
        """Return whether an answer and what is stored now solve it.

        Args:
            stored: returns what the server has stored, by this call.
        """
        if answer.failed or not _says(answer.text, self.says):
            return False
        files = all((root / name).exists() for name in self.exist) and not any((root / n).exists() for n in self.gone)
        file = root / self.file
        if not files or (self.file and not file.is_file()):
            return False
        text = file.read_text() if self.file else ""
        if not _says(text, self.has) or any(each in text for each in self.lacks):
            return False
        if self.state is None:
            return True
        kept = stored(self.state.call)
        return _says(kept, self.state.says) and not any(each in kept for each in self.state.lacks)


def _says(text: str, parts: Sequence[str]) -> bool:
    return all(part.casefold() in text.casefold() for part in parts)


class Tasks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file of the tasks."""

    setup: list[State]
    task: list[Task]


def load(root: Path) -> Tasks:
    """Read the tasks about the files in `root`."""
    raw = FILE.read_text().replace("{root}", str(root))
    return msgspec.convert(tomllib.loads(raw), Tasks)


def filled(arguments: Mapping[str, Any], facts: Mapping[str, Any], answers: Sequence[str]) -> dict[str, Any]:
    """Return the arguments of a call of the solution with facts and values of earlier answers in place."""

    def value(given: Any) -> Any:
        if isinstance(given, dict):
            return {key: value(each) for key, each in given.items()}
        if isinstance(given, list):
            return [value(each) for each in given]
        if isinstance(given, str) and given.startswith("$"):
            number, _, name = given[1:].rpartition(".")
            return learned(answers[int(number) - 1])[name] if number else facts[name]
        return given

    return {key: value(each) for key, each in arguments.items()}


def follow(task: Task, call: Callable[[str, dict[str, Any]], Answer]) -> Answer:
    """Make the calls of the solution; return the last answer."""
    answers: list[Answer] = []
    for name, arguments in task.calls:
        answers.append(call(name, filled(arguments, task.facts, [each.text for each in answers])))
    return answers[-1]


def size(value: object) -> int:
    """Return the tokens of a value, estimated as `scripts/bench surfaces` does."""
    return len(json.dumps(value, separators=(",", ":"), ensure_ascii=False)) // 4
