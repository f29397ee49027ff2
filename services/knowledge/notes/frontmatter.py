"""The front matter of a note: its top-level keys as text, whatever else it holds.

YAML is read as a stream of events, never as a tree: neither a deep nest nor an alias bomb can cost more than its own
length, no scalar is turned into a number or a date that its writer did not mean, and nothing is constructed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import yaml

MAX_CHARS = 64 * 1024
"""More than this between two lines of dashes is not front matter."""

_MAX_VALUES = 1024
_MAX_BRACKETS = 4096
"""The YAML scanner's time grows with the square of how deep brackets nest."""

_FENCE = re.compile(r"\A---[ \t]*\n(?P<yaml>.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)

_Loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


class Scalar(NamedTuple):
    """A text in the front matter, its lower-cased top-level key, and where it stands; `style` is its quote, empty where
    it has none."""

    key: str
    value: str
    start: int
    end: int
    style: str


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """Values by lower-cased key: a scalar as a list of one, a nested list flattened, a nested mapping passed over.

    `lines` counts its lines with the dashes; `problem` says why it could not be read. `scalars` has each value with
    where it stands in the text, `linking` every text at any depth that may hold a link, `flows` the outermost flow
    collections by key, start and end; `source` is the whole front matter with its dashes.
    """

    values: dict[str, list[str]] = field(default_factory=dict)
    scalars: list[Scalar] = field(default_factory=list)
    linking: list[Scalar] = field(default_factory=list)
    flows: list[tuple[str, int, int]] = field(default_factory=list)
    lines: int = 0
    problem: str | None = None
    source: str = ""

    def first(self, key: str) -> str | None:
        """The first value that is not blank."""
        return next((value.strip() for value in self.values.get(key, ()) if value.strip()), None)


def normal(text: str) -> str:
    """Without a byte order mark, line breaks `\\n`."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def split(text: str) -> tuple[FrontMatter, str]:
    """The front matter of `text` (line breaks are `\\n`) and what follows it."""
    match = _FENCE.match(text[: MAX_CHARS + 8])
    if match is None:
        return FrontMatter(), text
    front = FrontMatter(lines=match[0].rstrip("\n").count("\n") + 1, source=match[0])
    front = replace(front, problem=_read(match["yaml"], front, match.start("yaml")))
    return front, text[match.end() :]


def _read(source: str, front: FrontMatter, offset: int) -> str | None:
    """Take in the top-level keys with their values; answers the problem. Keys and values alternate there, deeper levels
    count."""
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
    """Collect the places in valid YAML that may hold links: texts at any depth, and outermost flow collections."""
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
    """Where a mark stands in the source: those of the two parsers have no type in common."""
    return int(mark.index)
