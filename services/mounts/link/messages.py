"""JSON-RPC messages as MCP uses them, with parameters and results left as the JSON that the other side wrote."""

from __future__ import annotations

import codecs
import itertools
import re
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

from proto.mcp import INTERNAL_ERROR
from services.mounts.offers.hidden import without

MAX_BYTES = 256 * 1024 * 1024
"""Largest message of a server; more cannot be passed on."""

Id: TypeAlias = int | str | float | None
JsonObject: TypeAlias = dict[str, Any]


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request (`id` and `method`), notification (`method`) or reply (`id` with `result` or `error`)."""

    jsonrpc: str = ""
    id: Id | UnsetType = UNSET
    method: str | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


_ESCAPES = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)"
)


class Unreadable(msgspec.Struct, frozen=True):
    """A reply that cannot be read, although it names its request; without one, its id is UNKNOWN."""

    id: int
    problem: str


class NotJson(Exception):
    """A line is not a JSON-RPC message, and names no request."""


Received: TypeAlias = Message | Unreadable

UNKNOWN = -1
"""The number of a request that a reply does not name."""

HEAD_BYTES, TAIL_BYTES = 64 * 1024, 64
"""How much of the beginning and the end of an unreadable line is searched for the id of its request."""

ID_DIGITS = 15
"""More than any id of a request here has."""

PROBLEM_CHARS = 300
"""Longer descriptions of what is wrong with a reply are cut: some quote it."""

_TOKEN = re.compile(rb'\s*("[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+)', re.DOTALL)
_NUMBER = re.compile(rb'"?(\d{1,15})(?:\.0+)?"?')
_LAST = re.compile(rb'"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*"?(\d{1,15})"?\s*\}\s*\Z')
"""How replies of servers end that write the id last, as the SDK for TypeScript does."""

_REPLY = re.compile(rb'\{\s*"(?:jsonrpc|id|result|error)"')
MAX_BEGINS = 4
"""Number of places in a line where a reply may begin."""

_message = msgspec.json.Decoder(Message)
_batch = msgspec.json.Decoder(list[Raw])
_members = msgspec.json.Decoder(dict[str, Raw])
encode = msgspec.json.Encoder().encode


def parse(line: bytes) -> list[Received]:
    """Return the messages in a line: one, or those of a batch. Raises NotJson."""
    if line.lstrip()[:1] != b"[":
        return [_parsed(line)]
    try:
        batch = _batch.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotJson(str(error)) from None
    return [_parsed_or_unknown(bytes(each)) for each in batch]


def behind_text(line: bytes) -> tuple[bytes, Message] | None:
    """Return the text before a reply in the same line, and the reply, if there is one: servers print without a line
    break. Requests are none, since servers also print those that they get."""
    for begin in itertools.islice(_REPLY.finditer(line, 0, HEAD_BYTES), MAX_BEGINS):
        try:
            found = _parsed(line[begin.start() :])
        except NotJson:
            continue
        if isinstance(found, Message) and found.method is UNSET and found.jsonrpc:
            return line[: begin.start()], found
    return None


def _parsed_or_unknown(line: bytes) -> Received:
    try:
        return _parsed(line)
    except NotJson as error:
        # The rest of its batch can be read.
        return Unreadable(UNKNOWN, str(error))


def _parsed(line: bytes) -> Received:
    """Return the message in a line. A lone surrogate, which JSON can write and no text can contain, becomes U+FFFD."""
    try:
        if not line.isascii():
            # Members that are passed on unread must be valid text, too.
            codecs.utf_8_decode(line)
        message = _message.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if line.startswith(codecs.BOM_UTF8):
            return _parsed(line.removeprefix(codecs.BOM_UTF8))
        if (mended := _ESCAPES.sub(_mended, line)) != line:
            return _parsed(mended)
        return unreadable(line, f"it is not a JSON-RPC message: {error}")
    if message.method is not UNSET:
        return message
    if message.id is UNSET:
        raise NotJson("neither a request nor a reply")
    return checked(message)


def checked(reply: Message) -> Received:
    """Return the reply if it is one of JSON-RPC as MCP uses it: with an object as its result or error."""
    if _is_object(reply.result):
        if isinstance(reply.error, Raw) and not _is_object(reply.error):
            # Some servers write both members, and null for the one that they do not mean.
            return Message(reply.jsonrpc, id=reply.id, result=reply.result)
        return reply
    if _is_object(reply.error):
        return reply
    if reply.result is UNSET and reply.error is UNSET:
        problem = "it has neither a result nor an error"
    else:
        problem = f"its {'error' if reply.result is UNSET else 'result'} is not a JSON object"
    return Unreadable(number_of(reply.id), problem)


def _is_object(json: Raw | UnsetType) -> bool:
    return isinstance(json, Raw) and bytes(memoryview(json)[:1]) == b"{"


def unreadable(line: bytes, problem: str) -> Unreadable:
    """Return what an unreadable line was meant to be. Raises NotJson unless it names a request that it replies to."""
    number = _replied_to(line[:HEAD_BYTES])
    if number == UNKNOWN and (last := _LAST.search(line[-TAIL_BYTES:])) is not None:
        number = int(last[1])
    if number == UNKNOWN:
        raise NotJson(problem)
    return Unreadable(number, problem if len(problem) <= PROBLEM_CHARS else f"{problem[: PROBLEM_CHARS - 1]}…")


def _replied_to(head: bytes) -> int:
    """Return the id in the outermost object of a line that begins like a reply, or UNKNOWN."""
    depth = at = 0
    found, key, value_follows = UNKNOWN, b"", False
    while (token := _TOKEN.match(head, at)) is not None:
        text, at = token[1], token.end()
        if text in b"{[":
            depth += 1
        elif text in b"}]":
            depth -= 1
        elif depth == 1 and text == b":":
            if value_follows:
                break
            value_follows = True
            if key == b'"method"':
                return UNKNOWN
        elif depth == 1 and text == b",":
            key, value_follows = b"", False
        elif depth == 1 and not value_follows:
            key = text
        elif depth == 1 and key == b'"id"' and (number := _NUMBER.fullmatch(text)) is not None:
            found = int(number[1])
        if depth < 1:
            break
    return found


def _mended(escape: re.Match[bytes]) -> bytes:
    return b"\\ufffd" if escape["lone"] else escape[0]


def number_of(token: object) -> int:
    """Return the number in an id, or UNKNOWN; some servers turn it into a text, or write it as 1.0."""
    if isinstance(token, int) and not isinstance(token, bool):
        return token
    if isinstance(token, float) and token.is_integer():
        return int(token)
    return int(token) if isinstance(token, str) and len(token) <= ID_DIGITS and token.isdecimal() else UNKNOWN


def one_line(json: bytes) -> bytes:
    """Return JSON without line breaks between its tokens. Raises msgspec.DecodeError if it is not JSON."""
    return msgspec.json.format(json, indent=-1) if b"\n" in json or b"\r" in json else json


def members(json: bytes | Raw | UnsetType) -> dict[str, Raw]:
    """Return the members of a JSON object unread; none for anything else."""
    if isinstance(json, UnsetType):
        return {}
    try:
        return _members.decode(json)
    except msgspec.DecodeError:
        return {}


def value(json: bytes | Raw | UnsetType) -> Any:
    """Decode JSON; None if it is absent or invalid."""
    if isinstance(json, UnsetType):
        return None
    try:
        return msgspec.json.decode(json)
    except msgspec.DecodeError:
        return None


def with_meta(params: bytes, meta: JsonObject) -> bytes:
    """Return parameters with additional members of `_meta`."""
    if not meta:
        return params
    found = members(params)
    inner = members(found.get("_meta", UNSET))
    found["_meta"] = Raw(encode({**inner, **meta}))
    return encode(found)


def request(number: int, method: str, params: bytes) -> bytes:
    """Return a request on one line, without its line break."""
    return one_line(encode(Message("2.0", id=number, method=method, params=Raw(params))))


def notification(method: str, params: JsonObject | None = None) -> bytes:
    """Return a notification on one line."""
    return encode(Message("2.0", method=method, params=UNSET if params is None else Raw(encode(params))))


def result(number: Id, content: JsonObject) -> bytes:
    """Return a reply to a request of the server."""
    return encode(Message("2.0", id=number, result=Raw(encode(content))))


def error(number: Id, code: int, text: str, data: JsonObject | None = None) -> bytes:
    """Return a refusal of a request of the server."""
    content: JsonObject = {"code": code, "message": text}
    return encode(Message("2.0", id=number, error=Raw(encode(content if data is None else {**content, "data": data}))))


def error_of(reply: Message) -> tuple[int, str]:
    """Return the code and text of an error, without hidden characters; (0, "") for any other reply."""
    found = value(reply.error)
    if not isinstance(found, dict):
        return 0, ""
    code = found.get("code")
    return code if isinstance(code, int) else INTERNAL_ERROR, without(str(found.get("message", "")))
