"""Reading JSON of others: what is missing or of another type than documented is taken as absent, never as a crash."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

Json = dict[str, Any]


class Unreadable(ValueError):
    """This is no request, or no reply, of the provider; the message says why."""


def decode(data: bytes | str) -> Any:
    """JSON as Python has it.

    Half a pair of surrogates, which an agent that cuts a text leaves behind, becomes the replacement character.

    Raises:
        Unreadable: it is not JSON, or holds a number that is none, or is nested beyond reason.
    """
    try:
        return msgspec.json.decode(data)
    except RecursionError:
        raise Unreadable("nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        try:
            value = json.loads(data, parse_constant=_refuse)
            if "\\u" in (data if isinstance(data, str) else data.decode()):
                return _mended(value)
        except (ValueError, RecursionError):
            # The library's own words say where.
            raise Unreadable(str(error)) from None
        raise Unreadable(str(error)) from None


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def _mended(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case float() if value in (float("inf"), float("-inf")):
            raise ValueError("number out of range")
        case list():
            return [_mended(item) for item in value]
        case dict():
            return {_mended(key): _mended(item) for key, item in value.items()}
        case _:
            return value


def record(value: object, what: str) -> Json:
    """Raises Unreadable where `value` is no object."""
    if not isinstance(value, dict):
        raise Unreadable(f"{what} is {kind(value)}, not an object")
    return value


def kind(value: object) -> str:
    """What JSON calls it."""
    names = {
        list: "an array",
        str: "a string",
        bool: "a boolean",
        int: "a number",
        float: "a number",
        dict: "an object",
    }
    return names.get(type(value), "null")


def text(holder: Json, *keys: str) -> str:
    """The first of these that is a text."""
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
    """The objects in a list."""
    return (item for item in items(holder, key) if isinstance(item, dict))


def count(holder: Json, *keys: str) -> int:
    """The first of these that is a number, without its fraction."""
    for key in keys:
        value = holder.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return int(value)
    return 0


def compact(value: object) -> str:
    """As JSON, where it is no text already."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def usage(prompt: int, completion: int, total: int = 0, **more: int) -> Json | None:
    """Tokens in the words that all providers' figures are kept in; None where there are none."""
    figures = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total or prompt + completion}
    return {key: value for key, value in {**figures, **more}.items() if value} or None


_LINE_END = re.compile(r"\r\n|\r|\n")
_FIELD = re.compile(r"(?:data|event|id|retry)?:")


def events(body: str) -> list[Json]:
    """The objects of a stream, in order.  Raises Unreadable where it is neither form of one."""
    body = body.removeprefix("\ufeff")
    lines = _LINE_END.split(body)
    first = next((line for line in lines if line.strip()), "")
    if not _FIELD.match(first):
        return [_object(line) for line in lines if line.strip()]
    found: list[Json] = []
    data: list[str] = []
    for line in [*lines, ""]:
        name, _, value = line.partition(":")
        if name == "data":
            data.append(value.removeprefix(" "))
        elif not line and data:
            joined = "\n".join(data)
            data = []
            if joined.strip() not in ("", "[DONE]"):
                found.append(_object(joined))
    return found


def _object(text: str) -> Json:
    value = decode(text)
    if not isinstance(value, dict):
        raise Unreadable("an event of the stream is not an object")
    return value
