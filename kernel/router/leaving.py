"""Calls that are over for their clients, and may still be executed for a moment.

A client withdraws a call, its deadline passes, or its front dies, while a thread of the service is writing to the disk.
Whoever then looks must see what became of it: an answer about such a call, and the same client's next calls to any
service, wait until its handler has ended. Calls that only read are over at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import trio

from kernel.router.generation import RoutedCall
from kernel.router.record import who
from proto.operation import Access

OVER_S = 10.0
"""How long after the withdrawal an answer waits for the end of the call."""

NEXT_S = 2.0
"""How long after the withdrawal the client's next calls wait. Writing takes milliseconds; what takes longer are calls
that can only end between two steps of their work."""


@dataclass(slots=True)
class _Withdrawn:
    at: float = field(default_factory=trio.current_time)
    ended: trio.Event = field(default_factory=trio.Event)


class Leaving:
    """The withdrawn calls of all services whose handlers have not ended."""

    def __init__(self) -> None:
        self.calls: dict[RoutedCall, _Withdrawn] = {}

    def __contains__(self, call: RoutedCall) -> bool:
        return call in self.calls

    def add(self, call: RoutedCall) -> None:
        """Note that a call in flight was withdrawn."""
        if call.op.access is not Access.READ:
            self.calls[call] = _Withdrawn()

    def ended(self, call: RoutedCall) -> None:
        """Note that the handler of a call has ended, or its process."""
        if (withdrawn := self.calls.pop(call, None)) is not None:
            withdrawn.ended.set()

    def before(self, call: RoutedCall) -> Sequence[RoutedCall]:
        """Return the calls whose end this one waits for."""
        if not call.for_client:
            return ()
        name, since = who(call.origin), trio.current_time() - NEXT_S
        return [
            each for each, withdrawn in self.calls.items()
            if withdrawn.at > since and each.for_client and who(each.origin) == name
        ]  # fmt: skip

    async def over(self, call: RoutedCall, *, within_s: float = OVER_S) -> None:
        """Wait until nothing of a withdrawn call happens any more, or `within_s` after its withdrawal."""
        if (withdrawn := self.calls.get(call)) is not None:
            with trio.move_on_at(withdrawn.at + within_s):
                await withdrawn.ended.wait()
