"""One living generation of a service, as the one who calls."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import trio

from kernel.router.call import RoutedCall
from kernel.router.client import FrontClient
from kernel.router.lane import Lane
from proto import errors, frames
from proto.channel import Channel
from proto.errors import Executed, Forbidden, LinckiaError
from proto.frames import Call, Event, Fault, Progress, Return
from proto.grants import Grant
from proto.link import LinkClosed
from proto.operation import CLIENT

CALLS_AT_ONCE = 1024
"""Calls that one process of a service may wait for at the same time."""


@dataclass
class Living:
    """What it has asked for, and whose calls they are."""

    service: str
    generation: int
    channel: Channel
    lane: Lane
    made: dict[int, tuple[Lane, RoutedCall]] = field(default_factory=dict)
    """Calls that it made, by its own number for each."""
    asks: dict[int, trio.CancelScope] = field(default_factory=dict)
    """Those that the kernel itself answers, questions to clients among them."""
    client: FrontClient | None = None
    """Of a front: the way to the clients that it speaks for."""

    def serving(self, call_id: int | None) -> RoutedCall | None:
        """The call of that number that it has in hand."""
        return self.lane.find(self.service, self.generation, call_id)

    def admit(self, call: Call) -> None:
        """Bound what it may have in hand.  Raises LinckiaError."""
        in_hand = 0
        if len(call.params) > frames.PART_BYTES:
            in_hand = sum(len(made.params) for _, made in self.made.values())
        if len(self.made) + len(self.asks) >= CALLS_AT_ONCE or in_hand > frames.MAX_MESSAGE_BYTES:
            text = f"service {self.service} has too many calls in hand, or too large ones"
            raise errors.Overloaded(text, retry_after_ms=100)

    def answer(self, call_id: int, outcome: bytes | LinckiaError) -> None:
        if self.channel.is_behind and not isinstance(outcome, LinckiaError):
            unread = f"the result was dropped: service {self.service} does not read what it is sent"
            outcome = errors.Overloaded(unread, executed=Executed.MAYBE)
        self.post(Fault(call_id, outcome.failure) if isinstance(outcome, LinckiaError) else Return(call_id, outcome))

    def post(self, frame: Return | Fault | Progress | Event) -> None:
        # Where it is gone, the answer is dropped.
        with contextlib.suppress(LinkClosed):
            self.channel.post(frame)

    def grant_of(self, call: Call, parent: RoutedCall | None) -> Grant | None:
        """That of the call which is being served, which no service can widen; of others a front names it."""
        if parent is not None and parent.grant is not None:
            return parent.grant
        return call.grant if self.client is not None else None

    def caller_of(self, call: Call, parent: RoutedCall | None) -> str:
        """In whose name it calls: its own, or of a front the client's, or that of the caller it serves.

        Raises Forbidden: a name that is not its to use.
        """
        if self.client is not None and call.caller != self.lane.service:
            served = parent.caller if parent is not None else CLIENT
            if call.caller in (CLIENT, served):
                return call.caller
            raise Forbidden(f"{self.service} may not call as {call.caller}")
        return self.lane.service
