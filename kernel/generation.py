"""One generation of a service, which supervisor and router share, with the calls to it and those that it makes.

A front's also has its clients, who are asked over the front's own link.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import trio

from linckia.proto import errors, frames
from linckia.proto.channel import Channel
from linckia.proto.dispatch import ClientRequests
from linckia.proto.errors import Executed, LinckiaError
from linckia.proto.frames import Call, Cancel, Event, Fault, Level, Log, Progress, Return, Unfinished
from linckia.proto.grants import Grant
from linckia.proto.json_types import JsonObject
from linckia.proto.link import LinkClosed
from linckia.proto.operation import Operation

CALLS_AT_ONCE = 1024
"""Calls that one process of a service may wait for at the same time."""

FIRST_ID = 1 << 40
"""Questions have numbers of their own, above those of all calls on the link."""

ANSWER_S = 24 * 3600.0
"""For a person to answer; the deadline of the call that asks is what ends it."""


_given: Callable[[bytes], dict[str, object]] = frames.reader(dict[str, object])

Done = Callable[[bytes | LinckiaError], None]
"""Called once, with the result's body or the failure."""


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
    client_requests: ClientRequests | None = None
    session: str = ""
    """Of the client; an opaque name, no secret.  Empty where there is none, as for the command line."""
    grant: Grant | None = None
    """What the client may do for whom it is made, be it through another service; None for all."""
    target: str = ""
    """What it is about, in the words of who made it (`proto.target`)."""
    peer: str = ""
    """Where the client is."""
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
        try:
            given = _given(self.params)
        except msgspec.DecodeError:
            return False
        return all(given.get(name) is None for name in self.op.once_with)


class Waiting:
    """What comes back to a caller in the kernel's own process, until the end of its call."""

    def __init__(self, client_requests: ClientRequests | None) -> None:
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

    async def ask(self, call_id: int, method: str, params: JsonObject) -> JsonObject:
        """Raises LinckiaError."""
        number = next(self._ids)
        question = self._questions[number] = Waiting(None)
        body = frames.pack_body(frames.Question(method, params))
        try:
            self.channel.post(
                Call(
                    id=number, op=frames.ASK_CLIENT, params=body, left_ms=int(ANSWER_S * 1000), trace="",
                    caller="kernel", generation=0, parent=call_id,
                )
            )  # fmt: skip
            await question.finished.wait()
        except LinkClosed:
            raise errors.Unavailable("the client's connection was lost") from None
        finally:
            del self._questions[number]
            if question.outcome is None:
                with contextlib.suppress(LinkClosed):
                    self.channel.post(Cancel(number))
        if isinstance(question.outcome, LinckiaError):
            raise question.outcome
        assert question.outcome is not None
        try:
            answer: JsonObject = frames.read_body(question.outcome, JsonObject)
        except msgspec.DecodeError as error:
            raise errors.Internal(f"the client's answer to {method} cannot be read: {error}") from error
        return answer


@dataclass(frozen=True)
class FrontRequests:
    """`proto.dispatch.ClientRequests` for one call that a front makes for a client."""

    client: FrontClient
    call_id: int

    def progress(self, done: float, total: float | None, message: str | None) -> None:
        """The router passes the call's own on; this is for that of calls made while it is served."""
        with contextlib.suppress(LinkClosed):
            self.client.channel.post(Progress(self.call_id, done, total, message))

    def log(self, level: Level, logger: str, message: str) -> None:
        with contextlib.suppress(LinkClosed):
            self.client.channel.post(Log(level, message, self.call_id, logger))

    async def ask(self, method: str, params: JsonObject) -> JsonObject:
        return await self.client.ask(self.call_id, method, params)


class Generation:
    """One process of a service, from its start to its death.

    The supervisor creates it and watches over it; the router keeps its calls here, those to it and those that it makes.
    """

    def __init__(self, service: str, number: int, mode: str = "") -> None:
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
        self.client: FrontClient | None = None
        """Set for a front once it is READY: the clients that it speaks for."""

    def serving(self, call_id: int | None) -> RoutedCall | None:
        """The call in flight to it of that number."""
        return None if call_id is None else self.calls.get(call_id)

    def admit(self, call: Call) -> None:
        """Limit the calls that it waits for.  Raises Overloaded."""
        waiting_bytes = 0
        if len(call.params) > frames.PART_BYTES:
            waiting_bytes = sum(len(made.params) for made in self.made.values())
        if len(self.made) + len(self.asks) >= CALLS_AT_ONCE or waiting_bytes > frames.MAX_MESSAGE_BYTES:
            text = f"service {self.service} has too many calls in hand, or too large ones"
            raise errors.Overloaded(text, retry_after_ms=100)

    def answer(self, call_id: int, outcome: bytes | LinckiaError) -> None:
        """The outcome of a call that it made."""
        is_behind = self.channel is not None and self.channel.is_behind
        if is_behind and not isinstance(outcome, LinckiaError):
            unread = f"the result was dropped: service {self.service} does not read what it is sent"
            outcome = errors.Overloaded(unread, executed=Executed.MAYBE)
        self.post(Fault(call_id, outcome.failure) if isinstance(outcome, LinckiaError) else Return(call_id, outcome))

    def post(self, frame: Return | Fault | Progress | Event) -> None:
        """Send the frame; it is dropped if the link is closed."""
        if self.channel is not None:
            with contextlib.suppress(LinkClosed):
                self.channel.post(frame)
