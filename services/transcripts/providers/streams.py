"""Streamed replies: the events of `text/event-stream`, or one JSON object a line, as their JSON.

https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import re

from services.transcripts.providers.wire import Json, Unreadable, decode

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
