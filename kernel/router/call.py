"""One call on its way through the router: where it came from, where it stands, and who hears of its end."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from kernel.ports import ClientRequests
from proto.errors import LinckiaError
from proto.frames import Progress
from proto.operation import Operation

Done = Callable[[Raw | LinckiaError], None]
"""Called once, with the result's body or the failure."""


class RoutedCall:
    """A call in the queue or in flight.  All callbacks are synchronous and never block."""

    __slots__ = (
        "caller",
        "client_requests",
        "credit",
        "deadline",
        "deaths",
        "done",
        "for_client",
        "frame_id",
        "generation",
        "instance",
        "item",
        "op",
        "params",
        "progress",
        "session",
        "suspect",
        "trace",
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
        client_requests: ClientRequests | None,
        session: str = "",
        for_client: bool = True,
    ) -> None:
        """
        Args:
            for_client: whether a client waits for it, be it through another service; those make calls of their own too.
        """
        self.op = op
        self.params = params
        self.caller = caller
        self.trace = trace
        self.deadline = deadline
        self.credit = credit
        self.done = done
        self.item = item
        self.progress = progress
        self.client_requests = client_requests
        self.session = session
        self.for_client = for_client
        self.frame_id = 0
        self.generation = 0
        self.instance = ""
        self.deaths = 0
        self.suspect = False
        self.withdrawn = False

    def is_repeatable(self) -> bool:
        """Whether the call may be sent again although it may have been executed."""
        if not self.op.idempotent:
            return False
        if not self.op.once_with:
            return True
        given = msgspec.msgpack.decode(self.params, type=dict[str, object])
        return all(given.get(name) is None for name in self.op.once_with)

    def digest(self) -> bytes:
        """Names the request by what it asks, so that the same one asked again is known."""
        return hashlib.blake2b(self.op.name.encode() + b"\0" + bytes(self.params), digest_size=16).digest()
