"""Parameter names in camelCase and in snake_case: two spellings of one name.

Clients write either, whichever an operation declares; `respelled` brings what they sent into the declared one.  A name
that is none of the operation's stays as it is, for validation to name it as it was written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

import msgspec

from proto.errors import InvalidParams

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def snake_case(name: str) -> str:
    """`outputPath` and `output_path` are both `output_path`."""
    return _HUMP.sub("_", name).lower()


@cache
def _declared(tp: type[msgspec.Struct]) -> tuple[frozenset[str], Mapping[str, str]]:
    """The names of a Struct's fields on the wire, and the same by their snake_case."""
    names = [field.encode_name for field in msgspec.structs.fields(tp)]
    return frozenset(names), {snake_case(name): name for name in names}


def declared_name(tp: type[msgspec.Struct], given: str) -> str:
    """The name that `tp` declares for `given`; `given` itself where it declares none."""
    exact, by_snake = _declared(tp)
    return given if given in exact else by_snake.get(snake_case(given), given)


def respelled(tp: type[msgspec.Struct], arguments: Mapping[str, object]) -> dict[str, object]:
    """The arguments under the names that `tp` declares.

    Raises:
        InvalidParams: one parameter was given in both spellings, with different values.
    """
    result: dict[str, object] = {}
    written: dict[str, str] = {}
    for key, value in arguments.items():
        name = declared_name(tp, key)
        if name in result and result[name] != value:
            raise InvalidParams(
                f"`{written[name]}` and `{key}` are one parameter, given twice with different values", field=name
            )
        result[name] = value
        written[name] = key
    return result
