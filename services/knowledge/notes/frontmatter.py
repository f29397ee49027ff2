"""The front matter of a note: its top-level keys as text, whatever else it holds.

YAML is read as a stream of events, never as a tree: neither a deep nest nor an alias bomb can cost more than its own
length, no scalar is turned into a number or a date that its writer did not mean, and nothing is constructed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import yaml

MAX_CHARS = 64 * 1024
"""More than this between two lines of dashes is not front matter."""

_MAX_VALUES = 1024
_MAX_BRACKETS = 4096
"""The YAML scanner's time grows with the square of how deep brackets nest."""

_FENCE = re.compile(r"\A---[ \t]*\n(?P<yaml>.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)

_Loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """Values by lower-cased key: a scalar as a list of one, a nested list flattened, a nested mapping passed over.

    `lines` counts its lines with the dashes; `problem` says why it could not be read.
    """

    values: dict[str, list[str]] = field(default_factory=dict)
    lines: int = 0
    problem: str | None = None

    def first(self, key: str) -> str | None:
        """The first value that is not blank."""
        return next((value.strip() for value in self.values.get(key, ()) if value.strip()), None)


def split(text: str) -> tuple[FrontMatter, str]:
    """The front matter of `text` (line breaks are `\\n`) and what follows it."""
    match = _FENCE.match(text[: MAX_CHARS + 8])
    if match is None:
        return FrontMatter(), text
    values, problem = _values(match["yaml"])
    return FrontMatter(values, match[0].rstrip("\n").count("\n") + 1, problem), text[match.end() :]


class _NotKeysAndValues(Exception):
    """The front matter is something else; '' where it is nothing."""


class _TopLevel:
    """The top-level keys of a stream of events: "map" and "key" alternate there, deeper levels only count."""

    def __init__(self) -> None:
        self.values: dict[str, list[str]] = {}
        self._depth = 0
        self._mappings = 0
        """Nested ones that are open: what is in them is skipped."""
        self._key: str | None = None

    def begin(self, *, is_mapping: bool) -> None:
        if self._depth == 0 and not is_mapping:
            raise _NotKeysAndValues("front matter is a list, not keys and values")
        if self._depth == 1 and self._key is None:
            self._key = ""  # a collection as a key is skipped
        elif self._depth >= 1 and is_mapping:
            self._mappings += 1
        self._depth += 1

    def end(self, *, is_mapping: bool) -> None:
        self._depth -= 1
        if self._depth >= 1 and is_mapping and self._mappings:
            self._mappings -= 1
        if self._depth == 1:
            self._key = None

    def scalar(self, value: str) -> None:
        if self._depth == 0:
            raise _NotKeysAndValues("front matter is plain text, not keys and values" if value.strip() else "")
        if self._depth == 1 and self._key is None:
            self._key = value.strip().lower()
            self.values.setdefault(self._key, [])
            return
        if self._key and not self._mappings and value.strip() and len(self.values[self._key]) < _MAX_VALUES:
            self.values[self._key].append(value)
        if self._depth == 1:
            self._key = None


def _values(source: str) -> tuple[dict[str, list[str]], str | None]:
    if source.count("[") + source.count("{") > _MAX_BRACKETS:
        return {}, f"front matter has more than {_MAX_BRACKETS} brackets"
    found = _TopLevel()
    try:
        for event in yaml.parse(source, Loader=_Loader):
            if isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
                found.begin(is_mapping=isinstance(event, yaml.MappingStartEvent))
            elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
                found.end(is_mapping=isinstance(event, yaml.MappingEndEvent))
            elif isinstance(event, yaml.ScalarEvent):
                # An escape can make half a surrogate pair, which is no text.
                found.scalar(event.value.encode("utf-8", "replace").decode())
            elif isinstance(event, yaml.AliasEvent):
                found.scalar("")
    except _NotKeysAndValues as error:
        return {}, str(error) or None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 2})" if mark is not None else ""
        return found.values, f"front matter is not valid YAML{where}: {getattr(error, 'problem', None) or error}"
    return found.values, None
