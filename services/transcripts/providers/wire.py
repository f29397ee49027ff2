"""Turns in foreign JSON, which is read leniently (`lenient`)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from proto.validation import exceeded
from services.transcripts.lenient import (
    MAX_COUNT,
    MESSAGES,
    Json,
    Unreadable,
    child,
    compact,
    count,
    decode,
    items,
    kind,
    mended,
    record,
    records,
    refuse,
    text,
    usage,
)
from services.transcripts.messages import Message, Turn

__all__ = [
    "BROKEN_OFF",
    "MAX_COUNT",
    "MESSAGES",
    "Json",
    "Unreadable",
    "child",
    "compact",
    "count",
    "decode",
    "events",
    "items",
    "kind",
    "objects",
    "record",
    "records",
    "refused",
    "replied",
    "text",
    "turn_from",
    "usage",
]

BROKEN_OFF = "the stream broke off before the reply was complete"


_OBJECT = re.compile(r'\{\s*"')
_BETWEEN = re.compile(r"[\s\0]*")
_MAX_STARTS = 2000
"""Most positions in a damaged line where a complete object is tried."""


def objects(line: str) -> list[Any]:
    """Return the complete objects on a damaged line: two records in a row, or a record after a truncated one."""
    decoder = json.JSONDecoder(parse_constant=refuse)
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
                found.append(mended(value))
            position = end
        else:
            position = start.end()
    return found


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
