"""Calls that go on without their fronts: the service `tasks` takes over a long call whose client no longer waits.

The call stays where it is, in flight to its service; only the receiver of its outcome changes. The front asks for a
name of the call, which nobody can guess, and passes it to `tasks`. A call that has been taken over is withdrawn if its
task is cancelled. If `tasks` dies, the next generation takes the call over again by the same name.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

import trio

from kernel.router.generation import Generation, RoutedCall, Waiting
from kernel.router.lane import Lane
from kernel.router.leaving import Leaving
from proto.errors import Cancelled, Executed, InvalidParams, LinckiaError, OperationError
from proto.operation import Operation
from proto.wire.frames import Progress

Report = Callable[[Progress], None]


class _Taken(NamedTuple):
    call: RoutedCall
    waiting: Waiting


class TakenOver:
    """The calls that have a name or were taken over.

    Args:
        record: records the outcome of a call.
        lane_of: returns the lane of an operation.
        leaving: the withdrawn calls that have not ended.
    """

    def __init__(
        self,
        record: Callable[[RoutedCall, object], None],
        lane_of: Callable[[Operation[Any]], Lane],
        leaving: Leaving,
    ) -> None:
        self._leaving = leaving
        self._record = record
        self._lane_of = lane_of
        self._named: dict[str, tuple[Generation, int]] = {}
        self._taken: dict[str, _Taken] = {}

    def name(self, front: Generation, number: int) -> str:
        """Return a name for the front's call with this number. Raises InvalidParams: the call has ended."""
        self._named = {name: (of, call) for name, (of, call) in self._named.items() if call in of.made}
        if number not in front.made:
            raise InvalidParams("the call has ended", field="call")
        name = secrets.token_hex(16)
        self._named[name] = (front, number)
        return name

    async def outcome(self, name: str, task: str, report: Report | None, is_wanted: Callable[[], bool]) -> bytes:
        """Take the call over, and return its result.

        Cancellation: if `is_wanted` returns False, withdraws the call and waits for its end; otherwise the call goes
        on, to be taken over again.

        Raises:
            InvalidParams: the call has ended before; nobody has taken it over.
            LinckiaError: the failure of the call.
        """
        if name not in self._taken:
            self._taken[name] = self._take(name, task)
        call, waiting = self._taken[name]
        call.progress = report
        if report is not None and call.progressed is not None:
            report(call.progressed)
        try:
            await waiting.finished.wait()
        finally:
            call.progress = None
            is_lost = not waiting.finished.is_set() and not is_wanted()
            if waiting.finished.is_set() or is_lost:
                del self._taken[name]
            if is_lost:
                await self._call_off(call, f"{call.op.name}: task {task} was cancelled")
        assert waiting.outcome is not None
        if isinstance(waiting.outcome, LinckiaError):
            raise waiting.outcome
        return waiting.outcome

    async def _call_off(self, call: RoutedCall, why: str) -> None:
        self._record(call, Cancelled(why, executed=self._lane_of(call.op).withdraw(call, why)))
        with trio.CancelScope(shield=True):
            await self._leaving.over(call)

    def _take(self, name: str, task: str) -> _Taken:
        front, number = self._named.pop(name, (None, 0))
        call = None if front is None else front.made.pop(number, None)
        if front is None or call is None:
            raise InvalidParams("the call has ended", field="call")
        waiting = Waiting(None)

        def done(outcome: bytes | LinckiaError) -> None:
            self._record(call, outcome)
            waiting.done(outcome)

        call.done, call.client_requests, call.maker = done, None, None
        text = (
            f"{call.op.name} is still running, as task {task}; call tasks_wait with this id for its result, or "
            "tasks_cancel"
        )
        front.answer(number, OperationError(text, executed=Executed.MAYBE, data={"task": task}))
        return _Taken(call, waiting)
