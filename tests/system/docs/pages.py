"""Reads the commands of the documentation, runs them, and compares their output."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.system.running import REPOSITORY

PAGES = sorted(
    page
    for page in (*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md"))
    if page.name not in ("CHANGELOG.md", "ARCHITECTURE.md")
)

ANYTHING = "…"
"""Any text of an output; alone on a line, any number of lines."""

_FENCED = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^|\n\n)((?: {4}[^\n]*\n(?:\n(?= {4}))?)+)")


class Step(NamedTuple):
    """A command and its output."""

    command: str
    output: str


def steps(page: Path) -> list[Step]:
    """Return the commands in the console blocks of a page, in order."""
    found: list[Step] = []
    for kind, body in _FENCED.findall(page.read_text(encoding="utf-8")):
        if kind == "console":
            found += _steps(body)
    return found


def _steps(body: str) -> Iterator[Step]:
    command: list[str] = []
    output: list[str] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            if command:
                yield Step("\n".join(command), "\n".join(output))
            command, output = [line[2:]], []
        elif line.startswith(">") and not output and "<<" in command[0]:
            command.append(line[2:])
        else:
            output.append(line)
    if command:
        yield Step("\n".join(command), "\n".join(output))


def matches(expected: str, printed: str) -> bool:
    """Return whether an output is as documented."""
    pattern = ""
    for number, line in enumerate(expected.splitlines()):
        if line == ANYTHING:
            pattern += r"(?:\n?.*)*?"
            continue
        pattern += (r"\n?" if number else "") + ".*".join(map(re.escape, line.split(ANYTHING)))
    return re.fullmatch(pattern, printed.strip("\n")) is not None


def commands(page: Path) -> list[str]:
    """Return every command that begins with Linckia's name in the code of a page."""
    text = page.read_text(encoding="utf-8")
    fenced = [body for kind, body in _FENCED.findall(text) if kind in ("", "console", "sh", "bash", "shell")]
    indented = _INDENTED.findall(_FENCED.sub("", text))
    found = []
    for block in (*fenced, *indented):
        lines = re.sub(r"\\\n\s*", " ", block).splitlines()
        for number, line in enumerate(lines):
            command = line.strip().removeprefix("$ ").removeprefix("> ")
            # A quoted parameter may go on in the next lines.
            at = number
            while command.count("'") % 2 and at + 1 < len(lines):
                at += 1
                command += " " + lines[at].strip()
            if re.match(r"(?:scripts/)?linckia [a-z-]", command):
                found.append(re.split(r"\s{3,}|\s#\s", command)[0])
    return found


def words(command: str) -> list[str]:
    """Return the arguments of the first simple command, without redirections."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split = True
    found: list[str] = []
    for word in lexer:
        if word and set(word) <= set(";&|<>"):
            break
        found.append(word)
    return found[1:]
