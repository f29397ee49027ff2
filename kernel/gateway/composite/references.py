"""`$prev…` in a step's parameters: the last step's result, or a part of it.

Only a string that is itself a parameter and starts with `$prev` is a reference; text within lists and objects, and
`$prev` in the middle of a text, stay as they are.  A reference keeps the JSON type of what it names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

MARK = "$prev"

_PATH = re.compile(r"\$prev((?:\.[^.\[\]]+|\[[0-9]{1,9}\])*)")
_PIECE = re.compile(r"\.([^.\[\]]+)|\[([0-9]+)\]")


def is_reference(value: object) -> bool:
    """Whether the value of a parameter is replaced before the step runs."""
    return isinstance(value, str) and value.startswith(MARK)


def resolve(reference: str, previous: object) -> object:
    """What `reference` names in the last step's result; None where that leads nowhere."""
    match = _PATH.fullmatch(reference)
    if match is None:
        return None
    found = previous
    for field, index in _PIECE.findall(match[1]):
        if field and isinstance(found, Mapping) and field in found:
            found = found[field]
        elif index and isinstance(found, list) and int(index) < len(found):
            found = found[int(index)]
        else:
            return None
    return found
