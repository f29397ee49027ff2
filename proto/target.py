"""Describes what a call is about, in one line for the audit log: the parameters that name things, and no others.

A parameter names something if the last word of its own name says so (`file`, `output_directory`, `snapshot_id`); so
does a list or Struct of such values. Contents, queries, keys and values do not. URLs are shown without user and query,
which may contain credentials.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import msgspec

from proto.texts import shortened
from proto.wire.frames import TARGET_CHARS

VALUE_CHARS = 200
"""Maximum length of one name; longer ones end in `…`."""

LISTED = 3
"""Maximum number of list items shown, followed by the number of the others."""

NAMING = frozenset(
    {
        "action", "child", "collection", "corpus", "destination", "directory", "file", "from", "hash", "id", "label",
        "method", "mount", "name", "operation", "parent", "path", "root", "service", "session", "source",
        "to", "uri", "url",
    }
)  # fmt: skip
"""Last words in the names of parameters that name something."""

_WORD = re.compile(r"[A-Z]?[a-z0-9]+")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)(?:[^/?#\s]*@)?([^?#]*)")
_PLAIN = re.compile(r"[^\s\"'=,()\\\x00-\x1f\x7f\ud800-\udfff]+")


def described(params: msgspec.Struct) -> str:
    """Return `file=/notes/a.yaml path=retries`, at most `TARGET_CHARS`; "" if the parameters name nothing."""
    parts = []
    for name, shown in zip(params.__struct_fields__, params.__struct_encode_fields__, strict=True):
        value = getattr(params, name)
        if (names(shown) or _nests(value)) and (text := _text(value)):
            parts.append(f"{shown}={text}")
    text = " ".join(parts)
    return text if len(text) <= TARGET_CHARS else shortened(text, TARGET_CHARS)


@functools.cache
def names(parameter: str) -> bool:
    """Return whether a parameter of this name names something."""
    words = _WORD.findall(parameter)
    last = words[-1].lower() if words else ""
    return last in NAMING or last.removesuffix("s") in NAMING or last.removesuffix("es") in NAMING


def _nests(value: object) -> bool:
    """Return whether it is a Struct, or a list of Structs, whose fields may name something."""
    return isinstance(value[0] if isinstance(value, list | tuple) and value else value, msgspec.Struct)


def _text(value: object) -> str:
    match value:
        case str():
            return _named(value)
        case bool() | None:
            return ""
        case int():
            return str(value)
        case msgspec.Struct():
            inner = described(value)
            return f"({inner})" if inner else ""
        case list() | tuple():
            return _listed(value)
    return ""


def _listed(values: Sequence[object]) -> str:
    texts = [text for value in values[:LISTED] if (text := _text(value))]
    if not texts:
        return ""
    return ",".join(texts) + (f",+{len(values) - LISTED}" if len(values) > LISTED else "")


def _named(text: str) -> str:
    """Return a name unchanged, or in quotes if it could be misread."""
    if (url := _URL.match(text)) is not None:
        text = url[1] + url[2]
    text = text if len(text) <= VALUE_CHARS else shortened(text, VALUE_CHARS)
    return text if _PLAIN.fullmatch(text) else msgspec.json.encode(text.encode("utf-8", "replace").decode()).decode()
