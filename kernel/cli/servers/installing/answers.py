"""What a server needs to know from its user: values given by `--set`, asked for on the terminal, or by default."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from proto.control.commands import Usage
from proto.control.terminal import escaped, say
from proto.suggestions import nearest

KINDS: Final = ("string", "number", "boolean", "file", "directory")

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
"""Characters that nobody sees, or that make a text look like another one."""


def has_hidden(text: str) -> bool:
    """Return whether a text has characters that nobody sees, or that would control a terminal."""
    return _CONTROL.search(text) is not None


def one_line(text: str, most: int = 300) -> str:
    """Return somebody else's text as one harmless line."""
    line = escaped(_CONTROL.sub(" ", text)).strip()
    return line if len(line) <= most else f"{line[:most]}…"


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A value that a server needs. `default` is used if nobody names another one."""

    name: str
    text: str = ""
    required: bool = False
    secret: bool = False
    default: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    kind: str = "string"
    many: bool = False
    least: float | None = None
    most: float | None = None

    @property
    def described(self) -> str:
        """The name, with what it is for."""
        about = [one_line(self.text, 120)] if self.text else []
        about += [f"one of {', '.join(map(one_line, self.choices))}"] if self.choices else []
        about += [f"a {self.kind}"] if self.kind in ("number", "file", "directory") else []
        about += ["true or false"] if self.kind == "boolean" else []
        return f"{self.name} ({'; '.join(about)})" if about else self.name

    def checked(self, value: str) -> str:
        """Return the value as the server gets it. Raises Usage; the value itself is not shown, as it may be secret."""
        if has_hidden(value):
            raise Usage(f"{self.name}: control characters are not allowed; write plain text in one line")
        if self.choices and value not in self.choices:
            raise Usage(f"{self.name}: must be one of {', '.join(map(one_line, self.choices))}")
        if self.kind == "boolean" and value not in ("true", "false"):
            raise Usage(f"{self.name}: must be true or false")
        if self.kind == "number":
            self._check_number(value)
        if self.kind in ("file", "directory"):
            path = Path.cwd() / Path(value).expanduser()
            if self.kind == "directory" and not path.is_dir():
                raise Usage(f"{self.name}: there is no folder {path}")
            return os.path.normpath(path)
        return value

    def _check_number(self, value: str) -> None:
        if not re.fullmatch(r"-?[0-9]{1,30}(\.[0-9]{1,30})?", value):
            raise Usage(f"{self.name}: must be a number, such as 10 or 0.5")
        if self.least is not None and float(value) < self.least:
            raise Usage(f"{self.name}: must be {self.least:g} or more")
        if self.most is not None and float(value) > self.most:
            raise Usage(f"{self.name}: must be {self.most:g} or less")


class Answers:
    """The values that the user gives. What is missing is collected, to be named all at once.

    Args:
        given: from the command line, by name.
        asks: whether somebody at the terminal can be asked.
    """

    def __init__(self, given: Mapping[str, Sequence[str]], *, asks: bool) -> None:
        self._given = {_plain(name): list(values) for name, values in given.items()}
        self._written = {_plain(name): name for name in given}
        self._asks = asks
        self._known: dict[str, list[str]] = {}
        self._missing: list[Question] = []
        self.optional: list[Question] = []
        """What could be set, and is not."""

    def of(self, question: Question) -> list[str]:
        """Return the values; empty if there are none. Raises Usage."""
        key = _plain(question.name)
        if key not in self._known:
            values = self._found(key, question)
            if len(values) > 1 and not question.many:
                raise Usage(f"{question.name}: only one value is possible; --set names it {len(values)} times")
            self._known[key] = [question.checked(value) for value in values]
        return self._known[key]

    def _found(self, key: str, question: Question) -> list[str]:
        if key in self._given:
            return self._given[key]
        if question.default:
            return list(question.default)
        if not question.required:
            self.optional.append(question)
            return []
        if self._asks:
            return [_asked(question)]
        self._missing.append(question)
        return []

    def check(self) -> None:
        """Raise Usage if a required value is missing, or `--set` names something that the server does not know."""
        if unknown := self._written.keys() - self._known.keys():
            name = self._written[min(unknown)]
            hint = nearest(_plain(name), self._known) if self._known else "; it has none"
            raise Usage(f"--set {name}: the server has no such setting{hint}")
        if self._missing:
            names = ", ".join(each.described for each in self._missing)
            raise Usage(f"the server needs {names}: --set NAME=VALUE, or --set-env NAME=VARIABLE for a secret")


def _plain(name: str) -> str:
    return name.lstrip("-").rstrip("=")


def _asked(question: Question) -> str:
    """Ask on the terminal until there is an answer; a secret is not shown. Raises Usage."""
    say(f"The server needs {question.described}:", flush=True)
    try:
        value = getpass.getpass("> ") if question.secret else input("> ")
    except EOFError:
        value = ""
    if not value.strip():
        raise Usage(f"{question.name}: a value is required; nothing was changed")
    return value.strip()
