"""Calls that a service makes of others, through the kernel: numbering, waiting, cancellation."""

from __future__ import annotations

import contextlib
import itertools
import math
from typing import TypeVar

import trio
from msgspec import Raw

from proto import frames, results
from proto.channel import Channel
from proto.errors import Executed, LinckiaError, Timeout, Unavailable, from_failure
from proto.frames import Call, Cancel, Fault, Return
from proto.link import LinkClosed
from proto.operation import Params, operation_of

R = TypeVar("R")


class _Pending:
    """A call that was made and is not answered yet."""

    __slots__ = ("answer", "done")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.answer: Return | Fault | None = None


class Outgoing:
    """The calls of one service that wait for an answer."""

    def __init__(self, channel: Channel, service: str, generation: int) -> None:
        self.channel = channel
        self._service = service
        self._generation = generation
        self._ids = itertools.count(1)
        self._pending: dict[int, _Pending] = {}

    async def call(
        self,
        params: Params[R],
        *,
        parent: int | None = None,
        trace: str = "",
        deadline: float = math.inf,
        timeout_s: float | None = None,
    ) -> R:
        """Make a call and wait for its result; cancelling this cancels the call.

        Raises LinckiaError of the kind that was answered; Timeout when `timeout_s` or the deadline passes first.
        """
        op = operation_of(params)
        limit_s = min(op.deadline_ms / 1000 if timeout_s is None else timeout_s, deadline - trio.current_time())
        if limit_s <= 0:
            raise Timeout(f"{op.name}: the caller's deadline has passed", executed=Executed.NO)
        try:
            body = await self.raw(op.name, frames.pack_body(params), limit_s=limit_s, parent=parent, trace=trace)
        except LinckiaError as error:
            raise op.failure(error) from None
        return results.typed(op, body)

    async def raw(self, op: str, params: Raw, *, limit_s: float, parent: int | None = None, trace: str = "") -> Raw:
        """The same with bodies left as they are."""
        call_id = next(self._ids)
        pending = self._pending[call_id] = _Pending()
        try:
            self.channel.post(
                Call(
                    id=call_id, op=op, params=params, left_ms=max(1, int(limit_s * 1000)), caller=self._service,
                    trace=trace or frames.new_trace(), generation=self._generation, parent=parent,
                )
            )  # fmt: skip
            with trio.move_on_after(limit_s):
                await pending.done.wait()
            if pending.answer is None:
                self.channel.post(Cancel(call_id, "deadline"))
                raise Timeout(f"{op}: no answer within {limit_s:.3g} s")
        except trio.Cancelled:
            with contextlib.suppress(LinkClosed):
                self.channel.post(Cancel(call_id, "caller cancelled"))
            raise
        except LinkClosed:
            raise Unavailable(f"{op}: the link to the kernel is closed") from None
        finally:
            del self._pending[call_id]
        if isinstance(pending.answer, Fault):
            raise from_failure(pending.answer.failure)
        return pending.answer.body

    def answer(self, frame: Return | Fault) -> None:
        """An answer arrived; one for a call given up is dropped."""
        pending = self._pending.get(frame.id)
        if pending is not None:
            pending.answer = frame
            pending.done.set()

    def fail_all(self, error: LinckiaError) -> None:
        """Answer every waiting call with `error` (the link is gone)."""
        for call_id in self._pending:
            self.answer(Fault(call_id, error.failure))
