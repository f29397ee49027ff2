"""One generation of a service, which supervisor and router share, with the calls to it and those that it makes.

A front's also has its clients, who are asked over the front's own link.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import msgspec
import trio

from linckia.kernel.mandates import Mandate
from linckia.proto import errors, frames
from linckia.proto.channel import Channel
from linckia.proto.errors import Executed, LinckiaError
from linckia.proto.frames import Call, Cancel, Event, Fault, Level, Log, Progress, Return, Unfinished
from linckia.proto.grants import Grant
from linckia.proto.link import LinkClosed
from linckia.proto.operation import Operation

CALLS_AT_ONCE = 1024
"""Calls that one process of a service may wait for at the same time."""

FIRST_ID = 1 << 40
"""Questions have numbers of their own, above those of all calls on the link."""

ANSWER_S = 24 * 3600.0
"""For a person to answer; the deadline of the call that asks is what ends it."""

MAX_DECODED_BYTES = 64 * 1024
"""The largest body that the kernel decodes: some milliseconds, whatever is in it."""

served: ContextVar[RoutedCall | None] = ContextVar("served", default=None)
"""The call that a service was serving when it made the one that the kernel answers in this task."""

MAX_ASKED_BYTES = frames.MAX_MESSAGE_BYTES + 64 * 1024 * 1024
"""Parameters of calls that one process may wait for at the same time: the largest, and what comes beside it."""

MAX_HELD_BYTES = 1024 * 1024 * 1024
"""Bodies that the kernel holds for all services together: four of the largest."""

MAX_QUESTION_BYTES = 1024 * 1024
"""Of a service to a client."""

MAX_SEARCHED_BYTES = 1024 * 1024
"""The largest body in which the kernel looks for single members."""

_NULL = msgspec.Raw(frames.encode(None))

Done = Callable[[bytes | LinckiaError], None]
"""Called once, with the result's body or the failure."""


class Undecoded(msgspec.Struct, frozen=True):
    """A result that is too large for the kernel to look into: the body as it came."""

    body: bytes


class Client(Protocol):
    """What a running call may want of the client that made it.  The first two never block."""

    def progress(self, done: float, total: float | None, message: str | None) -> None: ...

    def log(self, level: Level, logger: str, message: str) -> None: ...

    async def ask(self, question: bytes) -> bytes:
        """The answer to a `frames.Question`, both as bodies.  Raises LinckiaError."""


@cache
def _reads(names: tuple[str, ...]) -> Callable[[bytes], object]:
    """What decodes nothing but these members of a body."""
    members = [(name, msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for name in names]
    return frames.reader(msgspec.defstruct("Members", members))


class RoutedCall(msgspec.Struct, eq=False, kw_only=True):
    """A call, refused, queued or in flight.  All callbacks are synchronous and never block."""

    op: Operation[Any]
    params: bytes
    caller: str
    trace: str
    deadline: float
    limit_s: float
    """What the caller gave it, from when it came."""
    done: Done
    progress: Callable[[Progress], None] | None = None
    client_requests: Client | None = None
    session: str = ""
    """Of the client; an opaque name, no secret.  Empty where there is none, as for the command line."""
    grant: Grant | None = None
    """What the client may do for whom it is made, be it through another service; None for all."""
    target: str = ""
    """What it is about, in the words of who made it (`proto.target`)."""
    peer: str = ""
    """Where the client is."""
    mandate: Mandate | None = None
    """Of a call that a client asked for beforehand."""
    for_client: bool = True
    """Whether a client waits for it, be it through another service; services make calls for themselves too."""
    frame_id: int = 0
    """Its number on the link while it is in flight; 0 otherwise."""
    generation: Generation | None = None
    """The one that it was sent to last."""
    deaths: int = 0
    """Generations that died with it in flight."""
    suspect: bool = False
    withdrawn: bool = False
    """Answered, or not wanted any more: `done` is not called again."""

    def is_repeatable(self) -> bool:
        """Whether the call may be sent again although it may have been executed."""
        if not self.op.idempotent:
            return False
        if not self.op.once_with:
            return True
        if len(self.params) > MAX_SEARCHED_BYTES:
            return False
        try:
            given = _reads(tuple(self.op.once_with))(bytes(self.params))
        except msgspec.DecodeError:
            return False
        return all(getattr(given, name) in (msgspec.UNSET, _NULL) for name in self.op.once_with)


class Waiting:
    """What comes back to a caller in the kernel's own process, until the end of its call."""

    def __init__(self, client_requests: Client | None) -> None:
        self.finished = trio.Event()
        self.outcome: bytes | LinckiaError | None = None
        self._client_requests = client_requests

    def done(self, outcome: bytes | LinckiaError) -> None:
        self.outcome = outcome
        self.finished.set()

    def progress(self, frame: Progress) -> None:
        if self._client_requests is not None:
            self._client_requests.progress(frame.done, frame.total, frame.message)


class FrontClient:
    """The clients of one generation of a front."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._ids = itertools.count(FIRST_ID)
        self._questions: dict[int, Waiting] = {}

    def requests(self, call_id: int) -> FrontRequests:
        """The client end of the call that the front has this number for."""
        return FrontRequests(self, call_id)

    def answered(self, frame: Return | Fault | Unfinished | Progress) -> bool:
        """Whether the frame answers a question."""
        if isinstance(frame, Progress) or frame.id < FIRST_ID:
            return False
        if (question := self._questions.get(frame.id)) is not None:
            question.done(frame.body if isinstance(frame, Return) else errors.from_failure(frame.failure))
        return True

    def gone(self) -> None:
        """The front is dead: no question will be answered."""
        for question in self._questions.values():
            question.done(errors.Unavailable("the client's connection was lost before it answered"))

    async def ask(self, call_id: int, question: bytes) -> bytes:
        """See `Client.ask`."""
        number = next(self._ids)
        waiting = self._questions[number] = Waiting(None)
        try:
            self.channel.post(
                Call(
                    id=number, op=frames.ASK_CLIENT, params=question, left_ms=int(ANSWER_S * 1000), trace="",
                    caller="kernel", generation=0, parent=call_id,
                )
            )  # fmt: skip
            await waiting.finished.wait()
        except LinkClosed:
            raise errors.Unavailable("the client's connection was lost") from None
        finally:
            del self._questions[number]
            if waiting.outcome is None:
                with contextlib.suppress(LinkClosed):
                    self.channel.post(Cancel(number))
        if isinstance(waiting.outcome, LinckiaError):
            raise waiting.outcome
        assert waiting.outcome is not None
        return waiting.outcome


@dataclass(frozen=True)
class FrontRequests:
    """`Client` for one call that a front makes for a client."""

    client: FrontClient
    call_id: int

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        """The router passes the call's own on; this is for that of calls made while it is served."""
        with contextlib.suppress(LinkClosed):
            self.client.channel.post(Progress(self.call_id, done, total, message))

    def log(self, level: Level, logger: str, message: str) -> None:
        with contextlib.suppress(LinkClosed):
            self.client.channel.post(Log(level, message, self.call_id, logger))

    async def ask(self, question: bytes) -> bytes:
        return await self.client.ask(self.call_id, question)


class Held:
    """The bytes of bodies that the kernel holds for all generations together, and their bound.

    They are of bodies that have not arrived whole, of calls that are not answered, and of answers that their caller
    has not read.
    """

    def __init__(self, most: int = MAX_HELD_BYTES) -> None:
        self.most = most
        self.generations: set[Generation] = set()

    def exceeds(self, size: int = 0) -> bool:
        """Whether it is more than may be, with `size` bytes more."""
        return sum(each.held_bytes for each in self.generations) + size > self.most

    def make_room(self) -> None:
        """End the generation for which most is held, if all together is too much."""
        if self.exceeds():
            max(self.generations, key=lambda each: each.held_bytes).held_too_much(self.most)


class Generation:
    """One process of a service, from its start to its death.

    The supervisor creates it and watches over it; the router keeps its calls here, those to it and those that it makes.
    """

    def __init__(self, service: str, number: int, mode: str = "", held: Held | None = None) -> None:
        self.held = held or Held()
        self.service = service
        """Its name, which for the others of a pool is not that of the service."""
        self.number = number
        self.mode = mode
        self.channel: Channel | None = None
        """The kernel's end of its link, once that is there."""
        self.takes_calls = False
        """From READY until it drains, or its link is closed."""
        self.calls: dict[int, RoutedCall] = {}
        """The calls in flight to it, by their number on the link."""
        self.made: dict[int, RoutedCall] = {}
        """Its own calls to services, by its number for each."""
        self.asks: dict[int, trio.CancelScope] = {}
        """Its calls that the kernel itself answers, questions to clients among them."""
        self._sizes: dict[int, int] = {}
        """Of the parameters of both."""
        self._asked_bytes = 0
        self.client: FrontClient | None = None
        """Set for a front once it is READY: the clients that it speaks for."""

    @property
    def held_bytes(self) -> int:
        """What the kernel holds for it: see `Held`."""
        return self._asked_bytes + (self.channel.held_bytes if self.channel is not None else 0)

    def held_too_much(self, most: int) -> None:
        """More than `most` bytes are held for all, and most of them for this one: end it."""

    def serving(self, call_id: int | None) -> RoutedCall | None:
        """The call in flight to it of that number."""
        return None if call_id is None else self.calls.get(call_id)

    def admit(self, call: Call) -> None:
        """Note a call that it makes.  Raises Overloaded: it waits for too many, or for too large ones."""
        size = len(call.params)
        if len(self._sizes) >= CALLS_AT_ONCE or self._asked_bytes + size > MAX_ASKED_BYTES:
            text = f"service {self.service} has too many calls in hand, or too large ones"
            raise errors.Overloaded(text, retry_after_ms=100)
        if size > frames.PART_BYTES and self.held.exceeds(size):
            raise errors.Overloaded("the kernel has too many large calls in hand", retry_after_ms=100)
        self._sizes[call.id] = size
        self._asked_bytes += size

    def forget(self, call_id: int) -> None:
        """It waits for that call no more."""
        self._asked_bytes -= self._sizes.pop(call_id, 0)

    def answer(self, call_id: int, outcome: bytes | LinckiaError) -> None:
        """The outcome of a call that it made."""
        self.forget(call_id)
        if not isinstance(outcome, LinckiaError):
            dropped = None
            if self.channel is not None and self.channel.is_behind:
                dropped = f"service {self.service} does not read what it is sent"
            elif len(outcome) > frames.PART_BYTES and self.held.exceeds(len(outcome)):
                dropped = "the kernel has too many large results in hand"
            if dropped is not None:
                outcome = errors.Overloaded(f"the result was dropped: {dropped}", executed=Executed.MAYBE)
        self.post(Fault(call_id, outcome.failure) if isinstance(outcome, LinckiaError) else Return(call_id, outcome))

    def post(self, frame: Return | Fault | Progress | Event) -> None:
        """Send the frame; it is dropped if the link is closed."""
        if self.channel is not None:
            with contextlib.suppress(LinkClosed):
                self.channel.post(frame)
