"""The event loop of every service: hello, ready, calls, cancellation, pings, drain, bye.

Every call gets exactly one final frame, a `Return` or a `Fault`, whatever its handler does. The same event loop answers
pings and runs the handlers, so a handler that blocks it is detected as a hang.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import trio

from proto import errors, grants
from proto.errors import LinckiaError
from proto.operation import Access, Operation, Params
from proto.wire import frames
from proto.wire.channel import Channel, Link, LinkClosed, ProtocolViolation
from proto.wire.launch import LaunchConfig
from services.runtime import change_log, storage
from services.runtime.calls import Outgoing
from services.runtime.handlers import Context, Environment, Handler, Handlers, OpenService
from services.runtime.sandbox import end_out_of_memory

LINK_MESSAGE_BYTES = frames.MAX_HEAD_BYTES
"""Longest message of the link protocol itself; anything longer is invalid."""

FRAMES_AT_ONCE = 4
"""Frames read before the tasks they started get to run, so that the first call of a burst does not wait for the
last."""

FIRST_CALL_S = 0.005
"""How long the first call has the process to itself. After a restart all waiting callers arrive at once; if threads
serve them, the first answer would come only after the last call was read."""

STARVED_MS = 1000
"""Time for the in-flight calls of a process that cannot open more files; some do not need any."""

TOLD_AFTER_S = 1.1
"""Time after which a change of what `status` shows is sent without a ping. At work, a ping is earlier."""

LIFE_SHOWN_S = 1.0
"""Time after which the parts of a large body that arrives are answered like a ping: on a slow link, pings are late
behind it."""

SOURCES, STANDS_BY = "sources", "stands_by"
"""Where the kernel says that the source database is on a server, and where it finds why the process waits for it."""

STANDS_BY_AFTER_S = 0.5
"""How long calls wait for a process that waits for its source database; then it answers them."""

WAITS_MS = 500

BYE_ACK_TIMEOUT_S = 2.0
"""The kernel acknowledges within a millisecond; after this time it is dead or has given up on this process."""

_log = logging.getLogger("linckia.service")


class _Served(NamedTuple):
    """An operation of this service and its handler."""

    operation: Operation[Any]
    decoder: msgspec.msgpack.Decoder[Params[Any]]
    handler: Handler
    resumes: bool
    """Whether an interrupted call with an idempotency key may run again."""


class ServiceLoop:
    """One generation of one service, at the service's end of the link.

    Args:
        info: what `status` shows about the process itself.
        handoff: where the kernel hands over descriptors, for services that receive some.
    """

    def __init__(
        self,
        launch: LaunchConfig,
        link: Link,
        info: Mapping[str, str] | None = None,
        *,
        handoff: socket.socket | None = None,
    ) -> None:
        self._launch = launch
        self._info = dict(info or {})
        self._handoff = handoff
        self._channel = Channel(link, frames.from_kernel, at_once=FRAMES_AT_ONCE)
        self._channel.gathered = self._show_life
        self._ponged_at = 0.0
        self._outgoing = Outgoing(self._channel, launch.service, launch.generation)
        self._handlers: dict[str, _Served] = {}
        self._calls: dict[int, Context] = {}
        self._env: Environment | None = None
        self._drain: frames.Drain | None = None
        self._drained = trio.Event()
        self._no_calls = trio.Event()
        self._bye_ack = trio.Event()
        self._pinged = trio.Event()
        """Set and replaced at each ping."""
        self._told: dict[str, str] = {}
        """What the kernel shows of this service."""
        self._link_lost = False
        self._starved = False
        """True if the process ends because it ran out of descriptors."""
        self._nursery: trio.Nursery | None = None
        """The nursery of the handlers; None while calls are refused."""
        self._is_ready = False
        self._waits = ""
        """Why calls are refused although the process is READY: it waits for its data."""

    async def run(self, open_service: OpenService) -> None:
        """Serve until drained (returns) or until the link is closed (raises LinkClosed).

        Exceptions from start-up, a background task or the orderly shutdown propagate.
        """
        async with trio.open_nursery() as outer:
            outer.start_soon(self._channel.run_sender)
            launch = self._launch
            self._channel.post(
                frames.Hello(frames.PROTOCOL, launch.service, launch.generation, os.getpid(), launch.operations)
            )
            async with contextlib.AsyncExitStack() as opened, trio.open_nursery() as background:
                env = self._env = Environment(
                    launch, self._outgoing, background, self._drained, opened, handoff=self._handoff
                )
                env.info(**self._info)
                # The reader outlives the calls: cancellations and answers must still arrive while draining.
                outer.start_soon(self._read, env, outer.cancel_scope)
                if SOURCES in launch.settings and not await self._hold_sources(env, opened):
                    open_service = _nothing
                async with open_service(env) as handlers, trio.open_nursery() as calls:
                    if open_service is not _nothing:
                        self._install(handlers)
                    if env.keys is not None:
                        opened.push_async_callback(trio.to_thread.run_sync, env.keys.close)
                        # Not awaited: background tasks would make calls before this service is ready.
                        calls.start_soon(env.keys.recover)
                    self._nursery = calls
                    try:
                        if not self._is_ready:
                            self._is_ready = True
                            self._channel.post(frames.Ready(env.shown))
                            self._told = env.shown
                        elif self._waits:
                            self._pong(0, env)
                        self._waits = ""
                        env.ready.set()
                        background.start_soon(self._tell, env)
                        await self._drained.wait()
                        if self._calls:
                            with trio.move_on_after(self._drain.timeout_ms / 1000 if self._drain else 0):
                                await self._no_calls.wait()
                        calls.cancel_scope.cancel()
                    finally:
                        self._nursery = None
                    # The service may close its resources only after every handler has ended.
                background.cancel_scope.cancel()
            self._channel.post(frames.Bye())
            with trio.move_on_after(BYE_ACK_TIMEOUT_S):
                await self._channel.flush()
                await self._bye_ack.wait()
            outer.cancel_scope.cancel()
        self._channel.close()
        if self._link_lost:
            raise LinkClosed

    async def _hold_sources(self, env: Environment, opened: contextlib.AsyncExitStack) -> bool:
        """Wait until this process may use its source database, which is on a server.

        Returns False if it was drained before.
        """
        from services.runtime.sources.holding import Holding, read

        def tell(why: str) -> None:
            env.info(**{STANDS_BY: why, "activity": why})
            if self._nursery is None:
                self._waits = why or "takes over"

        launch = self._launch
        holding = Holding(read(launch.settings[SOURCES]), launch.service, env.data_dir, tell)
        opened.push_async_callback(trio.to_thread.run_sync, holding.server.close)
        self._waits = "takes its data over"
        async with trio.open_nursery() as nursery:

            async def until_drained() -> None:
                await self._drained.wait()
                nursery.cancel_scope.cancel()

            async def stand_by() -> None:
                await trio.sleep(STANDS_BY_AFTER_S)
                self._is_ready = True
                self._channel.post(frames.Ready(env.shown))
                self._told = env.shown
                await self._tell(env)

            nursery.start_soon(until_drained)
            nursery.start_soon(stand_by)
            await holding.take()
            nursery.cancel_scope.cancel()
        if not holding.is_held:
            return False

        def end(why: str) -> None:
            env.ends_because = why
            self._end(frames.Drain(0))

        env.background.start_soon(holding.watch, end)
        env.info(sources=f"{holding.where}, held by this kernel")
        tell("")
        return True

    async def give_back(self) -> None:
        """Release the service's idle memory."""
        try:
            for give_back in self._env.resting if self._env else ():
                await give_back()
        except Exception:
            # After the drain, the resources that it would release may be closed.
            if not self._drained.is_set():
                raise

    async def end_at_sigterm(self) -> None:
        """On SIGTERM, cancel the in-flight calls and shut down in order."""
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                self._end(frames.Drain(0))

    def _end(self, drain: frames.Drain) -> None:
        """Refuse new calls, finish those in flight within the time limit, then end."""
        self._drain = drain
        self._drained.set()

    def _install(self, handlers: Handlers) -> None:
        missing = set(self._launch.operations) - set(handlers.by_name)
        stray = set(handlers.by_name) - set(self._launch.operations)
        if missing or stray:
            raise RuntimeError(
                f"service {self._launch.service}: operations without handler {sorted(missing)}, "
                f"handlers of operations that are not its own {sorted(stray)}"
            )
        for name, (operation, handler) in handlers.by_name.items():
            resumes = operation.idempotent or name in handlers.resume
            self._handlers[name] = _Served(operation, msgspec.msgpack.Decoder(operation.params), handler, resumes)

    async def _read(self, env: Environment, scope: trio.CancelScope) -> None:
        try:
            while not self._calls:
                self._accept(await self._channel.receive(), env)
            with trio.move_on_after(FIRST_CALL_S):
                await self._no_calls.wait()
            while True:
                self._accept(await self._channel.receive(), env)
        except (LinkClosed, ProtocolViolation) as error:
            if isinstance(error, ProtocolViolation):
                _log.error("the kernel sent an invalid frame: %s", error)
            self._link_lost = True
            self._outgoing.lost()
            scope.cancel()

    def _accept(self, frame: frames.AnyFrame, env: Environment) -> None:
        match frame:
            case frames.Call(op=frames.ASK_CLIENT) if self._nursery is not None:
                self._nursery.start_soon(self._outgoing.ask, frame)
            case frames.Call():
                try:
                    self._begin(frame)
                except errors.Unavailable as error:
                    if self._waits:
                        # No other process of this kernel could serve it.
                        self._channel.post(frames.Fault(frame.id, error.failure))
                    else:
                        self._channel.post(frames.Unfinished(frame.id, begun=False, failure=error.failure))
                except LinckiaError as error:
                    self._channel.post(frames.Fault(frame.id, error.failure))
            case frames.Return() | frames.Fault():
                self._outgoing.answer(frame)
            case frames.Progress() | frames.Log():
                self._outgoing.report(frame)
            case frames.Event():
                env.receive(frame)
            case frames.Cancel(id=call_id):
                self._outgoing.withdraw(call_id)
                if (context := self._calls.get(call_id)) is not None:
                    context.cancelled_by_caller = True
                    context.scope.cancel()
            case frames.Ping(n=n):
                self._pong(n, env)
                self._pinged.set()
                self._pinged = trio.Event()
            case frames.Drain():
                self._end(frame)
            case frames.ByeAck():
                self._bye_ack.set()
            case _:
                raise ProtocolViolation(f"unexpected {type(frame).__name__} from the kernel")

    def _pong(self, n: int, env: Environment) -> None:
        waiting = {of: held for of, look in env.backlogs.items() if (held := look()) is not None}
        shown = dict(itertools.islice(waiting.items(), frames.INFO_ENTRIES))
        self._told = env.shown
        self._ponged_at = trio.current_time()
        self._channel.post(frames.Pong(n, len(self._calls), env.shown, shown))

    def _show_life(self) -> None:
        if self._env is not None and trio.current_time() - self._ponged_at >= LIFE_SHOWN_S:
            self._pong(0, self._env)

    async def _tell(self, env: Environment) -> None:
        """Have the kernel show what has changed, although it pings a process rarely that has nothing to do."""
        while True:
            await env.news.wait()
            await trio.sleep(TOLD_AFTER_S)
            env.news = trio.Event()
            if env.shown != self._told:
                with contextlib.suppress(LinkClosed):
                    self._pong(0, env)

    async def pause(self, seconds: float) -> None:
        """Wait for the first ping after this time, so that work that can wait does not wake the process."""
        ends_at = trio.current_time() + seconds
        while trio.current_time() < ends_at:
            await self._pinged.wait()

    def _begin(self, call: frames.Call) -> None:
        """Start the handler. Raises LinckiaError if it was not started."""
        if self._nursery is None or self._drain is not None:
            if self._waits and self._drain is None:
                raise errors.Unavailable(f"{self._launch.service} {self._waits}", retry_after_ms=WAITS_MS)
            state = "draining" if self._drain else "starting"
            raise errors.Unavailable(f"service {self._launch.service} is {state}")
        if (served := self._handlers.get(call.op)) is None:
            raise errors.UnknownOperation(f"this service has no operation {call.op!r}")
        try:
            params = frames.decoded(served.decoder.decode, call.params)
        except msgspec.DecodeError as error:
            raise errors.InvalidParams(f"{call.op}: {error}") from error
        params.check()
        context = self._calls[call.id] = Context(call, self._outgoing)
        self._nursery.start_soon(self._serve, call, params, served, context)

    async def _serve(self, call: frames.Call, params: Params[Any], served: _Served, context: Context) -> None:
        grants.current.set(call.origin.grant)
        answer: frames.Return | LinckiaError | None = None
        try:
            with context.scope:
                answer = frames.Return(call.id, await self._answer(call, params, served, context))
                if len(answer.body) > frames.MAX_MESSAGE_BYTES:
                    answer = errors.Internal(f"{call.op}: the result is larger than the link allows")
        except MemoryError:
            end_out_of_memory(call.op)
        except Exception as error:  # noqa: BLE001  # a defect in one call must not end the calls of others
            answer = error if isinstance(error, LinckiaError) else self._defect(call, error)
            self._look_for_starvation(error)
        finally:
            del self._calls[call.id]
            if not self._calls:
                self._no_calls.set()
                self._no_calls = trio.Event()
            last = answer if isinstance(answer, frames.Return) else self._not_done(call, served, context, answer)
            with contextlib.suppress(LinkClosed):
                self._channel.post(last)

    async def _answer(self, call: frames.Call, params: Params[Any], served: _Served, context: Context) -> bytes:
        async def work() -> bytes:
            result = await served.handler(params, context)
            if self._env is not None and self._env.changes is not None:
                result = change_log.named(result)
            return frames.pack_body(result)

        keys = None if self._env is None else self._env.keys
        if keys is None or served.operation.access is Access.READ:
            return await work()
        if self._env is not None and self._env.changes is not None:
            change_log.current.set(change_log.Serving(self._env.changes, call.op, call.origin))
            self._env.changed()
        await keys.recovered.wait()
        if not call.origin.key:
            return await work()
        identity = params.identity()
        identity = call.params if identity is None else identity
        name = served.operation.stored_name
        return await keys.serve(call.origin.key, name, identity, work, resumes=served.resumes)

    def _look_for_starvation(self, error: Exception) -> None:
        """End a process that cannot open more files; the next process serves its calls."""
        if (lacking := storage.starved_of(error)) and self._drain is None:
            _log.error("has run out of %s and ends: %s", lacking, error)
            self._starved = True
            self._end(frames.Drain(STARVED_MS))

    def _defect(self, call: frames.Call, error: Exception) -> LinckiaError:
        trace = frames.trace_id(call.origin.trace)
        _log.error("%s raised: %r", call.op, error, exc_info=error, extra={"trace": trace, "operation": call.op})
        return storage.disk_full(error, Path(self._launch.data_dir), errors.Executed.MAYBE) or errors.Internal(
            f"{call.op} failed inside service {self._launch.service}; its log has the details ({call.origin.trace})"
        )

    def _not_done(
        self, call: frames.Call, served: _Served, context: Context, error: LinckiaError | None
    ) -> frames.Fault | frames.Unfinished:
        """Build the frame for a call without a result, from its handler's `error` or the reason for its
        cancellation."""
        if error is None and context.cancelled_by_caller:
            error = errors.Cancelled(f"{call.op} was cancelled by its caller")
        elif error is None and context.scope.cancelled_caught:
            error = errors.Timeout(f"{call.op}: not done within {call.left_ms / 1000:.3g} s")
        if error is not None and self._starved:
            return frames.Unfinished(call.id, begun=True, failure=served.operation.failure(error).failure)
        if error is not None:
            return frames.Fault(call.id, served.operation.failure(error).failure)
        because = f" ({self._env.ends_because})" if self._env is not None and self._env.ends_because else ""
        said = f"service {self._launch.service} ended{because} while serving {call.op}"
        ended = errors.Unavailable(said, executed=errors.Executed.MAYBE)
        return frames.Unfinished(call.id, begun=True, failure=served.operation.failure(ended).failure)


@contextlib.asynccontextmanager
async def _nothing(env: Environment) -> AsyncIterator[Handlers]:
    """Stand in for a service that is ended before it could begin."""
    yield Handlers()
