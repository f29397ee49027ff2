"""The front matter of a note: the values of its top-level keys as text.

YAML is read as a stream of events and never constructed. Deep nesting or alias bombs therefore cost no more than their
length, and no scalar is converted to an unintended number or date.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import yaml

MAX_CHARS = 64 * 1024
"""Longer text between two lines of dashes is not front matter."""

_MAX_VALUES = 1024
_MAX_BRACKETS = 4096
"""The YAML scanner takes time quadratic in the nesting of brackets."""

_FENCE = re.compile(r"\A---[ \t]*\n(?P<yaml>.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)

_Loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


class Scalar(NamedTuple):
    """A scalar in the front matter with its lower-cased top-level key and its position.  `style` is its quote or block
    sign, empty if it is plain."""

    key: str
    value: str
    start: int
    end: int
    style: str


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """Values by lower-cased key: a scalar as a list of one; nested lists are flattened and nested mappings skipped.

    `lines` is the number of lines including the dashes, and `problem` says why it could not be read. `scalars` has each
    value with its position, `linking` every scalar at any depth that may contain a link, and `flows` the outermost flow
    collections as key, start and end. `source` is the whole front matter with its dashes.
    """

    values: dict[str, list[str]] = field(default_factory=dict)
    scalars: list[Scalar] = field(default_factory=list)
    linking: list[Scalar] = field(default_factory=list)
    flows: list[tuple[str, int, int]] = field(default_factory=list)
    lines: int = 0
    problem: str | None = None
    source: str = ""

    def first(self, key: str) -> str | None:
        """Return the first value that is not blank."""
        return next((value.strip() for value in self.values.get(key, ()) if value.strip()), None)


def normal(text: str) -> str:
    """Remove a byte order mark and convert line breaks to `\\n`."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def split(text: str) -> tuple[FrontMatter, str]:
    """Split `text` (with `\\n` line breaks) into its front matter and the rest."""
    match = _FENCE.match(text[: MAX_CHARS + 8])
    if match is None:
        return FrontMatter(), text
    front = FrontMatter(lines=match[0].rstrip("\n").count("\n") + 1, source=match[0])
    front = replace(front, problem=_read(match["yaml"], front, match.start("yaml")))
    return front, text[match.end() :]


def _read(source: str, front: FrontMatter, offset: int) -> str | None:
    """Read the top-level keys and their values.  Returns the problem, or None.

    Keys and values alternate at the top level; deeper levels are counted.
    """
    values = front.values
    if source.count("[") + source.count("{") > _MAX_BRACKETS:
        return f"front matter has more than {_MAX_BRACKETS} brackets"
    key: str | None = None
    depth = mappings = 0  # the nested mappings that are open: their content is no value
    try:
        for event in yaml.parse(source, Loader=_Loader):
            if isinstance(event, yaml.CollectionStartEvent):
                is_mapping = isinstance(event, yaml.MappingStartEvent)
                if depth == 0 and not is_mapping:
                    return "front matter is a list, not keys and values"
                if depth == 1 and key is None:
                    key = ""  # a collection as a key is skipped
                else:
                    mappings += depth > 0 and is_mapping
                depth += 1
                continue
            if isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
                mappings -= depth > 0 and mappings > 0 and isinstance(event, yaml.MappingEndEvent)
            elif isinstance(event, yaml.NodeEvent):
                # An escape can make half a surrogate pair, which is no text; an alias has no text of its own.
                value = getattr(event, "value", "").encode("utf-8", "replace").decode()
                if depth == 0:
                    return "front matter is plain text, not keys and values" if value.strip() else None
                if depth == 1 and key is None:
                    key = value.strip().lower()
                    values.setdefault(key, [])
                    continue
                if key and not mappings and value.strip() and len(values[key]) < _MAX_VALUES:
                    values[key].append(value)
                    front.scalars.append(_scalar(event, key, offset))
            if depth == 1:
                key = None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 2})" if mark is not None else ""
        return f"front matter is not valid YAML{where}: {getattr(error, 'problem', None) or error}"
    if "[[" in source or "](" in source:
        _read_linking(source, front, offset)
    return None


def _read_linking(source: str, front: FrontMatter, offset: int) -> None:
    """Collect the parts of valid YAML that may contain links: scalars at any depth, and outermost flow collections."""
    key: str | None = None
    depth = 0
    opened: tuple[int, int] | None = None
    for event in yaml.parse(source, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            if opened is None and event.flow_style:
                opened = depth, offset + _index(event.start_mark)
            if depth == 1 and key is None:
                key = ""
            depth += 1
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
            if opened is not None and opened[0] == depth:
                front.flows.append((key or "", opened[1], offset + _index(event.end_mark)))
                opened = None
        elif isinstance(event, yaml.ScalarEvent):
            scalar = _scalar(event, key or "", offset)
            if depth == 1 and key is None:
                key = scalar.value.strip().lower()
                continue
            if "[[" in scalar.value or "](" in scalar.value:
                front.linking.append(scalar)
        if depth == 1 and isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
            key = None


def _scalar(event: yaml.NodeEvent, key: str, offset: int) -> Scalar:
    # An escape can make half a surrogate pair, which is no text; an alias has no text of its own.
    value = getattr(event, "value", "").encode("utf-8", "replace").decode()
    start, end = _index(event.start_mark), _index(event.end_mark)
    return Scalar(key, value, offset + start, offset + end, getattr(event, "style", None) or "")


def _index(mark: Any) -> int:
    """Return the position of a mark; the marks of the two parsers have no common type."""
    return int(mark.index)
