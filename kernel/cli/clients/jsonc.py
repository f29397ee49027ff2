"""Edits JSON with comments and trailing commas, as editors keep their settings: one member is set or removed, and
every other byte is kept."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import msgspec

_BLANK = re.compile(r"(?:[ \t\r\n]|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_COMMENT = re.compile(r"[ \t]*(?://[^\r\n]*|/\*[^\n]*?\*/[ \t]*(?=\r?\n))")
_STRING = re.compile(r'"(?:\\.|[^"\\\n])*"')
_SCALAR = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null")
_INDENT = "  "


class NotJson(ValueError):
    """The text is not JSON, or a value on the path is not an object; the message says where."""


class _Value(msgspec.Struct):
    """A value in the text, at [start, end)."""

    start: int
    end: int
    members: dict[str, _Member] | None = None
    """Its members, if it is an object."""


class _Member(msgspec.Struct):
    """A member of an object; its name begins at `start`."""

    start: int
    value: _Value
    comma: int
    """Position of the comma behind it, or -1."""


def with_member(text: str, path: Sequence[str], value: object) -> str:
    """Return the text with the member at `path` set; objects on the way are added if they are missing.

    Raises NotJson.
    """
    newline = "\r\n" if "\r\n" in text else "\n"
    root = _parsed(text)
    if root is None:
        return text + _laid_out({path[0]: _nested(path[1:], value)}, "", _INDENT, newline) + newline
    unit = _unit(text, root)
    holder, depth = root, 0
    for depth, name in enumerate(path):
        if holder.members is None:
            raise NotJson(f"{'.'.join(path[:depth]) or 'the file'} is not an object")
        if (member := holder.members.get(name)) is None:
            break
        holder = member.value
    else:
        new = _laid_out(value, _line_indent(text, holder.start), unit, newline)
        return text[: holder.start] + new + text[holder.end :]
    return _inserted(text, holder, path[depth], _nested(path[depth + 1 :], value), unit, newline)


def without_member(text: str, path: Sequence[str]) -> str:
    """Return the text without the member at `path`; unchanged if it does not exist. Raises NotJson."""
    holder = _parsed(text)
    for name in path[:-1]:
        member = None if holder is None or holder.members is None else holder.members.get(name)
        if member is None:
            return text
        holder = member.value
    if holder is None or holder.members is None or (gone := holder.members.get(path[-1])) is None:
        return text
    names = list(holder.members)
    at = names.index(path[-1])
    if gone.comma >= 0:
        start, end = gone.start, gone.comma + 1
    else:
        start = holder.members[names[at - 1]].comma if at else gone.start
        end = gone.value.end
    # The whole line is removed if nothing else is on it.
    line = text.rfind("\n", 0, start) + 1
    rest = re.compile(r"[ \t]*\r?\n").match(text, end)
    if rest is not None and not text[line:start].strip():
        start, end = line, rest.end()
    return text[:start] + text[end:]


def member_at(text: str, path: Sequence[str]) -> object:
    """Return the value at `path`; None if it does not exist. Raises NotJson."""
    found = _parsed(text)
    for name in path:
        member = None if found is None or found.members is None else found.members.get(name)
        if member is None:
            return None
        found = member.value
    return None if found is None else _plain(text, found)


def _plain(text: str, value: _Value) -> object:
    if value.members is not None:
        return {name: _plain(text, member.value) for name, member in value.members.items()}
    part = text[value.start : value.end]
    if not part.startswith("["):
        return json.loads(part)
    found, at = [], value.start + 1
    while text[at := _skip(text, at)] != "]":
        each = _value(text, at)
        found.append(_plain(text, each))
        at = _skip(text, each.end)
        at += text[at] == ","
    return found


def _nested(path: Sequence[str], value: object) -> object:
    for name in reversed(path):
        value = {name: value}
    return value


def _laid_out(value: object, indent: str, unit: str, newline: str) -> str:
    lines = json.dumps(value, ensure_ascii=False, indent=unit).split("\n")
    return f"{newline}{indent}".join(lines)


def _inserted(text: str, holder: _Value, name: str, value: object, unit: str, newline: str) -> str:
    """Return the text with a new last member in the object `holder`."""
    assert holder.members is not None
    outer = _line_indent(text, holder.start)
    indent = outer + unit
    if not holder.members:
        new = f"{newline}{indent}{json.dumps(name)}: {_laid_out(value, indent, unit, newline)}"
        inner = text[holder.start + 1 : holder.end - 1]
        if not inner.strip():
            return f"{text[: holder.start + 1]}{new}{newline}{outer}{text[holder.end - 1 :]}"
        # A comment stays in front.
        return f"{text[: holder.end - 1].rstrip()}{new}{newline}{outer}{text[holder.end - 1 :]}"
    last = list(holder.members.values())[-1]
    if text[text.rfind("\n", 0, last.start) + 1 : last.start].strip():
        # All on one line.
        new = f" {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}"
    else:
        indent = _line_indent(text, last.start)
        new = f"{newline}{indent}{json.dumps(name)}: {_laid_out(value, indent, unit, newline)}"
    end = last.comma + 1 if last.comma >= 0 else last.value.end
    # A comment on the same line belongs to the member before.
    comment = _COMMENT.match(text, end)
    at = comment.end() if comment and new.startswith(newline) else end
    comma, trailing = ("", ",") if last.comma >= 0 else (",", "")
    return f"{text[:end]}{comma}{text[end:at]}{new}{trailing}{text[at:]}"


def _unit(text: str, root: _Value) -> str:
    """Return the indentation of one level in this file."""
    for member in (root.members or {}).values():
        line = text[text.rfind("\n", 0, member.start) + 1 : member.start]
        if line and not line.strip():
            return line
    return _INDENT


def _line_indent(text: str, at: int) -> str:
    line = text.rfind("\n", 0, at) + 1
    found = re.compile(r"[ \t]*").match(text, line)
    return found[0] if found else ""


def _skip(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found else at


def _parsed(text: str) -> _Value | None:
    """Return the text's value; None if it is blank. Raises NotJson."""
    at = _skip(text, 1 if text.startswith("\ufeff") else 0)
    if at == len(text):
        return None
    try:
        value = _value(text, at)
    except RecursionError:
        raise NotJson("it is nested too deeply") from None
    if _skip(text, value.end) != len(text):
        raise _wrong(text, _skip(text, value.end), "the end of the file")
    return value


def _value(text: str, at: int) -> _Value:
    if text.startswith("{", at):
        return _object(text, at)
    if text.startswith("[", at):
        return _array(text, at)
    if (found := _STRING.match(text, at) or _SCALAR.match(text, at)) is None:
        raise _wrong(text, at, "a value")
    try:
        json.loads(found[0])
    except ValueError:
        raise _wrong(text, at, "a valid string") from None
    return _Value(at, found.end())


def _object(text: str, start: int) -> _Value:
    members: dict[str, _Member] = {}
    at = _skip(text, start + 1)
    while not text.startswith("}", at):
        name = _STRING.match(text, at)
        if name is None:
            raise _wrong(text, at, 'a name in quotes or "}"')
        colon = _skip(text, name.end())
        if not text.startswith(":", colon):
            raise _wrong(text, colon, '":"')
        value = _value(text, _skip(text, colon + 1))
        end = _skip(text, value.end)
        has_comma = text.startswith(",", end)
        if not has_comma and not text.startswith("}", end):
            raise _wrong(text, end, '"," or "}"')
        key = json.loads(name[0])
        if key in members:
            raise _wrong(text, at, f"another name than {key!r}, which occurs twice")
        members[key] = _Member(at, value, end if has_comma else -1)
        at = _skip(text, end + has_comma)
    return _Value(start, at + 1, members)


def _array(text: str, start: int) -> _Value:
    at = _skip(text, start + 1)
    while not text.startswith("]", at):
        at = _skip(text, _value(text, at).end)
        if text.startswith(",", at):
            at = _skip(text, at + 1)
        elif not text.startswith("]", at):
            raise _wrong(text, at, '"," or "]"')
    return _Value(start, at + 1)


def _wrong(text: str, at: int, expected: str) -> NotJson:
    line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
    return NotJson(f"line {line}, column {column}: expected {expected}")
