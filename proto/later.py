"""Calls that a client asks to have made later, for example for each entry that a plan finds.

The kernel seals each of them with the client's grant (`kernel.router.mandates`) and fills in the placeholders itself.
So a service that stores such calls can change neither the call nor its caller.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from proto.errors import InvalidParams

MAX_LATER_CALLS = 1_000
"""Maximum number of different calls that a client may request at once."""

NOT_VALID = "mandate"
"""The field of the failure of a later call whose client's token is no longer valid."""

_PLACEHOLDER = re.compile(r"\{\{\s*entry\.(\w+)\s*\}\}")


class LaterCall(msgspec.Struct, frozen=True):
    """A call of `operation`, whose `arguments` may contain placeholders such as `{{entry.path}}`."""

    operation: str
    arguments: dict[str, Any]


def filled(value: Any, entry: Mapping[str, str | int], field: str) -> Any:
    """Replace placeholders in an argument with the entry's values.

    A text that consists of one placeholder becomes the value itself, which may be a number.

    Raises:
        InvalidParams: the entry has no value of that name.
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
