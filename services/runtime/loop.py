"""The loop that every service runs: hello, ready, calls, cancellation, pings, drain, bye.

Every call gets exactly one last frame, a `Return` or a `Fault`, whatever its handler does; a handler is cancelled
when its caller says so or its time is up; pings are answered by the same event loop that runs the handlers, so that a
handler which blocks the loop is seen as a hang.
"""

from __future__ import annotations

import logging
import os
import signal
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import trio

from proto import frames
from proto.channel import Channel, ProtocolViolation
from proto.errors import Cancelled, Executed, Failure, Internal, InvalidParams, Kind, LinckiaError, Timeout, Unavailable
from proto.frames import (
    AnyFrame,
    Bye,
    ByeAck,
    Call,
    Cancel,
    Credit,
    Drain,
    Event,
    Fault,
    Hello,
    Item,
    Log,
    Ping,
    Pong,
    Progress,
    Ready,
    Return,
)  # fmt: skip
from proto.link import Link, LinkClosed
from proto.operation import Operation, Params, operation_of
from services.runtime import storage
from services.runtime.calls import Outgoing
from services.runtime.handlers import Birth, GiveBack, Handler, Handlers, OpenService

R = TypeVar("R")

PROGRESS_INTERVAL_S = 0.05
"""A person cannot read it more often than twenty times a second."""

LINK_MESSAGE_BYTES = 4 * frames.PART_BYTES
"""No message on the link is longer than a part and its frame; anything longer is not ours."""

FRAMES_AT_ONCE = 4
"""Frames read before what they began gets its turn: of a burst of calls, the first is not to wait for the last."""

BACKGROUND_S = 0.1
"""How long work in the background lets the calls that waited for a restart go ahead: some dozens are answered in it."""

BYE_ACK_TIMEOUT_S = 2.0
"""The kernel acknowledges in a millisecond; past this it is dead or has given us up."""

_log = logging.getLogger("linckia.service")


class _Environment:
    """`handlers.Environment`, over a birth certificate and a channel."""

    def __init__(
        self, birth: Birth, channel: Channel, outgoing: Outgoing, background: trio.Nursery, ending: trio.Event,
        at_rest: list[GiveBack],
    ) -> None:  # fmt: skip
        self._birth = birth
        self._channel = channel
        self._outgoing = outgoing
        self._sequence = 0
        self.background = background
        self.ending = ending
        self.at_rest = at_rest.append
        self.shown: dict[str, str] = {}
        self.data_dir = Path(birth.data_dir)
        self.roots = tuple(Path(root) for root in birth.roots)

    @property
    def service(self) -> str:
        return self._birth.service

    @property
    def generation(self) -> int:
        return self._birth.generation

    @property
    def mode(self) -> str:
        return self._birth.mode

    @property
    def settings(self) -> dict[str, Any]:
        return self._birth.settings

    async def after_the_rush(self) -> None:
        if self.generation > 1:
            await trio.sleep(BACKGROUND_S)

    def info(self, **values: str) -> None:
        self.shown = {name: value for name, value in (self.shown | values).items() if value}

    def publish(self, topic: str, body: object) -> None:
        self._sequence += 1
        self._channel.post(Event(topic, self._sequence, frames.pack_body(body)))

    async def call(self, params: Params[R], *, timeout_s: float | None = None) -> R:
        return await self._outgoing.call(params, parent=None, trace=new_trace(), deadline=None, timeout_s=timeout_s)


class _Context:
    """`handlers.Context`: the call being served."""

    def __init__(self, call: Call, channel: Channel, outgoing: Outgoing) -> None:
        self._call = call
        self._channel = channel
        self._outgoing = outgoing
        self._credit = call.credit
        self._room = trio.Event()
        self._progressed = -1.0
        self.caller = call.caller
        self.trace = call.trace
        self.session = call.session
        self.scope = trio.CancelScope(deadline=trio.current_time() + call.left_ms / 1000)
        self.cancelled_by_caller = False

    @property
    def deadline(self) -> float:
        return self.scope.deadline

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        now = trio.current_time()
        finished = total is not None and done >= total
        if self._call.progress and (finished or now - self._progressed >= PROGRESS_INTERVAL_S):
            self._progressed = now
            self._channel.post(Progress(self._call.id, done, total, message))

    def log(self, level: str, message: str) -> None:
        self._channel.post(Log(level, message, self._call.id))

    async def emit(self, item: object) -> None:
        while self._credit <= 0:
            self._room = trio.Event()
            await self._room.wait()
        self._credit -= 1
        self._channel.post(Item(self._call.id, frames.pack_body(item)))

    def add_credit(self, n: int) -> None:
        self._credit += n
        self._room.set()

    async def call(self, params: Params[R], *, timeout_s: float | None = None) -> R:
        return await self._outgoing.call(
            params, parent=self._call.id, trace=self.trace, deadline=self.deadline, timeout_s=timeout_s
        )

    async def ask_client(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        body, _ = await self._outgoing.raw(
            frames.ASK_CLIENT, frames.pack_body({"method": method, "params": params}),
            parent=self._call.id, trace=self.trace, limit_s=max(0.001, self.deadline - trio.current_time()),
        )  # fmt: skip
        # As the client sent it, by MCP: the caller checks the form that it asked for.
        answer: dict[str, Any] = msgspec.msgpack.decode(body, type=dict[str, Any])
        return answer


class _Served(NamedTuple):
    """An operation of this service."""

    operation: Operation[Any]
    decoder: msgspec.msgpack.Decoder[Params[Any]]
    handler: Handler


class ServiceLoop:
    """One generation of one service, at the service's end of the link."""

    def __init__(self, birth: Birth, link: Link, info: Mapping[str, str] | None = None) -> None:
        """
        Args:
            info: what `status` shows of the process itself.
        """
        self._birth = birth
        self._info = dict(info or {})
        self._channel = Channel(link)
        self._outgoing = Outgoing(self._channel, birth.service, birth.generation)
        self._handlers: dict[str, _Served] = {}
        self._calls: dict[int, _Context] = {}
        self._at_rest: list[GiveBack] = []
        self._drain: Drain | None = None
        self._drained = trio.Event()
        self._no_calls = trio.Event()
        self._bye_ack = trio.Event()
        self._nursery: trio.Nursery | None = None

    async def run(self, open_service: OpenService) -> None:
        """Serve until drained (returns) or until the link is closed (raises LinkClosed).

        Whatever start-up, a background task or the orderly end raises, goes through.
        """
        link_lost = False
        async with trio.open_nursery() as outer:
            outer.start_soon(self._channel.run_sender)
            self._channel.post(
                Hello(frames.PROTOCOL, self._birth.service, self._birth.generation, os.getpid(), self._birth.operations)
            )
            async with trio.open_nursery() as background:
                env = _Environment(self._birth, self._channel, self._outgoing, background, self._drained, self._at_rest)
                env.info(**self._info)

                async def read() -> None:
                    nonlocal link_lost
                    try:
                        await self._read(env)
                    except (LinkClosed, ProtocolViolation) as error:
                        if isinstance(error, ProtocolViolation):
                            _log.error("the kernel sent an invalid frame: %s", error)
                        link_lost = True
                        outer.cancel_scope.cancel()

                # The reader outlives the calls: cancellations and answers must still arrive while draining.
                outer.start_soon(read)
                async with open_service(env) as handlers, trio.open_nursery() as calls:
                    self._install(handlers)
                    self._nursery = calls
                    try:
                        self._channel.post(Ready(env.shown))
                        await self._drained.wait()
                        await self._finish_calls(calls)
                    finally:
                        # Calls that still arrive are refused.
                        self._nursery = None
                    # Only now, with every handler at its end, may the service close what they use.
                background.cancel_scope.cancel()
            self._channel.post(Bye())
            with trio.move_on_after(BYE_ACK_TIMEOUT_S):
                await self._channel.flush()
                await self._bye_ack.wait()
            outer.cancel_scope.cancel()
        self._channel.close()
        if link_lost:
            raise LinkClosed

    async def give_back(self) -> None:
        """What the service does with its memory when it rests."""
        try:
            for give_back in self._at_rest:
                await give_back()
        except Exception:
            # What it would have let go of may be closed by now.
            if not self._drained.is_set():
                raise

    def drain(self, timeout_ms: int) -> None:
        """Take no more calls, finish those in hand within the time, then end."""
        self._drain = Drain(timeout_ms)
        self._drained.set()

    async def _finish_calls(self, calls: trio.Nursery) -> None:
        if self._calls:
            limit = self._drain.timeout_ms / 1000 if self._drain else 0
            with trio.move_on_after(limit):
                await self._no_calls.wait()
        calls.cancel_scope.cancel()

    def _install(self, handlers: Handlers) -> None:
        missing = set(self._birth.operations) - set(handlers.by_name)
        stray = set(handlers.by_name) - set(self._birth.operations)
        if missing or stray:
            raise RuntimeError(
                f"service {self._birth.service}: operations without handler {sorted(missing)}, "
                f"handlers of operations that are not its own {sorted(stray)}"
            )
        for name, (params, handler) in handlers.by_name.items():
            self._handlers[name] = _Served(operation_of(params), msgspec.msgpack.Decoder(params), handler)

    async def _read(self, env: _Environment) -> None:
        while True:
            self._accept(await self._channel.receive(), env)
            for _ in range(FRAMES_AT_ONCE - 1):
                frame = self._channel.try_receive()
                if frame is None:
                    break
                self._accept(frame, env)
            else:
                await trio.lowlevel.checkpoint()

    def _accept(self, frame: AnyFrame, env: _Environment) -> None:
        match frame:
            case Call():
                self._begin(frame)
            case Return() | Fault():
                self._outgoing.answer(frame)
            case Item():
                self._outgoing.item(frame)
            case Cancel(id=call_id):
                if (context := self._calls.get(call_id)) is not None:
                    context.cancelled_by_caller = True
                    context.scope.cancel()
            case Credit(id=call_id, n=n):
                if (context := self._calls.get(call_id)) is not None:
                    context.add_credit(n)
            case Ping(n=n):
                self._channel.post(Pong(n, len(self._calls), env.shown))
            case Drain(timeout_ms=timeout_ms):
                self.drain(timeout_ms)
            case ByeAck():
                self._bye_ack.set()
            case _:
                raise ProtocolViolation(f"unexpected {type(frame).__name__} from the kernel")

    def _begin(self, call: Call) -> None:
        if self._nursery is None or self._drain is not None:
            state = "draining" if self._drain else "starting"
            self._channel.post(Fault(call.id, Unavailable(f"service {self._birth.service} is {state}").failure))
            return
        found = self._handlers.get(call.op)
        if found is None:
            self._channel.post(
                Fault(call.id, Failure(kind=Kind.UNKNOWN_OPERATION, message=f"no operation {call.op!r} here"))
            )
            return
        try:
            params = found.decoder.decode(call.params)
            params.check()
        except msgspec.DecodeError as error:
            self._channel.post(Fault(call.id, InvalidParams(f"{call.op}: {error}").failure))
            return
        except InvalidParams as error:
            self._channel.post(Fault(call.id, error.failure))
            return
        context = self._calls[call.id] = _Context(call, self._channel, self._outgoing)
        self._nursery.start_soon(self._serve, call, params, found, context)

    async def _serve(self, call: Call, params: Params[Any], served: _Served, context: _Context) -> None:
        answer: Return | None = None
        error: LinckiaError | None = None
        try:
            with context.scope:
                answer = Return(call.id, frames.pack_body(await served.handler(params, context)))
        except LinckiaError as failed:
            error = failed
        except Exception as defect:  # noqa: BLE001  # a defect of one call must not end the calls of others
            error = self._defect(call, defect)
        finally:
            if answer is not None and len(memoryview(answer.body)) > frames.MAX_MESSAGE_BYTES:
                answer, error = None, Internal(f"{call.op}: the result is larger than the link carries")
            del self._calls[call.id]
            if not self._calls:
                self._no_calls.set()
                self._no_calls = trio.Event()
            if answer is not None:
                self._post_answer(answer)
            else:
                error = served.operation.failure(error or self._stopped(call, context))
                self._post_answer(Fault(call.id, error.failure))

    def _defect(self, call: Call, error: Exception) -> LinckiaError:
        _log.error("%s (trace %s) raised\n%s", call.op, call.trace, "".join(traceback.format_exception(error)))
        return storage.as_failure(error, Path(self._birth.data_dir)) or Internal(
            f"{call.op} failed inside service {self._birth.service}; its log has the details ({call.trace})"
        )

    def _post_answer(self, answer: Return | Fault) -> None:
        try:
            self._channel.post(answer)
        except LinkClosed:
            _log.warning("the kernel is gone; the answer to call %d is dropped", answer.id)

    def _stopped(self, call: Call, context: _Context) -> LinckiaError:
        if context.cancelled_by_caller:
            return Cancelled(f"{call.op} was cancelled by its caller")
        if context.scope.cancelled_caught:
            return Timeout(f"{call.op}: not done within {call.left_ms} ms")
        return Unavailable(f"service {self._birth.service} ended while serving {call.op}", executed=Executed.MAYBE)


def new_trace() -> str:
    """A W3C traceparent of a new trace."""
    return f"00-{os.urandom(16).hex()}-{os.urandom(8).hex()}-01"


async def watch_sigterm(loop: ServiceLoop) -> None:
    """SIGTERM ends the service in order, with the calls in hand cancelled."""
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async for _ in signals:
            loop.drain(0)
