"""Paths: `server.host`, `items[0].name`, `labels["app.kubernetes.io/name"]`.

A dot separates keys, `[n]` is an index counted from 0, and a quoted key (in brackets, or bare between dots) may contain
any character. The empty path is the document's root.
"""

import json
import re
from typing import Final, NamedTuple

from services.yaml.errors import Code, YamlError

_NAME: Final = re.compile(r"[^.\[\]]+")
_INDEX: Final = re.compile(r"\[(-?[0-9]{1,18})\]")
_DOUBLE: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_SINGLE: Final = re.compile(r"'((?:[^']|'')*)'")
_QUOTES: Final = ('"', "'")
_ENDS_SEGMENT: Final = frozenset((".", "[", ""))


class Key(NamedTuple):
    """A step into a mapping. `quoted` is True if the path quoted it, and it therefore means a string."""

    name: str
    quoted: bool = False


class Index(NamedTuple):
    """A step into a sequence."""

    number: int


Step = Key | Index


def parse_path(path: str, code: Code = Code.NOT_FOUND) -> list[Step]:
    """Return the steps of a path. Raises YamlError with `code`."""
    steps: list[Step] = []
    at = 0
    size = len(path)
    while at < size:
        if path[at] == "[":
            if match := _INDEX.match(path, at):
                steps.append(Index(int(match.group(1))))
                at = match.end()
            else:
                key, at = _quoted(path, at + 1)
                if key is None or not path.startswith("]", at):
                    raise _malformed(code, path, at, 'expected [number] or ["key"]')
                steps.append(key)
                at += 1
        else:
            if steps:
                if path[at] != ".":
                    raise _malformed(code, path, at, "expected . or [")
                at += 1
            key, after = _quoted(path, at)
            if key is None or path[after : after + 1] not in _ENDS_SEGMENT:
                match = _NAME.match(path, at)
                if match is None:
                    raise _malformed(code, path, at, "expected a key")
                key, after = Key(match.group()), match.end()
            steps.append(key)
            at = after
    return steps


def _quoted(path: str, at: int) -> tuple[Key | None, int]:
    if match := _DOUBLE.match(path, at):
        try:
            name = json.loads(match.group(), strict=False)
        except ValueError:
            return None, at
        return Key(str(name), True), match.end()
    if match := _SINGLE.match(path, at):
        return Key(match.group(1).replace("''", "'"), True), match.end()
    return None, at


def _malformed(code: Code, path: str, at: int, wanted: str) -> YamlError:
    return YamlError(code, f"the path {path!r} is malformed at character {at + 1}: {wanted}")


def show_path(steps: list[Step]) -> str:
    """Return the path in its usual notation."""
    out: list[str] = []
    for step in steps:
        if isinstance(step, Index):
            out.append(f"[{step.number}]")
        elif _NAME.fullmatch(step.name) and not step.name.startswith(_QUOTES):
            out.append(f".{step.name}" if out else step.name)
        else:
            out.append(f"[{json.dumps(step.name, ensure_ascii=False)}]")
    return "".join(out) or "(the root)"
