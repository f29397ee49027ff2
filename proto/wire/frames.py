"""The wire frames: everything that crosses the link between the kernel and a service.

Frames are msgpack arrays that start with an integer tag. Bodies (`params`, `body`) are byte strings containing msgpack,
so that the kernel can pass them on at no cost, without decoding them or looking for their end. A body larger than
`PART_BYTES` follows its frame in `Part`s, which the channel assembles at the other end; handlers never see parts. So no
decoded message is larger than `MAX_HEAD_BYTES`.

The types limit their contents (ranges of numbers, lengths of names and texts), and `decode` is the only place where
foreign bytes become frames. Invalid bytes are a protocol violation, for which the sender is ended.
"""

from __future__ import annotations

import codecs
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Literal, NoReturn, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Meta, Raw

from proto.errors import Failure, Internal
from proto.operation import Operation
from proto.origin import Name, Origin

PROTOCOL = 6
"""Protocol version. A hello with another version is refused, so that a stale process is not used by mistake."""

PART_BYTES = 64 * 1024
"""Largest body sent within its frame, and largest part: a small call never waits behind more than this."""

MAX_HEAD_BYTES = 256 * 1024
"""Largest frame without its body; `Failure` and `Info` are limited accordingly."""

ASK_CLIENT = "client.ask"
"""Operation with which a service sends a request to the client whose call it is serving; the kernel handles it."""

DEADLINE = "deadline"
"""Reason of a `Cancel` that is answered: the deadline passed, and the caller wants to know what may have been done."""

WRITTEN = 1
"""The msgpack extension for a JSON body; see `Written`."""

MAX_MESSAGE_BYTES = 256 * 1024 * 1024
"""Maximum size of a body."""

MAX_STREAMS = 32
"""Bodies that may arrive in parts at the same time; in total they must not exceed the maximum size of one body."""

TEXT_CHARS = 16 * 1024
"""Maximum length of a log line or progress message; the sender truncates longer ones."""

INFO_CHARS = 1024
"""Maximum length of a value in `info`; the sender truncates longer ones."""

TARGET_CHARS = 512
"""Maximum length of the description of what a call is about."""

MAX_LEFT_MS = 2**31 - 1
"""Maximum time left: some weeks, for calls without a time limit."""

INFO_ENTRIES = 32

DAMAGE = "damage"
"""Key in `info` whose value says that data is damaged, what is still served, and what to do."""

T = TypeVar("T")
R = TypeVar("R")

Number = Annotated[int, Meta(ge=0, le=2**53 - 1)]
"""An integer that every JSON reader represents exactly."""

Text = Annotated[str, Meta(max_length=TEXT_CHARS)]
Target = Annotated[str, Meta(max_length=TARGET_CHARS)]
Info = Annotated[dict[Name, Annotated[str, Meta(max_length=INFO_CHARS)]], Meta(max_length=INFO_ENTRIES)]

Amount = Annotated[float, Meta(ge=-1e300, le=1e300)]
"""Finite, since JSON has neither infinity nor NaN."""

Level = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
"""Severities of RFC 5424, in ascending order."""


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of background work: `done` of `total`, with the current rate and time left if known."""

    done: Number
    total: Number
    per_s: Amount | None = None
    left_s: Amount | None = None


Backlogs = Annotated[dict[Name, Backlog], Meta(max_length=INFO_ENTRIES)]
"""Backlogs by the subject of the work; finished work is not listed."""


class Frame(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """Base of all frames; `id` is the id of the call."""


class Hello(Frame, frozen=True, tag=1):
    """The service's first frame, with its identity. The kernel drops a link whose hello does not match its
    generation."""

    protocol: Number
    service: Name
    generation: Number
    pid: Number
    operations: Annotated[tuple[Name, ...], Meta(max_length=4096)]


class Ready(Frame, frozen=True, tag=2):
    """The service can be called. `status` shows `info`, for example the model and device in use."""

    info: Info = {}


class Call(Frame, frozen=True, tag=3):
    """A request, in either direction; in calls from a service, `parent` is the id of the call being served.

    `left_ms` is the time left rather than a point in time, so that clocks are never compared. `target` (what the call
    is about) goes into the audit log.
    """

    id: Number
    op: Name
    params: bytes
    left_ms: Annotated[int, Meta(ge=0, le=MAX_LEFT_MS)]
    origin: Origin
    generation: Number
    parent: Number | None = None
    progress: bool = False
    target: Target = ""


class Return(Frame, frozen=True, tag=4):
    """The result of a call; its last frame."""

    id: Number
    body: bytes


class Fault(Frame, frozen=True, tag=5):
    """The failure of a call; its last frame."""

    id: Number
    failure: Failure


class Unfinished(Frame, frozen=True, tag=6):
    """The service ends without having finished this call: it was not `begun`, or was interrupted. `failure` is the
    result if the call is not sent to the next generation."""

    id: Number
    begun: bool
    failure: Failure


class Progress(Frame, frozen=True, tag=8):
    """Progress of a call."""

    id: Number
    done: Amount
    total: Amount | None = None
    message: Text | None = None


class Cancel(Frame, frozen=True, tag=9):
    """The caller no longer wants a reply: stop the work."""

    id: Number
    reason: Text = ""


class Event(Frame, frozen=True, tag=10):
    """Something happened in a service that others subscribed to (`topic`). Events arrive in order."""

    topic: Name
    body: bytes


class Log(Frame, frozen=True, tag=11):
    """A log line; if `call` is set, for the client that made this call. When passed on to a front, `logger` names the
    service."""

    level: Level
    message: Text
    call: Number | None = None
    logger: Name = ""


class Ping(Frame, frozen=True, tag=12):
    """A liveness check. The service's event loop answers it, so a blocked loop misses its pong."""

    n: Number


class Pong(Frame, frozen=True, tag=13):
    """The reply to a ping, with the service's information about itself."""

    n: Number
    in_flight: Number
    info: Info = {}
    backlogs: Backlogs = {}


class Drain(Frame, frozen=True, tag=14):
    """Finish the calls in flight, accept no more, then say bye."""

    timeout_ms: Number


class Bye(Frame, frozen=True, tag=15):
    """All calls are answered. The sender waits for the acknowledgement, since exiting at once could lose messages."""


class ByeAck(Frame, frozen=True, tag=16):
    """Everything arrived; the link may be closed."""


class Part(Frame, frozen=True, tag=17):
    """A piece of a large body; pieces of one `stream` arrive in order.

    The `data` of the first piece is the frame with an empty body; the `data` of the others make up the body.
    """

    stream: Number
    last: bool
    data: bytes


FromService: TypeAlias = (
    Hello | Ready | Call | Return | Fault | Unfinished | Progress | Cancel | Event | Log | Pong | Bye | Part
)
FromKernel: TypeAlias = Call | Return | Fault | Progress | Cancel | Event | Log | Ping | Drain | ByeAck | Part
AnyFrame: TypeAlias = FromService | FromKernel

encode: Callable[[object], bytes] = msgspec.msgpack.Encoder().encode


class Pieces:
    """A large body in the pieces in which it arrived, so that the end that forwards it never copies it.

    It takes the place of `bytes` in frames from a channel with `passes_on`. All pieces but the last have `PART_BYTES`.
    """

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces
        self._size = sum(map(len, pieces))

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._pieces)

    def __bytes__(self) -> bytes:
        return b"".join(self._pieces)

    def at(self, start: int) -> bytes:
        """Return the piece that starts at this offset."""
        return self._pieces[start // PART_BYTES]


def pieces_of(body: bytes | Pieces) -> Iterable[bytes]:
    """Return the body as one or more pieces."""
    return body if isinstance(body, Pieces) else (body,)


def body_of(frame: AnyFrame) -> bytes:
    """Return the body of a call, return or event; `b""` for other frames."""
    match frame:
        case Call(params=body) | Return(body=body) | Event(body=body):
            return body
        case _:
            return b""


def with_body(frame: AnyFrame, body: bytes | Pieces) -> AnyFrame:
    """Return the same call, return or event with another body, which is not copied."""
    shared = cast("bytes", body)
    match frame:
        case Call():
            return msgspec.structs.replace(frame, params=shared)
        case Return() | Event():
            return msgspec.structs.replace(frame, body=shared)
        case _:
            raise TypeError(f"{type(frame).__name__} has no body")


def decoded(decode: Callable[[Any], T], data: object) -> T:
    """Decode foreign bytes. Raises only msgspec.DecodeError, whatever is wrong with them."""
    try:
        return decode(data)
    except msgspec.DecodeError:
        raise
    except Exception as error:  # noqa: BLE001  # UnicodeDecodeError, RecursionError: the bytes are invalid
        raise msgspec.DecodeError(f"{type(error).__name__}: {error}") from None


def reader(tp: Any) -> Callable[[Any], Any]:
    """Return a decoder for msgpack values of type `tp`. It raises only msgspec.DecodeError."""
    return functools.partial(decoded, msgspec.msgpack.Decoder(tp).decode)


from_service: Callable[[bytes], FromService] = reader(FromService)
from_kernel: Callable[[bytes], FromKernel] = reader(FromKernel)
decode: Callable[[bytes], AnyFrame] = reader(AnyFrame)
"""Decoders for one direction, for the other, and for any frame."""


NO_PARENT = "0000000000000001"
"""Parent span of a trace that began here. All zeros would be invalid."""


def new_trace() -> str:
    """Return a W3C traceparent for a new trace."""
    return f"00-{os.urandom(16).hex()}-{NO_PARENT}-01"


def trace_id(traceparent: str) -> str:
    """Return the trace id in a traceparent; "" if there is none."""
    return traceparent[3:35]


def parent_span(traceparent: str) -> str:
    """Return the caller's span id in a traceparent; "" if the trace began here."""
    span = traceparent[36:52]
    return "" if span == NO_PARENT else span


class Question(msgspec.Struct, frozen=True):
    """Parameters of `ASK_CLIENT`: an MCP request to the client."""

    method: Name
    params: dict[str, Any]


class Written(msgspec.Struct, frozen=True, gc=False):
    """A result that its handler already has as JSON, because it is stored as JSON: clients get these very bytes.

    `json` must equal the encoded result of the operation, on one line.
    """

    json: bytes


_extension: Callable[[object], msgspec.msgpack.Ext] = reader(msgspec.msgpack.Ext)
_EXTENSION_MARKS = frozenset({0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8})
"""Possible first bytes of a msgpack extension."""


def pack_body(value: object) -> bytes:
    """Encode a parameter Struct or a result as the body of a frame."""
    if isinstance(value, Written):
        value = msgspec.msgpack.Ext(WRITTEN, value.json)
    return encode(value)


def as_written(body: bytes) -> Raw | None:
    """Return the JSON of a `Written` body; None for any other. Raises msgspec.DecodeError."""
    if not body or body[0] not in _EXTENSION_MARKS:
        return None
    extension = _extension(body)
    if extension.code != WRITTEN:
        raise msgspec.DecodeError(f"unknown extension {extension.code} in a body")
    json = bytes(extension.data)
    if b"\n" in json or b"\r" in json:
        # It is inserted unread into messages of one line each.
        raise msgspec.DecodeError("JSON body with several lines")
    # Decoding skips fields that a type does not know, even if their text is invalid.
    decoded(codecs.utf_8_decode, json)
    return Raw(json)


# The return type is whatever type the caller names, which cannot be annotated for everything that msgspec accepts.
def read_body(body: bytes, tp: Any = Any) -> Any:
    """Decode a result, in either form, as a value of type `tp`. Raises msgspec.DecodeError."""
    # `tp` may be a union, which cannot be expressed in a signature before TypeForm (PEP 747).
    json = as_written(body)
    kind = msgspec.msgpack if json is None else msgspec.json
    return decoded(functools.partial(kind.decode, type=tp), body if json is None else json)


# Results of calls, checked against the type that their operation declares. A service may return anything. An invalid
# result is a failure of that call only, and names the service and operation. Checking costs one decoding, 0.6 µs per
# KiB.

_FRONT = "front"
"""For the operator's command line, its composite tools return ordinary data instead of content."""


def typed(operation: Operation[R], body: bytes) -> R:
    """Return the result as the type that the operation declares. Raises Internal."""
    try:
        return _checked(operation, body, as_written(body))
    except msgspec.DecodeError as error:
        _refuse(operation, error)


def plain(operation: Operation[Any], body: bytes, *, written: bool = False) -> object:
    """Return the result as plain data; with `written`, as JSON (`msgspec.Raw`) if its service wrote it as JSON.

    Raises Internal.
    """
    try:
        json = as_written(body)
        if not (operation.service == _FRONT and operation.is_content):
            _checked(operation, body, json)
        if json is not None and written:
            return json
        return decoded(_plain, body) if json is None else decoded(msgspec.json.decode, json)
    except msgspec.DecodeError as error:
        _refuse(operation, error)


def _checked(operation: Operation[R], body: bytes, json: Raw | None) -> R:
    of_msgpack, of_json = operation.decoders
    return decoded(of_msgpack, body) if json is None else decoded(of_json, json)


def _refuse(operation: Operation[Any], error: msgspec.DecodeError) -> NoReturn:
    wrong = f"{operation.name}: service {operation.service} returned an invalid result: {error}"
    raise operation.failure(Internal(wrong)) from None


def _no_extension(code: int, data: memoryview) -> NoReturn:
    raise msgspec.DecodeError(f"unknown extension {code}")


_plain = msgspec.msgpack.Decoder(ext_hook=_no_extension).decode
