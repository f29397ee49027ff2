"""The wire frames: everything that crosses the link between the kernel and a service.

Frames are msgpack arrays with an integer tag first.  Bodies (`params`, `body`) travel as msgpack inside `Raw`, so
that the kernel passes them on without decoding.  A frame larger than `PART_BYTES` is cut into `Part`s by the channel
and put together again at the other end; no handler ever sees a part.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
from msgspec import Raw

from proto.errors import Failure

PROTOCOL = 2
"""Version of this page; a hello with another is refused, so that a stale process cannot be talked to by mistake."""

PART_BYTES = 64 * 1024
"""The largest message on the link: a small call never waits behind more than this."""

ASK_CLIENT = "client.ask"
"""What a service calls to put a request to the client whose call it is serving; the kernel itself answers it."""

DEADLINE = "deadline"
"""Why a `Cancel` is sent that is answered: the caller's time is up, and it wants to know what may have been done."""

WRITTEN = 1
"""The msgpack extension that a body of JSON is: see `Written`."""

MAX_MESSAGE_BYTES = 256 * 1024 * 1024
"""The largest frame that is put together."""


class Frame(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of every frame; `id` is that of the call."""


class Hello(Frame, frozen=True, tag=1):
    """First from the service: who is there.  The kernel drops a link whose hello does not match its generation."""

    protocol: int
    service: str
    generation: int
    pid: int
    operations: tuple[str, ...]


class Ready(Frame, frozen=True, tag=2):
    """The service may be called; `info` is shown by `status` (the model and device in use, say)."""

    info: dict[str, str] = {}


class Call(Frame, frozen=True, tag=3):
    """A request, in either direction; `parent` is the id of the call being served, for calls from a service.

    `left_ms` is the time left, not an instant: the two clocks are never compared. `trace` is a W3C traceparent,
    `session` an opaque name of the client's session, '' for calls that are of none.
    """

    id: int
    op: str
    params: Raw
    left_ms: int
    trace: str
    caller: str
    generation: int
    parent: int | None = None
    progress: bool = False
    session: str = ""


class Return(Frame, frozen=True, tag=4):
    """The result of a call, its last frame."""

    id: int
    body: Raw


class Fault(Frame, frozen=True, tag=5):
    """The failure of a call, its last frame."""

    id: int
    failure: Failure


class Progress(Frame, frozen=True, tag=8):
    """How far the work of a call has come."""

    id: int
    done: float
    total: float | None = None
    message: str | None = None


class Cancel(Frame, frozen=True, tag=9):
    """The caller wants no answer any more: stop the work."""

    id: int
    reason: str = ""


class Event(Frame, frozen=True, tag=10):
    """Something happened in a service that others subscribed to (`topic`); in order."""

    topic: str
    body: Raw


class Log(Frame, frozen=True, tag=11):
    """A line for the log, and where `call` is set for the client that made this call; passed on to a front, `logger`
    names the service."""

    level: str
    message: str
    call: int | None = None
    logger: str = ""


class Ping(Frame, frozen=True, tag=12):
    """Are you there?  Answered by the service's event loop itself, so that a blocked loop is a missed pong."""

    n: int


class Pong(Frame, frozen=True, tag=13):
    """The answer to a ping, with what the service knows of itself."""

    n: int
    in_flight: int
    info: dict[str, str] = {}


class Drain(Frame, frozen=True, tag=14):
    """Finish the calls in hand, take no more, then say bye."""

    timeout_ms: int


class Bye(Frame, frozen=True, tag=15):
    """All is answered; waits for the acknowledgement, since to send and exit loses messages."""


class ByeAck(Frame, frozen=True, tag=16):
    """Everything arrived; the link may be closed."""


class Part(Frame, frozen=True, tag=17):
    """A piece of a larger frame; pieces of one `stream` arrive in order."""

    stream: int
    last: bool
    data: bytes


AnyFrame: TypeAlias = (
    Hello | Ready | Call | Return | Fault | Progress | Cancel | Event | Log | Ping | Pong | Drain | Bye | ByeAck | Part
)

encode: Callable[[object], bytes] = msgspec.msgpack.Encoder().encode
decode: Callable[[bytes], AnyFrame] = msgspec.msgpack.Decoder(AnyFrame).decode
"""Raises msgspec.DecodeError (ValidationError among them) for anything that is not a frame."""


def new_trace() -> str:
    """A W3C traceparent of a new trace."""
    return f"00-{os.urandom(16).hex()}-{os.urandom(8).hex()}-01"


class Question(msgspec.Struct, frozen=True):
    """The parameters of `ASK_CLIENT`: a request of MCP to the client."""

    method: str
    params: dict[str, Any]


class Written(msgspec.Struct, frozen=True, gc=False):
    """A result that its handler has written as JSON already, since it is kept as JSON: a client gets these very bytes.

    `json` is what encoding the operation's own result would come to, on one line.
    """

    json: bytes


_EXTENSION_MARKS = frozenset({0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8})
"""First bytes of a msgpack extension."""


def pack_body(value: object) -> Raw:
    """A parameter Struct or a result as the body of a frame."""
    if isinstance(value, Written):
        value = msgspec.msgpack.Ext(WRITTEN, value.json)
    return Raw(encode(value))


def written(body: Raw) -> Raw | None:
    """The JSON of a body that is `Written`; None of any other.  Raises msgspec.DecodeError."""
    view = memoryview(body)
    if not view or view[0] not in _EXTENSION_MARKS:
        return None
    extension = msgspec.msgpack.decode(view, type=msgspec.msgpack.Ext)
    if extension.code != WRITTEN:
        raise msgspec.DecodeError(f"a body of the unknown extension {extension.code}")
    json = bytes(extension.data)
    if b"\n" in json:
        # It goes into messages of one line each, unread.
        raise msgspec.DecodeError("a body of JSON on several lines")
    return Raw(json)


def read_body(body: Raw, tp: Any = Any) -> Any:
    """A result as a value of type `tp`, in whichever form it came.  Raises msgspec.DecodeError."""
    # `tp` may be a union, for whose values a signature has no name before TypeForm (PEP 747).
    json = written(body)
    return msgspec.msgpack.decode(body, type=tp) if json is None else msgspec.json.decode(json, type=tp)
