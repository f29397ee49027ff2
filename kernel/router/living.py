"""One living generation of a service, as the one who calls, and of a front the way to the clients that it speaks for:
over the front's own link."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import trio

from linckia.kernel.router.call import RoutedCall, Waiting
from linckia.kernel.router.lane import Lane
from linckia.proto import errors, frames
from linckia.proto.channel import Channel
from linckia.proto.errors import Executed, LinckiaError
from linckia.proto.frames import Call, Cancel, Event, Fault, Level, Log, Progress, Return, Unfinished
from linckia.proto.json_types import JsonObject
from linckia.proto.link import LinkClosed
from linckia.proto.operation import CLIENT, Operation

CALLS_AT_ONCE = 1024
"""Calls that one process of a service may wait for at the same time."""

FIRST_ID = 1 << 40
"""Questions have numbers of their own, above those of all calls on the link."""

ANSWER_S = 24 * 3600.0
"""For a person to answer; the deadline of the call that asks is what ends it."""


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


@dataclass
class Living:
    """What it has asked for, and whose calls they are."""

    service: str
    generation: int
    channel: Channel
    lane: Lane
    record: Callable[[RoutedCall, object], None]
    """Told of the outcome of each call to a service."""
    made: dict[int, RoutedCall] = field(default_factory=dict)
    """Calls to services, by its own number for each."""
    asks: dict[int, trio.CancelScope] = field(default_factory=dict)
    """Those that the kernel itself answers, questions to clients among them."""
    client: FrontClient | None = None
    """Of a front: the way to the clients that it speaks for."""

    def serving(self, call_id: int | None) -> RoutedCall | None:
        """The call of that number that it has in hand."""
        return self.lane.find(self.service, self.generation, call_id)

    def admit(self, call: Call) -> None:
        """Bound what it may have in hand.  Raises Overloaded."""
        in_hand = 0
        if len(call.params) > frames.PART_BYTES:
            in_hand = sum(len(made.params) for made in self.made.values())
        if len(self.made) + len(self.asks) >= CALLS_AT_ONCE or in_hand > frames.MAX_MESSAGE_BYTES:
            text = f"service {self.service} has too many calls in hand, or too large ones"
            raise errors.Overloaded(text, retry_after_ms=100)

    def routed(self, call: Call, operation: Operation[object]) -> RoutedCall:
        """Its call, in its own name, or of a front in the client's or that of the caller it serves."""
        parent = self.serving(call.parent)
        of_front = self.client is not None
        names = (CLIENT, parent.caller if parent is not None else CLIENT) if of_front else ()
        caller = call.caller if call.caller in names else self.lane.service
        client_requests = parent.client_requests if parent is not None else None
        if caller == CLIENT and self.client is not None:
            client_requests = self.client.requests(call.id)
        # The grant of the call that is served, which no service can widen; of others a front names it.
        inherited = parent.grant if parent is not None else None
        # A client's session is for its front alone to name; what is called while serving it is of the same.
        session = call.session if of_front else parent.session if parent is not None else ""
        return RoutedCall(
            op=operation,
            params=call.params,
            caller=caller,
            trace=call.trace,
            deadline=trio.current_time() + call.left_ms / 1000,
            limit_s=call.left_ms / 1000,
            done=lambda outcome: self._done(call.id, outcome),
            progress=(lambda frame: self.post(Progress(call.id, frame.done, frame.total, frame.message)))
            if call.progress
            else None,
            client_requests=client_requests,
            session=session,
            grant=call.grant if inherited is None and of_front else inherited,
            target=call.target,
            peer=call.peer if of_front else "",
            for_client=caller == CLIENT or (parent is not None and parent.for_client),
        )

    def _done(self, call_id: int, outcome: bytes | LinckiaError) -> None:
        self.record(self.made.pop(call_id), outcome)
        self.lane.was_busy(self.service)
        self.answer(call_id, outcome)

    def answer(self, call_id: int, outcome: bytes | LinckiaError) -> None:
        if self.channel.is_behind and not isinstance(outcome, LinckiaError):
            unread = f"the result was dropped: service {self.service} does not read what it is sent"
            outcome = errors.Overloaded(unread, executed=Executed.MAYBE)
        self.post(Fault(call_id, outcome.failure) if isinstance(outcome, LinckiaError) else Return(call_id, outcome))

    def post(self, frame: Return | Fault | Progress | Event) -> None:
        # Where it is gone, the answer is dropped.
        with contextlib.suppress(LinkClosed):
            self.channel.post(frame)
