"""JSON-RPC messages as MCP uses them, with parameters and results left as the JSON that the other side wrote."""

from __future__ import annotations

import codecs
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

MAX_BYTES = 256 * 1024 * 1024
"""Largest message of a server; more cannot be passed on."""

METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32601, -32602, -32603
UNSUPPORTED_VERSION = -32022
"""The server does not speak the requested revision; its error names those it does."""

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


class NotJson(Exception):
    """A line is not a JSON-RPC message."""


_message = msgspec.json.Decoder(Message)
_batch = msgspec.json.Decoder(list[Message])
_members = msgspec.json.Decoder(dict[str, Raw])
encode = msgspec.json.Encoder().encode


def parse(line: bytes) -> list[Message]:
    """Return the messages in a line: one, or those of a batch. Raises NotJson."""
    try:
        if not line.isascii():
            # Members that are passed on unread must be valid text, too.
            codecs.utf_8_decode(line)
        found = _batch.decode(line) if line.lstrip()[:1] == b"[" else [_message.decode(line)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotJson(str(error)) from None
    if any(each.method is UNSET and each.id is UNSET for each in found):
        raise NotJson("neither a request nor a reply")
    return found


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
    """Return the code and text of an error; (0, "") for any other reply."""
    found = value(reply.error)
    if not isinstance(found, dict):
        return 0, ""
    code = found.get("code")
    return code if isinstance(code, int) else INTERNAL_ERROR, str(found.get("message", ""))
