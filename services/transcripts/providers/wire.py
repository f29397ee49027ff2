"""Reads foreign JSON leniently: a missing value, or one of an undocumented type, is treated as absent."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from proto.validation import exceeded
from services.transcripts.messages import Message, Turn

Json = dict[str, Any]

MAX_COUNT = 2**40
"""More than any log can mean; sums of millions of these fit into a column."""

MESSAGES = 64
"""The limit of a body is that of this many messages, since it may be a batch of long conversations."""

BROKEN_OFF = "the stream broke off before the reply was complete"


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
            value = json.loads(data, parse_constant=_refuse)
            if "\\u" in (data if isinstance(data, str) else data.decode()):
                return _mended(value)
        except (ValueError, RecursionError):
            # The library's message gives the position.
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


_OBJECT = re.compile(r'\{\s*"')
_BETWEEN = re.compile(r"[\s\0]*")
_MAX_STARTS = 2000
"""Most positions in a damaged line where a complete object is tried."""


def objects(line: str) -> list[Any]:
    """Return the complete objects on a damaged line: two records in a row, or a record after a truncated one."""
    decoder = json.JSONDecoder(parse_constant=_refuse)
    found: list[Any] = []
    position = tries = 0
    while (start := _OBJECT.search(line, position)) is not None and tries < _MAX_STARTS:
        tries += 1
        try:
            value, end = decoder.raw_decode(line, start.start())
        except (ValueError, RecursionError):
            position = start.end()
            continue
        after = _BETWEEN.match(line, end)
        end = end if after is None else after.end()
        # Any other continuation is part of a truncated record.
        if end == len(line) or line[end] == "{":
            if exceeded(line[start.start() : end].encode("utf-8", "surrogatepass"), times=MESSAGES) is None:
                found.append(_mended(value))
            position = end
        else:
            position = start.end()
    return found


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


def turn_from(
    provider: str,
    body: Json,
    read: Callable[[Json], Message],
    *,
    system: str = "",
    missing: str = "`messages` is missing or not an array",
) -> Turn:
    """Build a turn from a request whose `messages` are read by `read`. Raises Unreadable with `missing`."""
    if not isinstance(body.get("messages"), list):
        raise Unreadable(missing)
    messages = [read(item) for item in records(body, "messages")]
    return Turn(provider=provider, messages=messages, model=text(body, "model"), system=system)


def replied(message: Message, body: Json, stop_reason: str, tokens: Json | None) -> list[Message]:
    """Return `message` completed as the reply of `body`."""
    message.reply = True
    message.model = text(body, "model")
    message.stop_reason = stop_reason
    message.usage = tokens
    return [message]


def refused(said: str, otherwise: str = "") -> Unreadable:
    """Build the error for a provider's error reply; without a message in it, `otherwise` is used."""
    return Unreadable(f"the provider returned an error: {said}" if said or not otherwise else otherwise)


_LINE_END = re.compile(r"\r\n|\r|\n")
_FIELD = re.compile(r"(?:data|event|id|retry)?:")


def events(body: str, *, partial: bool = False) -> tuple[list[Json], bool]:
    """Return the objects of a stream in order, and True if its last event says that it is complete (`[DONE]`).

    The last event of a `partial` stream is left out if it is cut. Raises Unreadable if it has neither form of a stream.
    """
    body = body.removeprefix("\ufeff")
    lines = _LINE_END.split(body)
    first = next((line for line in lines if line.strip()), "")
    if not _FIELD.match(first):
        whole = lines[:-1] if partial and not _is_json(lines[-1]) else lines
        return [record(decode(line), "an event of the stream") for line in whole if line.strip()], False
    found: list[Json] = []
    data: list[str] = []
    is_done = False
    for number, line in enumerate([*lines, ""]):
        name, _, value = line.partition(":")
        if name == "data":
            data.append(value.removeprefix(" "))
        elif not line and data:
            joined = "\n".join(data)
            data = []
            if joined.strip() == "[DONE]":
                is_done = True
            elif joined.strip() and not (partial and number >= len(lines) - 1 and not _is_json(joined)):
                found.append(record(decode(joined), "an event of the stream"))
    return found, is_done


def _is_json(text: str) -> bool:
    try:
        decode(text)
    except Unreadable:
        return False
    return True
