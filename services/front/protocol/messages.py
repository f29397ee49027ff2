"""Reads and writes JSON-RPC messages, for all transports.

This module does not need the SDK, which takes a second to load: a client's first message is read meanwhile.
"""

from __future__ import annotations

import json
import re

import msgspec
import trio
from msgspec import UNSET, Raw, UnsetType

from proto.mcp import INVALID_REQUEST, TOOLS_CALL, VERSION, RequestId
from proto.validation import counted, exceeded


class Envelope(msgspec.Struct, gc=False):
    """Any JSON-RPC message, as far as routing needs it; an absent member is UNSET, a null one None."""

    jsonrpc: str
    id: RequestId | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET

    @property
    def size(self) -> int:
        """Length of the parameters."""
        return 0 if isinstance(self.params, UnsetType) else memoryview(self.params).nbytes


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A JSON-RPC response, encoded; `code` is the error's code if it is an error."""

    message: bytes
    code: int | None = None


_decode_envelope = msgspec.json.Decoder(Envelope).decode
_encode = msgspec.json.Encoder().encode


class NotJson(ValueError):
    """The input is not JSON or exceeds a limit of `proto.validation`; `request_id` is its id if it is readable."""

    def __init__(self, text: str, request_id: RequestId | None = None) -> None:
        super().__init__(text)
        self.request_id = request_id


def read_envelope(data: bytes, *, trusted: bool = False) -> Envelope | None:
    """Return the message in `data`; None if it is JSON but not a message.  `trusted` data is not bounded.

    Raises:
        NotJson: says where the JSON is invalid, or which limit it exceeds.
    """
    return _read(data, None if trusted else exceeded(data))


async def read_long(data: bytes) -> Envelope | None:
    """Like `read_envelope`, for long messages: other tasks run while the limits are checked."""
    counting = counted(data)
    while True:
        try:
            next(counting)
        except StopIteration as done:
            await turn(len(data))
            return _read(data, done.value)
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
"""Longest refused message that is parsed a second time, to explain the refusal."""

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def _refused(data: bytes, text: str) -> NotJson:
    """Return the error for `data`, with its id if it is readable.

    Clients in JavaScript that cut a string within an emoji send an escaped lone surrogate.  An error without an id
    would leave them waiting for ever.
    """
    if len(data) > MAX_EXPLAINED_BYTES:
        return NotJson(text, readable_id(data))
    try:
        message = json.loads(data)
        lone = _LONE_SURROGATE.search(json.dumps(message, ensure_ascii=False))
    except (ValueError, RecursionError):
        return NotJson(text)
    request_id = message.get("id") if isinstance(message, dict) else None
    if lone is not None:
        if isinstance(request_id, str):
            # An id with a lone surrogate cannot be sent back.
            request_id = None if _LONE_SURROGATE.search(request_id) else request_id
        text = f"a string contains \\u{ord(lone[0]):04x}, half of a surrogate pair, which is not a character"
    return NotJson(text, request_id if isinstance(request_id, int | str) else None)


NOT_A_MESSAGE = (
    "Not a JSON-RPC 2.0 message: jsonrpc must be the string 2.0, id a string or an integer, method a string, "
    "params an object; a response has an id and a result that is an object, or an error"
)


def fault_of(message: Envelope | None, data: bytes) -> bytes | None:
    """Return the error for `data`, which was read as `message`; None if it is a valid JSON-RPC 2.0 message."""
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
    """Whether the JSON of a value starts with one of these characters, or the value is absent."""
    return isinstance(value, UnsetType) or bytes(memoryview(value)[:1]) in with_one_of


EARLY_BYTES = 4096
"""Bytes at the start of an unreadable message that are searched for its id."""

_EARLY_ID = re.compile(rb'^\s*\{(?:(?!"params").)*?"id"\s*:\s*(-?\d{1,18}|"[^"\\]{0,128}")\s*[,}]', re.DOTALL)


def readable_id(data: bytes) -> RequestId | None:
    """Return the id at the beginning of a message that cannot be decoded as a whole."""
    match = _EARLY_ID.match(data[:EARLY_BYTES])
    try:
        return None if match is None else msgspec.json.decode(match[1], type=int | str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def request_key(envelope: Envelope) -> RequestId | None:
    """Return the key that correlates the message with its answer; None if it expects no answer."""
    if isinstance(envelope.id, int | str) and isinstance(envelope.method, str):
        return correlation_key(envelope.id)
    return None


class _Enveloped(msgspec.Struct):
    meta: dict[str, Raw] = msgspec.field(name="_meta")


def has_envelope(message: Envelope) -> bool:
    """Whether the request itself names its revision, as requests do since 2026-07-28."""
    try:
        return isinstance(message.params, Raw) and VERSION in _decode_enveloped(message.params).meta
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


_decode_enveloped = msgspec.json.Decoder(_Enveloped).decode


def is_call(envelope: Envelope) -> bool:
    """Whether the message is a `tools/call` with all required members."""
    return (
        envelope.method == TOOLS_CALL
        and envelope.jsonrpc == "2.0"
        and isinstance(envelope.id, int | str)
        and not isinstance(envelope.params, UnsetType)
        and isinstance(envelope.result, UnsetType)
        and isinstance(envelope.error, UnsetType)
    )


def result_message(request_id: RequestId, result: object) -> bytes:
    """Return an encoded JSON-RPC response."""
    return _encode({"jsonrpc": "2.0", "id": request_id, "result": result})


def error_message(request_id: RequestId | None, code: int, message: str, data: object = None) -> bytes:
    """Return an encoded JSON-RPC error; the id is null if it could not be read."""
    error: dict[str, object] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return _encode({"jsonrpc": "2.0", "id": request_id, "error": error})


def notification(method: str, params: object = None) -> bytes:
    """Return an encoded JSON-RPC notification."""
    message = {"jsonrpc": "2.0", "method": method}
    return _encode(message if params is None else {**message, "params": params})


def correlation_key(request_id: RequestId) -> RequestId:
    """Return the key of a request's id, by the SDK's rule: some clients refer to request 7 as "7"."""
    try:
        return int(request_id)
    except ValueError:
        return request_id


# Turns for work on long messages: at most one step of it in each pass of a front's event loop.  A message of 60 MB
# takes some 40 ms to decode, to encode or to copy, which cannot be interrupted: msgspec keeps the interpreter's lock,
# so a thread would not help.  Several such steps in one pass, for one client or for many, would add up to half a second
# in which nobody else is answered.

LONG_BYTES = 512 * 1024
"""Length from which work on a message takes milliseconds."""

_turns: trio.lowlevel.RunVar[trio.Lock] = trio.lowlevel.RunVar("turns for long messages")


async def turn(size: int) -> None:
    """Wait until the caller may decode, encode or copy a message of this many bytes; return at once if it is not long.

    Call it before each such step: until the caller's next checkpoint, no other task is given a turn.
    """
    if size <= LONG_BYTES:
        return
    try:
        lock = _turns.get()
    except LookupError:
        lock = trio.Lock()
        _turns.set(lock)
    async with lock:
        # A pass in which others run between two steps.
        await trio.lowlevel.checkpoint()
