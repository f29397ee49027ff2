"""One living generation of a service, as the one who calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from kernel.router.call import RoutedCall
from kernel.router.client import FrontClient
from kernel.router.lane import Lane
from proto import errors, frames
from proto.channel import Channel
from proto.errors import Executed, LinckiaError
from proto.frames import Call, Event, Fault, Progress, Return
from proto.link import LinkClosed
from proto.operation import CLIENT, Operation

CALLS_AT_ONCE = 1024
"""Calls that one process of a service may wait for at the same time."""


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
