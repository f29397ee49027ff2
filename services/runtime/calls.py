"""Calls that a service makes of others, through the kernel: numbering, waiting, streamed items, cancellation."""

from __future__ import annotations

import itertools
from typing import Any, TypeVar

import msgspec
import trio
from msgspec import Raw

from proto import frames
from proto.channel import Channel
from proto.errors import Executed, LinckiaError, Timeout, Unavailable, from_failure
from proto.frames import Call, Cancel, Credit, Fault, Item, Return
from proto.link import LinkClosed
from proto.operation import Operation, Params, operation_of

R = TypeVar("R")

WINDOW = 16
"""Streamed items that may be under way unread; at 64 KB each that is 1 MB a call."""


class _Pending:
    """A call that was made and is not answered yet."""

    __slots__ = ("answer", "done", "items")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.answer: Return | Fault | None = None
        self.items: list[Raw] = []


class Outgoing:
    """The calls of one service that wait for an answer."""

    def __init__(self, channel: Channel, service: str, generation: int) -> None:
        self._channel = channel
        self._service = service
        self._generation = generation
        self._ids = itertools.count(1)
        self._pending: dict[int, _Pending] = {}

    async def call(
        self, params: Params[R], *, parent: int | None, trace: str, deadline: float | None, timeout_s: float | None
    ) -> R:
        """Make a call and wait for its result; cancelling this cancels the call.

        Raises LinckiaError of the kind that was answered; Timeout when `timeout_s` or the deadline passes first.
        """
        op = operation_of(params)
        limit_s = _limit(op, deadline, timeout_s)
        try:
            value, items = await self.raw(
                op.name, frames.pack_body(params), parent=parent, trace=trace, limit_s=limit_s
            )
        except LinckiaError as error:
            raise op.failure(error) from None
        result = frames.read_body(value, op.result)
        if op.stream is not None:
            item_type = next(f.type for f in msgspec.structs.fields(op.result) if f.name == op.stream)
            streamed = msgspec.msgpack.decode(_array(items), type=item_type)
            result = msgspec.structs.replace(result, **{op.stream: [*getattr(result, op.stream), *streamed]})
        # The decoder checked it against the declared result type, which is R.
        typed: R = result
        return typed

    async def raw(
        self, op: str, params: Raw, *, parent: int | None, trace: str, limit_s: float
    ) -> tuple[Raw, list[Raw]]:
        """The same with bodies left as they are: the result and the streamed items."""
        call_id = next(self._ids)
        pending = self._pending[call_id] = _Pending()
        try:
            self._channel.post(
                Call(
                    id=call_id, op=op, params=params, left_ms=max(1, int(limit_s * 1000)), trace=trace,
                    caller=self._service, generation=self._generation, parent=parent, credit=WINDOW,
                )
            )  # fmt: skip
            with trio.move_on_after(limit_s):
                await pending.done.wait()
            if pending.answer is None:
                self._channel.post(Cancel(call_id, "deadline"))
                raise Timeout(f"{op}: no answer within {limit_s:.3g} s")
        except trio.Cancelled:
            self._abandon(call_id)
            raise
        except LinkClosed:
            raise Unavailable(f"{op}: the link to the kernel is closed") from None
        finally:
            self._pending.pop(call_id, None)
        if isinstance(pending.answer, Fault):
            raise from_failure(pending.answer.failure)
        return pending.answer.body, pending.items

    def _abandon(self, call_id: int) -> None:
        try:
            self._channel.post(Cancel(call_id, "caller cancelled"))
        except LinkClosed:
            return  # The kernel is gone.

    def answer(self, frame: Return | Fault) -> None:
        """An answer arrived; one for a call given up is dropped."""
        pending = self._pending.get(frame.id)
        if pending is not None:
            pending.answer = frame
            pending.done.set()

    def item(self, frame: Item) -> None:
        """A streamed item arrived: keep it and give the credit back."""
        pending = self._pending.get(frame.id)
        if pending is not None:
            pending.items.append(frame.body)
            self._channel.post(Credit(frame.id, 1))

    def fail_all(self, error: LinckiaError) -> None:
        """Answer every waiting call with `error` (the link is gone)."""
        for call_id, pending in self._pending.items():
            pending.answer = Fault(call_id, error.failure)
            pending.done.set()


def _limit(op: Operation[Any], deadline: float | None, timeout_s: float | None) -> float:
    limit = op.deadline_ms / 1000 if timeout_s is None else timeout_s
    if deadline is not None:
        limit = min(limit, deadline - trio.current_time())
    if limit <= 0:
        raise Timeout(f"{op.name}: the caller's deadline has passed", executed=Executed.NO)
    return limit


def _array(items: list[Raw]) -> bytes:
    return msgspec.msgpack.encode(items)
