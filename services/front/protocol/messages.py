"""JSON-RPC messages as they are read off a transport, and errors as they are written: shared by every way in.

Nothing of the SDK is needed here, which takes a second to load: a client's first message is read while it does.
"""

from __future__ import annotations

import json
import re

import msgspec
import trio
from msgspec import UNSET, Raw, UnsetType

from linckia.proto.bounds import counted, exceeded

TOOLS_CALL = "tools/call"

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

RequestId = int | str


class Envelope(msgspec.Struct, gc=False):
    """Any JSON-RPC message, as far as routing needs it; absent and null are told apart."""

    jsonrpc: str
    id: RequestId | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A JSON-RPC response, encoded; `code` is the error's code if it is an error."""

    message: bytes
    code: int | None = None


_decode_envelope = msgspec.json.Decoder(Envelope).decode
_encode = msgspec.json.Encoder().encode


class NotJson(ValueError):
    """What was sent is no JSON, or beyond the bounds of `proto.bounds`; with the request's id where it can be read."""

    def __init__(self, text: str, request_id: RequestId | None = None) -> None:
        super().__init__(text)
        self.request_id = request_id


def read_envelope(data: bytes, *, ours: bool = False) -> Envelope | None:
    """The message in `data`; None where it is JSON but not in the form of one.  Nothing bounds those that are
    `ours`.  Raises NotJson: says where it stops being JSON, or which bound it goes beyond."""
    return _read(data, None if ours else exceeded(data))


async def read_long(data: bytes) -> Envelope | None:
    """The same of a long message, whose bounds are looked at while other tasks run."""
    counting = counted(data)
    while True:
        try:
            next(counting)
        except StopIteration as done:
            envelope = _read(data, done.value)
            await trio.lowlevel.checkpoint()
            return envelope
        await trio.lowlevel.checkpoint()


def _read(data: bytes, excess: str | None) -> Envelope | None:
    if excess is not None and len(data) > MAX_EXPLAINED_BYTES:
        raise _refused(data, f"the message has {excess}")
    try:
        envelope = _decode_envelope(data)
    except msgspec.ValidationError:
        envelope = None
    except RecursionError:
        raise NotJson("nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise (NotJson(str(error)) if excess else _refused(data, str(error))) from None
    if excess is not None:
        request_id = envelope.id if envelope is not None and isinstance(envelope.id, int | str) else None
        raise NotJson(f"the message has {excess}", request_id)
    return envelope


MAX_EXPLAINED_BYTES = 1024 * 1024
"""Of what is refused; longer, it is not read a second time."""

_HALF_A_PAIR = re.compile("[\ud800-\udfff]")


def _refused(data: bytes, text: str) -> NotJson:
    """Why `data` is refused, with its id: clients in JavaScript that cut a text within an emoji send half a surrogate
    pair, escaped, and would wait for ever for an answer without an id."""
    if len(data) > MAX_EXPLAINED_BYTES:
        return NotJson(text, readable_id(data))
    try:
        message = json.loads(data)
        half = _HALF_A_PAIR.search(json.dumps(message, ensure_ascii=False))
    except (ValueError, RecursionError):
        return NotJson(text)
    request_id = message.get("id") if isinstance(message, dict) else None
    if half is not None:
        if isinstance(request_id, str):
            # What cannot be sent back names no request.
            request_id = None if _HALF_A_PAIR.search(request_id) else request_id
        text = f"a string holds \\u{ord(half[0]):04x}, half of a surrogate pair, which is no character"
    return NotJson(text, request_id if isinstance(request_id, int | str) else None)


NOT_A_MESSAGE = (
    "Not a JSON-RPC 2.0 message: jsonrpc must be the string 2.0, id a string or an integer, method a string, "
    "params an object; a response has an id and a result that is an object, or an error"
)


def fault_of(message: Envelope | None, data: bytes) -> bytes | None:
    """The error that answers `data`, JSON that was read as `message`; None if it is a message of JSON-RPC 2.0."""
    if message is not None and message.jsonrpc == "2.0":
        if isinstance(message.method, str):
            is_valid = message.id is not None and _begins(message.params, b"{n")
        elif isinstance(message.result, UnsetType):
            is_valid = not isinstance(message.error, UnsetType) and _begins(message.error, b"{")
        else:
            is_valid = isinstance(message.id, int | str) and _begins(message.result, b"{")
        if is_valid:
            return None
    return error_message(readable_id(data), INVALID_REQUEST, NOT_A_MESSAGE)


def _begins(value: Raw | UnsetType, with_one_of: bytes) -> bool:
    """Whether a value is of the kinds that begin like this, or absent."""
    return isinstance(value, UnsetType) or bytes(memoryview(value)[:1]) in with_one_of


EARLY_BYTES = 4096
"""Of a message that is not read as a whole: its id is looked for in these."""

_EARLY_ID = re.compile(rb'^\s*\{(?:(?!"params").)*?"id"\s*:\s*(-?\d{1,18}|"[^"\\]{0,128}")\s*[,}]', re.DOTALL)


def readable_id(data: bytes) -> RequestId | None:
    """The id at the beginning of a message that cannot be read as a whole."""
    match = _EARLY_ID.match(data[:EARLY_BYTES])
    try:
        return None if match is None else msgspec.json.decode(match[1], type=int | str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def request_key(envelope: Envelope) -> RequestId | None:
    """What the message's answer will be correlated by; None where it asks for none."""
    if isinstance(envelope.id, int | str) and isinstance(envelope.method, str):
        return correlation_key(envelope.id)
    return None


_PROTOCOL_VERSION = "io.modelcontextprotocol/protocolVersion"


class _Enveloped(msgspec.Struct):
    meta: dict[str, Raw] = msgspec.field(name="_meta")


def has_envelope(message: Envelope) -> bool:
    """Whether a request names its revision itself, as requests do since 2026-07-28."""
    try:
        return isinstance(message.params, Raw) and _PROTOCOL_VERSION in _decode_enveloped(message.params).meta
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


_decode_enveloped = msgspec.json.Decoder(_Enveloped).decode


def is_call(envelope: Envelope) -> bool:
    """Whether the message is a `tools/call` with what every one must have."""
    return (
        envelope.method == TOOLS_CALL
        and envelope.jsonrpc == "2.0"
        and isinstance(envelope.id, int | str)
        and not isinstance(envelope.params, UnsetType)
        and isinstance(envelope.result, UnsetType)
        and isinstance(envelope.error, UnsetType)
    )


def result_message(request_id: RequestId, result: object) -> bytes:
    """A JSON-RPC response, encoded."""
    return _encode({"jsonrpc": "2.0", "id": request_id, "result": result})


def error_message(request_id: RequestId | None, code: int, message: str, data: object = None) -> bytes:
    """A JSON-RPC error, encoded; the id is null where it could not be read."""
    error: dict[str, object] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return _encode({"jsonrpc": "2.0", "id": request_id, "error": error})


def notification(method: str, params: object = None) -> bytes:
    """A JSON-RPC notification, encoded."""
    message = {"jsonrpc": "2.0", "method": method}
    return _encode(message if params is None else {**message, "params": params})


def correlation_key(request_id: RequestId) -> RequestId:
    """What two mentions of one request have in common, by the SDK's rule: clients say "7" where they said 7 before."""
    try:
        return int(request_id)
    except ValueError:
        return request_id
