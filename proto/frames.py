"""The wire frames: everything that crosses the link between the kernel and a service.

Frames are msgpack arrays with an integer tag first.  Bodies (`params`, `body`) travel as bytes that hold msgpack, so
that the kernel passes them on without decoding, or even looking for their end: what is in them costs it nothing.  A
body larger than `PART_BYTES` follows its frame in `Part`s, which the channel puts together at the other end; no handler
ever sees a part.  So no message that is decoded is larger than `MAX_HEAD_BYTES`.

The types bound what they hold (numbers that may be, names and texts of a length), and `decode` is the one place where
foreign bytes become frames: what does not fit is a violation of the protocol, which ends its sender.
"""

from __future__ import annotations

import codecs
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, cast

import msgspec
from msgspec import Meta, Raw

from linckia.proto.errors import Failure
from linckia.proto.grants import Grant

PROTOCOL = 4
"""Version of this page; a hello with another is refused, so that a stale process cannot be talked to by mistake."""

PART_BYTES = 64 * 1024
"""The largest body that travels within its frame, and the largest part: a small call waits behind no more than this."""

MAX_HEAD_BYTES = 256 * 1024
"""The largest frame without its body; `Failure` and `Info` are bounded so that theirs fit."""

ASK_CLIENT = "client.ask"
"""What a service calls to put a request to the client whose call it is serving; the kernel itself answers it."""

DEADLINE = "deadline"
"""Why a `Cancel` is sent that is answered: the caller's time is up, and it wants to know what may have been done."""

WRITTEN = 1
"""The msgpack extension that a body of JSON is: see `Written`."""

MAX_MESSAGE_BYTES = 256 * 1024 * 1024
"""The largest body."""

MAX_STREAMS = 32
"""Bodies that may arrive in parts at the same time; all of them together are no larger than the largest may be."""

TEXT_CHARS = 16 * 1024
"""The longest line for a log or report of progress; the sender cuts what is longer."""

INFO_CHARS = 1024
"""The longest value of `info`; the sender cuts what is longer."""

TARGET_CHARS = 512
"""The longest description of what a call is about."""

MAX_LEFT_MS = 2**31 - 1
"""Some weeks: for a call that may take as long as it likes."""

INFO_ENTRIES = 32

DAMAGE = "damage"
"""The value of `info` that says that data is damaged, what of it is served, and what to do."""

T = TypeVar("T")

Number = Annotated[int, Meta(ge=0, le=2**53 - 1)]
"""No larger than every reader of JSON keeps exactly."""

Name = Annotated[str, Meta(max_length=256)]
Text = Annotated[str, Meta(max_length=TEXT_CHARS)]
Target = Annotated[str, Meta(max_length=TARGET_CHARS)]
Info = Annotated[dict[Name, Annotated[str, Meta(max_length=INFO_CHARS)]], Meta(max_length=INFO_ENTRIES)]

Amount = Annotated[float, Meta(ge=-1e300, le=1e300)]
"""Finite: infinity and NaN are no JSON."""

Trace = Annotated[str, Meta(max_length=55, pattern=r"\A(00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})?\Z")]
"""A W3C traceparent, or '' for none; it goes into logs as it is."""

Level = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
"""Of RFC 5424, rising."""


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """How far work in the background is: `done` of `total`, and how quick at the moment, where that is known."""

    done: Number
    total: Number
    per_s: Amount | None = None
    left_s: Amount | None = None


Backlogs = Annotated[dict[Name, Backlog], Meta(max_length=INFO_ENTRIES)]
"""By what the work is on; what is done is not there."""


class Frame(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """Base of every frame; `id` is that of the call."""


class Hello(Frame, frozen=True, tag=1):
    """First from the service: who is there.  The kernel drops a link whose hello does not match its generation."""

    protocol: Number
    service: Name
    generation: Number
    pid: Number
    operations: Annotated[tuple[Name, ...], Meta(max_length=4096)]


class Ready(Frame, frozen=True, tag=2):
    """The service may be called; `info` is shown by `status` (the model and device in use, say)."""

    info: Info = {}


class Call(Frame, frozen=True, tag=3):
    """A request, in either direction; `parent` is the id of the call being served, for calls from a service.

    `left_ms` is the time left, not an instant: the two clocks are never compared. `trace` is a W3C traceparent,
    `session` an opaque name of the client's session, '' for calls that are of none; `grant` is what that client may do,
    for a front to name, None for all. `target` (what the call is about) and `peer` (where the client is, `stdio` or an
    address) go into the audit log.
    """

    id: Number
    op: Name
    params: bytes
    left_ms: Annotated[int, Meta(ge=0, le=MAX_LEFT_MS)]
    trace: Trace
    caller: Name
    generation: Number
    parent: Number | None = None
    progress: bool = False
    session: Name = ""
    grant: Grant | None = None
    target: Target = ""
    peer: Name = ""


class Return(Frame, frozen=True, tag=4):
    """The result of a call, its last frame."""

    id: Number
    body: bytes


class Fault(Frame, frozen=True, tag=5):
    """The failure of a call, its last frame."""

    id: Number
    failure: Failure


class Unfinished(Frame, frozen=True, tag=6):
    """The service ends, and has not done this call: it was not `begun`, or was cut short; `failure` where it is not to
    be sent to the next generation."""

    id: Number
    begun: bool
    failure: Failure


class Progress(Frame, frozen=True, tag=8):
    """How far the work of a call has come."""

    id: Number
    done: Amount
    total: Amount | None = None
    message: Text | None = None


class Cancel(Frame, frozen=True, tag=9):
    """The caller wants no answer any more: stop the work."""

    id: Number
    reason: Text = ""


class Event(Frame, frozen=True, tag=10):
    """Something happened in a service that others subscribed to (`topic`); in order."""

    topic: Name
    body: bytes


class Log(Frame, frozen=True, tag=11):
    """A line for the log, and where `call` is set for the client that made this call; passed on to a front, `logger`
    names the service."""

    level: Level
    message: Text
    call: Number | None = None
    logger: Name = ""


class Ping(Frame, frozen=True, tag=12):
    """Are you there?  Answered by the service's event loop itself, so that a blocked loop is a missed pong."""

    n: Number


class Pong(Frame, frozen=True, tag=13):
    """The answer to a ping, with what the service knows of itself."""

    n: Number
    in_flight: Number
    info: Info = {}
    backlogs: Backlogs = {}


class Drain(Frame, frozen=True, tag=14):
    """Finish the calls in hand, take no more, then say bye."""

    timeout_ms: Number


class Bye(Frame, frozen=True, tag=15):
    """All is answered; waits for the acknowledgement, since to send and exit loses messages."""


class ByeAck(Frame, frozen=True, tag=16):
    """Everything arrived; the link may be closed."""


class Part(Frame, frozen=True, tag=17):
    """A piece of a large body; pieces of one `stream` arrive in order.

    The `data` of the first is the frame with an empty body; that of all others together is the body.
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
    """A body in the pieces in which it arrived, for an end that passes it on: a large one is never copied there.

    It stands for `bytes`, and is found only where the channel was asked for it. All pieces but the last have the same
    size, `PART_BYTES`.
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
        """The piece that begins there."""
        return self._pieces[start // PART_BYTES]


def pieces_of(body: bytes | Pieces) -> Iterable[bytes]:
    """The body in one or more pieces."""
    return body if isinstance(body, Pieces) else (body,)


def body_of(frame: AnyFrame) -> bytes:
    """The body of a call, a return or an event; `b""` for all others."""
    match frame:
        case Call(params=body) | Return(body=body) | Event(body=body):
            return body
        case _:
            return b""


def with_body(frame: AnyFrame, body: bytes | Pieces) -> AnyFrame:
    """The same call, return or event with another body."""
    shared = cast("bytes", body)
    match frame:
        case Call():
            return msgspec.structs.replace(frame, params=shared)
        case Return() | Event():
            return msgspec.structs.replace(frame, body=shared)
        case _:
            raise TypeError(f"{type(frame).__name__} has no body")


def decoded(decode: Callable[[Any], T], data: object) -> T:
    """Foreign bytes as `decode` reads them.  Raises msgspec.DecodeError alone, whatever is wrong with them."""
    try:
        return decode(data)
    except msgspec.DecodeError:
        raise
    except Exception as error:  # noqa: BLE001  # UnicodeDecodeError, RecursionError: the bytes are at fault
        raise msgspec.DecodeError(f"{type(error).__name__}: {error}") from None


def reader(tp: Any) -> Callable[[Any], Any]:
    """What decodes a msgpack value of type `tp`.  Raises msgspec.DecodeError alone."""
    return functools.partial(decoded, msgspec.msgpack.Decoder(tp).decode)


from_service: Callable[[bytes], FromService] = reader(FromService)
from_kernel: Callable[[bytes], FromKernel] = reader(FromKernel)
decode: Callable[[bytes], AnyFrame] = reader(AnyFrame)
"""In one direction, in the other, and whatever is a frame at all."""


def new_trace() -> str:
    """A W3C traceparent of a new trace."""
    return f"00-{os.urandom(16).hex()}-{os.urandom(8).hex()}-01"


class Question(msgspec.Struct, frozen=True):
    """The parameters of `ASK_CLIENT`: a request of MCP to the client."""

    method: Name
    params: dict[str, Any]


class Written(msgspec.Struct, frozen=True, gc=False):
    """A result that its handler has written as JSON already, since it is kept as JSON: a client gets these very bytes.

    `json` is what encoding the operation's own result would come to, on one line.
    """

    json: bytes


_extension: Callable[[object], msgspec.msgpack.Ext] = reader(msgspec.msgpack.Ext)
_EXTENSION_MARKS = frozenset({0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8})
"""First bytes of a msgpack extension."""


def pack_body(value: object) -> bytes:
    """A parameter Struct or a result as the body of a frame."""
    if isinstance(value, Written):
        value = msgspec.msgpack.Ext(WRITTEN, value.json)
    return encode(value)


def written(body: bytes) -> Raw | None:
    """The JSON of a body that is `Written`; None of any other.  Raises msgspec.DecodeError."""
    if not body or body[0] not in _EXTENSION_MARKS:
        return None
    extension = _extension(body)
    if extension.code != WRITTEN:
        raise msgspec.DecodeError(f"a body of the unknown extension {extension.code}")
    json = bytes(extension.data)
    if b"\n" in json or b"\r" in json:
        # It goes into messages of one line each, unread.
        raise msgspec.DecodeError("a body of JSON on several lines")
    # Members that a type does not know are skipped, whatever text they hold.
    decoded(codecs.utf_8_decode, json)
    return Raw(json)


# Of whichever type the caller names, which no annotation says of all that msgspec takes.
def read_body(body: bytes, tp: Any = Any) -> Any:
    """A result as a value of type `tp`, in whichever form it came.  Raises msgspec.DecodeError."""
    # `tp` may be a union, for whose values a signature has no name before TypeForm (PEP 747).
    json = written(body)
    kind = msgspec.msgpack if json is None else msgspec.json
    return decoded(functools.partial(kind.decode, type=tp), body if json is None else json)
