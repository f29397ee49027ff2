"""The front matter of a note: its top-level keys as text, whatever else it holds.

YAML is read as a stream of events, never as a tree: neither a deep nest nor an alias bomb can cost more than its own
length, no scalar is turned into a number or a date that its writer did not mean, and nothing is constructed.
"""

from __future__ import annotations

import datetime
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

    `lines` is how many lines it takes with its dashes, 0 where there is none; `problem` says why it could not be read.
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
    lines = match[0].count("\n") + (0 if match[0].endswith("\n") else 1)
    values, problem = _values(match["yaml"])
    return FrontMatter(values, lines, problem), text[match.end() :]


def _values(source: str) -> tuple[dict[str, list[str]], str | None]:
    values: dict[str, list[str]] = {}
    if source.count("[") + source.count("{") > _MAX_BRACKETS:
        return {}, f"front matter has more than {_MAX_BRACKETS} brackets"
    try:
        # A stack of what is open: "map" and "key" alternate at the top level, deeper levels only count.
        depth = 0
        mappings = 0
        key: str | None = None
        for event in yaml.parse(source, Loader=_Loader):
            if isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
                if depth == 0 and isinstance(event, yaml.SequenceStartEvent):
                    return {}, "front matter is a list, not keys and values"
                if depth == 1 and key is None:
                    key = ""  # a collection as a key: of no use here
                elif depth >= 1 and isinstance(event, yaml.MappingStartEvent):
                    mappings += 1
                depth += 1
            elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
                depth -= 1
                if depth >= 1 and isinstance(event, yaml.MappingEndEvent) and mappings:
                    mappings -= 1
                if depth == 1:
                    key = None
            elif isinstance(event, yaml.ScalarEvent | yaml.AliasEvent):
                # An escape can make half a surrogate pair, which is no text.
                value = event.value.encode("utf-8", "replace").decode() if isinstance(event, yaml.ScalarEvent) else ""
                if depth == 0:
                    return {}, None if not value.strip() else "front matter is plain text, not keys and values"
                if depth == 1 and key is None:
                    key = value.strip().lower()
                    values.setdefault(key, [])
                    continue
                if key and not mappings and value.strip() and len(values[key]) < _MAX_VALUES:
                    values[key].append(value)
                if depth == 1:
                    key = None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 2})" if mark is not None else ""
        return values, f"front matter is not valid YAML{where}: {getattr(error, 'problem', None) or error}"
    return values, None


def instant(text: str, *, end_of_day: bool = False) -> float:
    """Unix seconds of RFC 3339 with any offset, `YYYY-MM-DDTHH:MM` (UTC where no zone is said) or a date.

    Args:
        end_of_day: take a bare date as its last moment instead of its first.

    Raises:
        ValueError: it is none of these.
    """
    stripped = text.strip()
    moment = datetime.datetime.fromisoformat(stripped)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    if end_of_day and not re.search(r"[T ]\d", stripped):
        moment += datetime.timedelta(days=1) - datetime.timedelta(microseconds=1)
    return moment.timestamp()


def rfc3339(seconds: float | None, timespec: str = "auto") -> str | None:
    """Unix seconds as people read them; None where there are none, or none that a calendar has."""
    if seconds is None:
        return None
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec=timespec)
    except (ValueError, OverflowError, OSError):
        return None
