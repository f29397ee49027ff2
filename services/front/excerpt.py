"""Excerpts: long results shortened to what a model should read at once, with directions for reading the rest.

A shortened value keeps its shape: a list keeps its first items, a text its beginning, each within its share of the
space; small members of an object stay whole. Entries of a list lose their empty values first, then the ends of long
texts; if that is not enough, whole entries are left out. What identifies an entry is left out last. `more` lists what
is left out and says how to continue. The whole result is stored in the scratchpad, so reading on does not repeat the
call. Four characters count as a token.
"""

from __future__ import annotations

from typing import Any

import msgspec

from proto.json_types import JsonObject
from proto.operation import Operation, Params
from services.front import scratchpad

DEFAULT_TOKENS = 2000
"""Longest result of one call or one step, unless the caller sets `max_tokens`."""

SCRATCHPAD_READ = "scratchpad_read"

_CHARS_PER_TOKEN = 4
_LEAST = 60
"""Fewest characters of an item or a text; a shorter excerpt says nothing."""

_ITEM = 240
"""Fewest characters for an item of a list: a long list shows fewer items, but each says something."""

_IDENTIFYING = frozenset({"id", "name", "path", "state", "status", "hash", "key", "uri", "title", "service"})
"""Members that say which entry this is, and how it is: they are left out last."""

_SMALL = 60
"""Most characters of a member without which an entry is not shown."""

_FOR_MORE = 400
"""Characters reserved for `more`."""

_MAX_LISTED = 6
"""Most omissions that `more` lists one by one; the others are counted."""

_encode = msgspec.json.Encoder().encode


class Excerpt(dict[str, Any]):
    """A shortened result with the member `more`; always an object, whatever the type of the result."""


def excerpt(
    operation: Operation[object],
    params: Params[object],
    value: object,
    max_tokens: int | None,
    *,
    has_scratchpad: bool = True,
) -> object:
    """Return the result itself if it is short enough or the client has no session, otherwise an `Excerpt`.

    Args:
        has_scratchpad: whether the client can read the scratchpad.
    """
    pad = scratchpad.current.get()
    if pad is None and max_tokens is None:
        return value
    room = (max_tokens or DEFAULT_TOKENS) * _CHARS_PER_TOKEN
    encoded = _encode(value)
    # A character takes at least one byte.
    if len(encoded) <= room or len(encoded.decode()) <= room:
        return value
    plain = msgspec.json.decode(encoded)
    share = max(room - _FOR_MORE, room // 2)
    while True:
        cut = _Shortener()
        short = cut.value(plain, share, "")
        if len(_encode(short)) <= room or share < _ITEM:
            break
        share //= 2
    body = short if isinstance(short, dict) else {"result": short}
    more = _more(operation, params, body, cut.omissions)
    entry = None
    if has_scratchpad and pad is not None and operation.name != SCRATCHPAD_READ:
        entry = pad.store(operation.name, encoded.decode())
    if entry is not None:
        more["whole"] = {"op": SCRATCHPAD_READ, "params": {"id": entry.id}, "chars": len(entry.text)}
    return Excerpt(**body, more=more)


def _more(operation: Operation[object], params: Params[object], body: JsonObject, omissions: list[str]) -> JsonObject:
    """Return the member `more`: what was left out, and how to continue."""
    beyond = [f"and {len(omissions) - _MAX_LISTED} more"] if len(omissions) > _MAX_LISTED else []
    more: JsonObject = {"left_out": [*omissions[:_MAX_LISTED], *beyond]}
    text = body.get("text")
    if operation.name == SCRATCHPAD_READ:
        return {**more, "go_on": {"offset": getattr(params, "offset", 0) + len(str(text))}}
    if isinstance(text, str) and "lines" in operation.input_schema.get("properties", ()):
        first = int(str(body.get("lines") or "1").partition("-")[0])
        more["go_on"] = {"lines": f"{first + text.count(chr(10))}-"}
    more["or"] = "ask for less (limit, offset, lines), or allow more by max_tokens"
    return more


def _shorter_content(name: str, text: str, members: JsonObject) -> JsonObject:
    """Return truncated content that can be read on by `offset` and `length`, with its length in bytes."""
    if members.get(f"{name}_encoding") == "base64":
        text = text[: len(text) // 4 * 4]
        return {name: text, f"{name}_truncated": True, f"{name}_length": len(text) // 4 * 3}
    return {name: text, f"{name}_truncated": True, f"{name}_length": len(text.encode())}


class _Shortener:
    """Shortens one value; `omissions` describes what it left out, lists first."""

    def __init__(self) -> None:
        self.omissions: list[str] = []
        self._has_emptied = False

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
        # Prefer to end at a line break.
        line = short.rfind("\n") + 1
        short = short[:line] if line > len(short) // 2 else short
        self.omissions.append(f"{path}: {len(short)} of {len(text)} characters")
        # A top-level member gets no ellipsis: its length is the offset for reading on.
        return short if "." not in path else f"{short}…"

    def _list(self, items: list[Any], room: int, path: str) -> list[Any]:
        if len(_encode(items)) <= room:
            return items
        items = [self._without_empty(item) for item in items]
        short: list[Any] = []
        for n, item in enumerate(items):
            if room < max(_LEAST, _needed(item) if short else 0):
                break
            share = min(room, max(room // (len(items) - n), _ITEM, _needed(item)))
            short.append(self.value(item, share, f"{path}[{n}]"))
            room -= len(_encode(short[-1])) + 1
        if len(short) < len(items):
            self.omissions.insert(0, f"{path or 'the list'}: {len(short)} of {len(items)} shown")
        return short

    def _without_empty(self, item: Any) -> Any:
        """Return an entry of a list without members that say nothing."""
        if not isinstance(item, dict):
            return item
        emptied = {name: self._without_empty(value) for name, value in item.items()}
        kept = {name: value for name, value in emptied.items() if value or _identifies(name)}
        if len(kept) < len(item) and not self._has_emptied:
            self._has_emptied = True
            self.omissions.append("of entries: members that are 0, false, null or empty")
        return kept

    def _object(self, members: JsonObject, room: int, path: str) -> JsonObject:
        short: JsonObject = {}
        # What identifies it first, then small members: large ones share the space that is left.
        by_size = sorted(members, key=lambda name: (not _identifies(name), len(_encode(members[name]))))
        for n, name in enumerate(by_size):
            identifies = _identifies(name)
            if room < _LEAST and n and not identifies:
                self.omissions.append(f"{path or 'the answer'}: {len(members) - n} members")
                break
            where = f"{path}.{name}" if path else name
            share = room // 2 if identifies and n + 1 < len(members) else room // (len(members) - n)
            short[name] = self.value(members[name], share, where)
            room -= len(_encode(short[name])) + len(name) + 4
            if short[name] != members[name] and f"{name}_truncated" in members:
                short |= _shorter_content(name, short[name], members)
        return {name: short[name] for name in members if name in short}


def _identifies(name: str) -> bool:
    return name in _IDENTIFYING or name.endswith(("_id", "Id"))


def _needed(item: Any) -> int:
    """Return the characters that an entry of a list needs: for its small members, and for the beginning of others."""
    if not isinstance(item, dict):
        return 0
    sizes = (len(name) + 4 + len(_encode(value)) for name, value in item.items())
    return 2 + sum(min(size, _SMALL) for size in sizes)
