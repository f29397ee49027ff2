"""Calls of a service: the one being served, and those that it makes to other services through the kernel."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import trio

from proto.errors import (
    Executed,
    InvalidParams,
    Kind,
    LinckiaError,
    MaybeExecuted,
    OperationError,
    Timeout,
    Unavailable,
    from_failure,
)
from proto.grants import Grant
from proto.operation import Access, Params, operation_of
from proto.origin import Origin
from proto.wire import frames
from proto.wire.channel import Channel, LinkClosed
from proto.wire.frames import Call, Cancel, Fault, Log, Progress, Question, Return
from services.runtime.dispatch import ClientRequests, Outlasting

R = TypeVar("R")

_question: Callable[[bytes], Question] = frames.reader(Question)

SOON_MS = 1000

LAST_WORD_S = 12.0
"""How long after a deadline the kernel may take to report whether the call may have run: it reports at once, or once a
call that makes changes has ended (`OVER_S` of `kernel.router.leaving`)."""


@dataclass(slots=True, eq=False)
class _Pending:
    """A call without an answer so far."""

    client_requests: ClientRequests | None
    done: trio.Event = field(default_factory=trio.Event)
    answer: Return | Fault | None = None


class Outgoing:
    """The outgoing calls of one service that wait for an answer."""

    def __init__(self, channel: Channel, service: str, generation: int) -> None:
        self.channel = channel
        self.service = service
        self._generation = generation
        self._ids = itertools.count(1)
        self.waiting: dict[int, _Pending] = {}
        self._questions: dict[int, trio.CancelScope] = {}

    async def call(
        self,
        params: Params[R],
        *,
        parent: int | None = None,
        trace: str = "",
        deadline: float = math.inf,
        timeout_s: float | None = None,
        key: str = "",
    ) -> R:
        """Make a call and wait for its result; cancelling this cancels the call. `key` is an idempotency key.

        Raises LinckiaError of the kind that the other side returned, or Timeout if `timeout_s` or the deadline passes
        first.
        """
        op = operation_of(params)
        limit_s = min(op.deadline_ms / 1000 if timeout_s is None else timeout_s, deadline - trio.current_time())
        # Nobody has been told anything about calls that a service makes for itself.
        changes = parent is not None and op.access is not Access.READ
        if limit_s <= 0:
            raise Timeout(f"{op.name}: the caller's deadline has passed", executed=Executed.NO)
        try:
            origin = Origin(self.service, key=key, trace=trace or frames.new_trace())
            body = await self.raw(
                op.name, frames.pack_body(params), origin, limit_s=limit_s, parent=parent, changes=changes
            )
        except LinckiaError as error:
            raise op.failure(error) from None
        return frames.typed(op, body)

    async def raw(
        self,
        op: str,
        params: bytes,
        origin: Origin,
        *,
        limit_s: float,
        parent: int | None = None,
        target: str = "",
        patience_s: float = 0.0,
        client_requests: ClientRequests | None = None,
        outlasting: Outlasting | None = None,
        changes: bool = False,
    ) -> bytes:
        """Make a call whose parameters and result are encoded bytes.

        Args:
            origin: who calls; only a front may call for somebody else. Its trace must be set.
            target: what the call is about, for the audit log.
            patience_s: how much longer than `limit_s` to wait, for what happens before the call begins.
            client_requests: delivers the call's progress, log lines and questions to the client.
            outlasting: what to do when the call takes longer than its client waits.
            changes: whether the call may change something, so that cancellation waits for its end.
        """
        if len(params) > frames.MAX_MESSAGE_BYTES:
            raise InvalidParams(f"{op}: parameters of more than {frames.MAX_MESSAGE_BYTES} bytes")
        left_ms = max(1, int(min(limit_s * 1000, frames.MAX_LEFT_MS)))
        call_id = next(self._ids)
        pending = self.waiting[call_id] = _Pending(client_requests)
        is_posted = False
        try:
            self.channel.post(
                Call(
                    id=call_id,
                    op=op,
                    params=params,
                    left_ms=left_ms,
                    origin=origin,
                    generation=self._generation,
                    parent=parent,
                    progress=client_requests is not None,
                    target=target,
                )
            )
            is_posted = True
            with trio.move_on_after(limit_s + patience_s):
                if outlasting is not None:
                    with trio.move_on_after(outlasting.after_s):
                        await pending.done.wait()
                    if pending.answer is None:
                        await outlasting.hand_over(call_id)
                await pending.done.wait()
            if pending.answer is None:
                # The kernel replies immediately and says whether the call may have run.
                self.channel.post(Cancel(call_id, frames.DEADLINE))
                with trio.move_on_after(LAST_WORD_S):
                    await pending.done.wait()
            if pending.answer is None:
                raise Timeout(f"{op}: no answer within {limit_s:.3g} s")
        except trio.Cancelled:
            with contextlib.suppress(LinkClosed):
                self.channel.post(Cancel(call_id, "caller cancelled"))
                if changes and pending.answer is None:
                    with trio.move_on_after(LAST_WORD_S, shield=True):
                        await pending.done.wait()
            raise
        except LinkClosed:
            # This process ends with its kernel. The next front repeats what local clients have no answer to, and an
            # answer of this one would stop it.
            await trio.sleep(LAST_WORD_S)
            said = f"{op}: the link to the kernel is closed"
            raise (MaybeExecuted(said) if is_posted else Unavailable(said)) from None
        finally:
            del self.waiting[call_id]
        if isinstance(pending.answer, Fault):
            raise from_failure(pending.answer.failure)
        return pending.answer.body

    def answer(self, frame: Return | Fault) -> None:
        """Accept an answer; one for an abandoned call is dropped."""
        pending = self.waiting.get(frame.id)
        if pending is not None:
            pending.answer = frame
            pending.done.set()

    def lost(self) -> None:
        """Note that the link is lost, so that no call will be answered."""
        for pending in self.waiting.values():
            pending.done.set()

    def report(self, frame: Progress | Log) -> None:
        """Pass the progress or a log line of a call on to its client."""
        call_id = frame.call if isinstance(frame, Log) else frame.id
        pending = self.waiting.get(call_id) if call_id is not None else None
        if pending is None or pending.client_requests is None:
            return
        if isinstance(frame, Log):
            pending.client_requests.log(frame.level, frame.logger, frame.message)
        else:
            pending.client_requests.progress(frame.done, frame.total, frame.message)

    async def ask(self, question: Call) -> None:
        """Forward a question to the client that the asking call serves, and send back the client's answer."""
        pending = self.waiting.get(question.parent) if question.parent is not None else None
        scope = self._questions[question.id] = trio.CancelScope()
        with scope:
            try:
                if pending is None or pending.client_requests is None:
                    raise Unavailable("the asking call was not made by a client that can be asked")
                asked = _question(question.params)
                answer = await pending.client_requests.ask(asked.method, asked.params)
                self.channel.post(Return(question.id, frames.pack_body(answer)))
            except LinckiaError as error:
                self.channel.post(Fault(question.id, error.failure))
            except msgspec.DecodeError as error:
                unreadable = InvalidParams(f"not a valid question to a client: {error}")
                self.channel.post(Fault(question.id, unreadable.failure))
            finally:
                del self._questions[question.id]

    def withdraw(self, question_id: int) -> None:
        """Cancel a question whose asker no longer wants the answer."""
        if (scope := self._questions.get(question_id)) is not None:
            scope.cancel()


PROGRESS_INTERVAL_S = 0.05
"""Progress is sent at most twenty times a second; people cannot read faster."""


class Context:
    """The call being served.

    Attributes:
        origin: who calls. Its grant is also in `proto.grants.current`, from which the roots take it.
        scope: the handler's cancel scope, which is cancelled at the call's deadline.
    """

    def __init__(self, call: Call, outgoing: Outgoing) -> None:
        self.origin = call.origin
        self.scope = trio.CancelScope(deadline=trio.current_time() + call.left_ms / 1000)
        self.cancelled_by_caller = False
        self._call = call
        self._outgoing = outgoing
        self._post = outgoing.channel.post
        self._progressed = -1.0

    @property
    def caller(self) -> str:
        """`client`, or the name of the calling service."""
        return self.origin.caller

    @property
    def session(self) -> str:
        """An opaque name of the client's session; empty if the call has none (the command line, a service)."""
        return self.origin.session

    @property
    def grant(self) -> Grant | None:
        """The client's permissions; None for all."""
        return self.origin.grant

    @property
    def key(self) -> str:
        """What stands for the call's idempotency key (`proto.keys.scoped`); empty for none."""
        return self.origin.key

    @property
    def id(self) -> int:
        """The call's number on the link."""
        return self._call.id

    @property
    def deadline(self) -> float:
        """The deadline on trio's clock, when the handler is cancelled."""
        return self.scope.deadline

    def progress(
        self,
        done: float,
        total: float | None = None,
        message: str | None = None,
        *,
        interval_s: float = PROGRESS_INTERVAL_S,
    ) -> None:
        """Report progress to the caller; costs nothing if the caller did not ask for it.

        Reports within `interval_s` of the previous one are dropped, except the last.
        """
        now = trio.current_time()
        finished = total is not None and done >= total
        if self._call.progress and (finished or now - self._progressed >= interval_s):
            self._progressed = now
            self._post(Progress(self._call.id, done, total, message and message[: frames.TEXT_CHARS]))

    def log(self, level: frames.Level, message: str) -> None:
        """Write a line to the service's log and to the client that made this call (`debug` … `error`)."""
        self._post(Log(level, message[: frames.TEXT_CHARS], self._call.id))

    async def call(self, params: Params[R], *, timeout_s: float | None = None, key: str = "") -> R:
        """Call an operation of another service through the kernel, within this call's deadline and trace. `key` is an
        idempotency key.

        Raises LinckiaError of the kind that the kernel or the other service returned.
        """
        return await self._outgoing.call(
            params, parent=self._call.id, trace=self.origin.trace, deadline=self.deadline, timeout_s=timeout_s, key=key
        )

    async def ask_client(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request to the client that made this call (`elicitation/create`, `sampling/createMessage`).

        Returns the client's answer unchecked; the caller validates its form.

        Raises LinckiaError if the client is unavailable, unable or unwilling.
        """
        limit_s = max(0.001, self.deadline - trio.current_time())
        asked = frames.pack_body(frames.Question(method, params))
        origin = Origin(self._outgoing.service, trace=self.origin.trace)
        body = await self._outgoing.raw(frames.ASK_CLIENT, asked, origin, limit_s=limit_s, parent=self._call.id)
        # The answer is unchecked MCP content; the caller validates it.
        answer: dict[str, Any] = frames.read_body(body, dict[str, Any])
        return answer


class Undecodable(OperationError):
    """The content has crashed the decoder twice and must not be retried. The message says what to report for the
    content."""


async def decoded(call: Callable[[Params[R]], Awaitable[R]], params: Params[R]) -> R:
    """Call a `decode` operation, retrying if another file crashed the decoder meanwhile.

    Args:
        call: `Context.call` or `Environment.call`.

    Raises:
        Undecodable: the content breaks the decoder; store this with the content.
        LinckiaError: the decoder is unavailable for now, which says nothing about the content.
    """
    while True:
        try:
            return await call(params)
        except LinckiaError as error:
            failure = error.failure
            if failure.kind is Kind.QUARANTINED:
                cause = failure.message.partition(" while ")[0].partition(";")[0]
                why = "it crashes the decoder or exceeds the memory allowed for one file"
                raise Undecodable(f"{cause} of it, twice: {why}; it is not tried again") from None
            if failure.kind is not Kind.UNAVAILABLE or not 0 < (failure.retry_after_ms or 0) <= SOON_MS:
                raise
            # Another file crashed the decoder; the deadline limits how often this repeats.
            await trio.sleep((failure.retry_after_ms or 0) / 1000)
