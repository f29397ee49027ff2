"""What people see of a call that waits, and what makes two calls equal.

Parameters come from clients, as msgpack; those of a mounted server's tool are JSON inside it.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from proto.approvals import TOOLS, tool_of
from proto.mounts import TOOLS_CALL, MountRequest
from proto.ops.approvals import ApprovalWait
from proto.texts import shortened
from proto.wire import frames

PREVIEW_CHARS = 4_000
VALUE_CHARS = 1_000
MAX_DEPTH = 12

_META = "_meta"
"""Member of the parameters for mounted servers that differs each time a client repeats a call."""

_request = frames.reader(MountRequest)
_anything = frames.reader(Any)


def mounted(asked: ApprovalWait) -> MountRequest | None:
    """Return the request for a mounted server, if the call is one and can be read."""
    if not asked.is_mounted or asked.digest:
        return None
    try:
        request: MountRequest = _request(asked.params)
    except msgspec.DecodeError:
        return None
    return request


def tool(asked: ApprovalWait) -> str:
    """Return the tool of a mounted server, as the settings name it; "" if it is not known."""
    request = mounted(asked)
    if request is None or not tool_of(request.method, request.name):
        return ""
    # The operation is named SERVICE.KIND, and the service after the server.
    server = asked.operation.partition(".")[0].removeprefix("mcp_")
    return f"{TOOLS}{server}.{request.name}"[:500]


def digest(asked: ApprovalWait) -> bytes:
    """Return what equal calls of the same client have in common."""
    what = asked.digest.encode() or _identity(asked)
    client = asked.client or asked.who
    parts = (asked.operation.encode(), client.encode(), asked.source.encode(), asked.key.encode(), what)
    whole = hashlib.blake2b(digest_size=20)
    for part in parts:
        whole.update(len(part).to_bytes(8, "big") + part)
    return whole.digest()


def _identity(asked: ApprovalWait) -> bytes:
    request = mounted(asked)
    if request is None:
        return asked.params
    params = _of_request(request)
    kept = {name: value for name, value in params.items() if name != _META} if isinstance(params, dict) else params
    return msgspec.json.encode([request.method, request.name, kept], order="sorted")


def shown(asked: ApprovalWait) -> str:
    """Return the beginning of the parameters as text: JSON, with long values cut."""
    if asked.digest:
        return shortened(f"{asked.size} bytes, beginning with: {_text(asked.params)}", PREVIEW_CHARS)
    try:
        value = _anything(asked.params)
    except msgspec.DecodeError:
        return shortened(f"{asked.size} bytes: {_text(asked.params)}", PREVIEW_CHARS)
    if (request := mounted(asked)) is not None:
        params = _of_request(request)
        value = params.get("arguments", {}) if isinstance(params, dict) and request.method == TOOLS_CALL else params
    return shortened(msgspec.json.encode(_plain(value, 0)).decode(errors="replace"), PREVIEW_CHARS)


def whole(asked: ApprovalWait) -> tuple[dict[str, Any] | None, str]:
    """Return all parameters as data for JSON, or None and why they cannot be shown whole."""
    if asked.digest:
        return None, f"only the beginning of these {asked.size} bytes was kept"
    try:
        value = _anything(asked.params)
        if (request := mounted(asked)) is not None:
            value = _of_request(request)
            value = value.get("arguments", {}) if request.method == TOOLS_CALL and isinstance(value, dict) else value
        # JSON has no bytes, and no objects that are too deep for its reader.
        msgspec.json.encode(value)
    except (msgspec.DecodeError, RecursionError, TypeError, ValueError) as error:
        return None, f"they are not data for JSON: {error}"
    if not isinstance(value, dict):
        return None, "they are no object"
    return {str(name): each for name, each in value.items() if each is not None}, ""


def _of_request(request: MountRequest) -> object:
    try:
        return msgspec.json.decode(request.params)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _text(request.params)


def _plain(value: object, depth: int) -> object:
    """Return a value that can be encoded as JSON, with long texts cut and without nulls."""
    match value:
        case str():
            return shortened(value, VALUE_CHARS)
        case bytes():
            return f"{len(value)} bytes: {shortened(_text(value), VALUE_CHARS)}"
        case dict() | list() if depth >= MAX_DEPTH:
            return "…"
        case dict():
            return {str(key): _plain(each, depth + 1) for key, each in value.items() if each is not None}
        case list():
            return [_plain(each, depth + 1) for each in value]
        case int() | float() | bool() | None:
            return value
    return shortened(repr(value), VALUE_CHARS)


def _text(data: bytes) -> str:
    text = data[:VALUE_CHARS].decode(errors="replace")
    return "".join(char if char.isprintable() or char == "\n" else "·" for char in text)
