"""One call on its way through the router: where it came from, where it stands, and who hears of its end."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from msgspec import Raw

from kernel.ports import Upcalls
from proto.errors import LinckiaError
from proto.frames import Progress
from proto.operation import Operation

Done = Callable[[Raw | LinckiaError], None]
"""Called once, with the result's body or the failure."""


class RoutedCall:
    """A call in the queue or in flight.  All callbacks are synchronous and never block."""

    __slots__ = (
        "caller",
        "credit",
        "deadline",
        "deaths",
        "done",
        "frame_id",
        "generation",
        "item",
        "op",
        "params",
        "progress",
        "suspect",
        "trace",
        "upcalls",
        "withdrawn",
    )

    def __init__(
        self,
        op: Operation[Any],
        params: Raw,
        *,
        caller: str,
        trace: str,
        deadline: float,
        credit: int,
        done: Done,
        item: Callable[[Raw], None],
        progress: Callable[[Progress], None] | None,
        upcalls: Upcalls | None,
    ) -> None:
        self.op = op
        self.params = params
        self.caller = caller
        self.trace = trace
        self.deadline = deadline
        self.credit = credit
        self.done = done
        self.item = item
        self.progress = progress
        self.upcalls = upcalls
        self.frame_id = 0
        self.generation = 0
        self.deaths = 0
        self.suspect = False
        self.withdrawn = False

    def digest(self) -> bytes:
        """Names the request by what it asks, so that the same one asked again is known."""
        return hashlib.blake2b(self.op.name.encode() + b"\0" + bytes(self.params), digest_size=16).digest()
