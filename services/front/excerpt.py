"""Long answers cut to what a model should read at once: beginnings of everything, and how to have the rest.

What is cut keeps its form: of a list the first items, of a text its beginning, each with its share of the room; small
members of an object stay whole. `more` says what is left out and how to go on: the whole answer is kept in the
scratchpad, so that to read on does not call the operation again. Four characters count as a token.
"""

from __future__ import annotations

from typing import Any

import msgspec

from linckia.proto.json_types import JsonObject
from linckia.proto.operation import Operation, Params
from linckia.services.front import scratchpad

DEFAULT_TOKENS = 2000
"""Of one call or one step."""

SCRATCHPAD_READ = "scratchpad_read"

_CHARS_PER_TOKEN = 4
_LEAST = 60
"""Characters; less of an item or a text says nothing."""

_ITEM = 240
"""Characters that an item of a list gets at least, so that of a long list there are fewer and each says something."""

_FOR_MORE = 400
_TOLD = 6
"""Of what is left out, so much is told one by one."""

_encode = msgspec.json.Encoder().encode


class Excerpt(dict[str, Any]):
    """The beginning of an answer, with `more`: an object, whatever the answer is."""


def excerpt(
    operation: Operation[object], params: Params[object], value: object, max_tokens: int | None, *, kept: bool = True
) -> object:
    """The result if it is short enough, or not for a client's session; else an `Excerpt`.

    Args:
        kept: whether the client can reach the scratchpad.
    """
    pad = scratchpad.current.get()
    if pad is None and max_tokens is None:
        return value
    room = (max_tokens or DEFAULT_TOKENS) * _CHARS_PER_TOKEN
    encoded = _encode(value)
    # No character is less than a byte.
    if len(encoded) <= room or len(encoded.decode()) <= room:
        return value
    plain = msgspec.json.decode(encoded)
    share = max(room - _FOR_MORE, room // 2)
    while True:
        cut = _Cut()
        short = cut.value(plain, share, "")
        if len(_encode(short)) <= room or share < _ITEM:
            break
        share //= 2
    body = short if isinstance(short, dict) else {"result": short}
    more = _more(operation, params, body, cut.told)
    entry = None
    if kept and pad is not None and operation.name != SCRATCHPAD_READ:
        entry = pad.keep(operation.name, encoded.decode())
    if entry is not None:
        more["whole"] = {"op": SCRATCHPAD_READ, "params": {"id": entry.id}, "chars": len(entry.text)}
    return Excerpt(**body, more=more)


def _more(operation: Operation[object], params: Params[object], body: JsonObject, told: list[str]) -> JsonObject:
    """What was left out, and how to go on."""
    beyond = [f"and {len(told) - _TOLD} more"] if len(told) > _TOLD else []
    more: JsonObject = {"left_out": [*told[:_TOLD], *beyond]}
    text = body.get("text")
    if operation.name == SCRATCHPAD_READ:
        return {**more, "go_on": {"offset": getattr(params, "offset", 0) + len(str(text))}}
    if isinstance(text, str) and "lines" in operation.input_schema.get("properties", ()):
        first = int(str(body.get("lines") or "1").partition("-")[0])
        more["go_on"] = {"lines": f"{first + text.count(chr(10))}-"}
    more["or"] = "ask for less (limit, offset, lines), or allow more by max_tokens"
    return more


def _shorter_content(name: str, text: str, members: JsonObject) -> JsonObject:
    """A content that is read by `offset` and `length`, cut, with how many of its bytes these are."""
    if members.get(f"{name}_encoding") == "base64":
        text = text[: len(text) // 4 * 4]
        return {name: text, f"{name}_truncated": True, f"{name}_length": len(text) // 4 * 3}
    return {name: text, f"{name}_truncated": True, f"{name}_length": len(text.encode())}


class _Cut:
    """Cuts one value; `told` is what it left out, that of lists first."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def value(self, value: Any, room: int, path: str) -> Any:
        match value:
            case str():
                return self._text(value, room, path)
            case list():
                return self._list(value, room, path)
            case dict():
                return self._object(value, room, path)
        return value

    def _text(self, text: str, room: int, path: str) -> str:
        room = max(room, _LEAST)
        if len(_encode(text)) <= room:
            return text
        short = text[:room]
        while len(_encode(short)) > room:
            short = short[: int(len(short) * 0.8)]
        # Whole lines, where there are some.
        line = short.rfind("\n") + 1
        short = short[:line] if line > len(short) // 2 else short
        self.told.append(f"{path}: {len(short)} of {len(text)} characters")
        # By a member of the answer itself, one may go on from its end.
        return short if "." not in path else f"{short}…"

    def _list(self, items: list[Any], room: int, path: str) -> list[Any]:
        # Of an answer's JSON, whatever it holds.
        short: list[Any] = []
        for n, item in enumerate(items):
            if room < _LEAST:
                break
            short.append(self.value(item, min(room, max(room // (len(items) - n), _ITEM)), f"{path}[{n}]"))
            room -= len(_encode(short[-1])) + 1
        if len(short) < len(items):
            self.told.insert(0, f"{path or 'the list'}: {len(short)} of {len(items)} shown")
        return short

    def _object(self, members: JsonObject, room: int, path: str) -> JsonObject:
        short: JsonObject = {}
        # The small ones first: what they leave is for the large ones.
        by_size = sorted(members, key=lambda name: len(_encode(members[name])))
        for n, name in enumerate(by_size):
            if room < _LEAST and n:
                self.told.append(f"{path or 'the answer'}: {len(members) - n} members")
                break
            where = f"{path}.{name}" if path else name
            short[name] = self.value(members[name], room // (len(members) - n), where)
            room -= len(_encode(short[name])) + len(name) + 4
            if short[name] != members[name] and f"{name}_truncated" in members:
                short |= _shorter_content(name, short[name], members)
        return {name: short[name] for name in members if name in short}
