"""Reads foreign JSON leniently: a missing value, or one of an undocumented type, is treated as absent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from proto.validation import exceeded

Json = dict[str, Any]

MAX_COUNT = 2**40
"""More than any log can mean; sums of millions of these fit into a column."""

MESSAGES = 64
"""The limit of a body is that of this many messages, since it may be a batch of long conversations."""


class Unreadable(ValueError):
    """This is not a valid request or reply of the provider; the message says why."""


def decode(data: bytes | str) -> Any:
    """Decode JSON to Python values.

    Half of a surrogate pair, left behind by an agent that truncates text, becomes the replacement character.

    Raises Unreadable if the data is not JSON, contains an invalid number, or exceeds the bounds of `proto.validation`.
    """
    text = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if (excess := exceeded(text, times=MESSAGES)) is not None:
        raise Unreadable(f"it has {excess}")
    try:
        return msgspec.json.decode(data)
    except RecursionError:
        raise Unreadable("nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        try:
            value = json.loads(data, parse_constant=refuse)
            if "\\u" in (data if isinstance(data, str) else data.decode()):
                return mended(value)
        except (ValueError, RecursionError):
            # The library's message gives the position.
            raise Unreadable(str(error)) from None
        raise Unreadable(str(error)) from None


def refuse(constant: str) -> Any:
    """Raise ValueError: Python's decoder takes NaN and infinities, which are not JSON."""
    raise ValueError(constant)


def mended(value: Any) -> Any:
    """Replace halves of surrogate pairs in a decoded value. Raises ValueError for a number out of range."""
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case float() if value in (float("inf"), float("-inf")):
            raise ValueError("number out of range")
        case list():
            return [mended(item) for item in value]
        case dict():
            return {mended(key): mended(item) for key, item in value.items()}
        case _:
            return value


def record(value: object, what: str = "it") -> Json:
    """Return `value` if it is an object. Raises Unreadable otherwise."""
    if not isinstance(value, dict):
        raise Unreadable(f"{what} is {kind(value)}, not an object")
    return value


_KINDS = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number", dict: "an object"}


def kind(value: object) -> str:
    """Return JSON's name for the type of a value."""
    return _KINDS.get(type(value), "null")


def text(holder: Json, *keys: str) -> str:
    """Return the first of these values that is a string."""
    for key in keys:
        value = holder.get(key)
        if isinstance(value, str):
            return value
    return ""


def child(holder: Json, key: str) -> Json:
    value = holder.get(key)
    return value if isinstance(value, dict) else {}


def items(holder: Json, key: str) -> list[Any]:
    value = holder.get(key)
    return value if isinstance(value, list) else []


def records(holder: Json, key: str) -> Iterator[Json]:
    """Yield the objects in a list."""
    return (item for item in items(holder, key) if isinstance(item, dict))


def count(holder: Json, *keys: str) -> int:
    """Return the first of these values that is a number, without its fraction, clamped to 0 to `MAX_COUNT`."""
    for key in keys:
        value = holder.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return int(min(max(value, 0), MAX_COUNT))
    return 0


def compact(value: object) -> str:
    """Encode a value as JSON, unless it is already a string."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def usage(prompt: int, completion: int, total: int = 0, **more: int) -> Json | None:
    """Return token usage in the common format for all providers; None if there are no figures."""
    figures = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total or prompt + completion}
    return {key: value for key, value in {**figures, **more}.items() if value} or None
