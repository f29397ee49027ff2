"""Calls that a client asks to have made later: for each entry that a plan finds, say.

The kernel seals each of them with the client's grant (`kernel.mandates`), and fills in its placeholders itself: a
service that keeps such calls and has them made can change neither what is called nor in whose name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from linckia.proto.errors import InvalidParams

MAX_LATER_CALLS = 1_000
"""Different ones that a client may ask for at once."""

_PLACEHOLDER = re.compile(r"\{\{\s*entry\.(\w+)\s*\}\}")


class LaterCall(msgspec.Struct, frozen=True):
    """A call of `operation`, whose `arguments` may hold placeholders such as `{{entry.path}}`."""

    operation: str
    arguments: dict[str, Any]


def filled(value: Any, entry: Mapping[str, str | int], field: str) -> Any:
    """An argument with the entry's values in place of its placeholders.

    A text that is one placeholder and nothing else becomes the value itself, a number where that is one.

    Raises:
        InvalidParams: an entry has no value of that name.
    """
    match value:
        case str():
            whole = _PLACEHOLDER.fullmatch(value)
            if whole is not None:
                return _value(entry, whole[1], field)
            return _PLACEHOLDER.sub(lambda match: str(_value(entry, match[1], field)), value)
        case dict():
            return {key: filled(item, entry, f"{field}.{key}") for key, item in value.items()}
        case list():
            return [filled(item, entry, f"{field}[{n}]") for n, item in enumerate(value)]
        case _:
            return value


def _value(entry: Mapping[str, str | int], name: str, field: str) -> str | int:
    if name not in entry:
        raise InvalidParams(f"`{field}`: an entry has no {name[:100]!r}; it has: {', '.join(entry)}", field=field)
    return entry[name]
