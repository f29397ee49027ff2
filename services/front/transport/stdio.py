"""MCP over a pair of descriptors: one JSON-RPC message a line, as the stdio transport has it.

Until the SDK is loaded the first messages are answered without it; from then on ordinary tool calls take the short
path, and every other message goes to the SDK's server, whose answers are written here too.  Nothing but JSON-RPC is
ever written.  A line that is no message is answered with an error and the connection goes on.  When the input ends,
requests in flight are still answered, while the client reads and `drain_s` lasts.
"""

from __future__ import annotations

import collections
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import trio
from msgspec import UnsetType

from proto.errors import MaybeExecuted, Unavailable
from proto.json_types import JsonObject
from proto.operation import Access
from services.front import scratchpad
from services.front.protocol import batch
from services.front.protocol.failures import message_of
from services.front.protocol.handshake import Handshake
from services.front.protocol.messages import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    Envelope,
    NotJson,
    RequestId,
    correlation_key,
    error_message,
    is_call,
    read_envelope,
    request_key,
)
from services.front.protocol.ways import Carrier, Way, way_of
from services.front.session import STDIO, current_peer
from services.front.transport.descriptors import Input, Output, non_blocking
from services.front.transport.json_lines import LOST, Excess, Line, lines, readable_id
from services.front.transport.session_memory import Kept, SessionMemory, id_of

if TYPE_CHECKING:
    # They load the SDK, which is done beside the first messages.
    from services.front.protocol.fast_path import ToolCall
    from services.front.protocol.server import SurfaceServer
    from services.front.transport.sdk_session import SdkSession

DRAIN_S = 30.0
"""For calls still in flight when the input has ended."""

_ABANDONED_POLL_S = 0.1

_DIED = MaybeExecuted("the process that served this died while it was in flight; another one has taken over")

_DIED_READING = Unavailable("every process that served this died while it was in flight")

REPEATS = 2
"""Times that what was in flight is asked again, since it may be what the fronts died of; then it is answered so."""

_FATAL = "Every process that read this message died while it did; it is not read again"

_log = logging.getLogger("linckia.gateway")


async def serve_stdio(
    server: Callable[[], Awaitable[SurfaceServer]],
    handshake: Handshake,
    pad: scratchpad.Scratchpad,
    fd_in: int,
    fd_out: int,
    *,
    session_memory: SessionMemory,
    drain_s: float,
    opened: Callable[[], None],
    ending: trio.Event,
) -> bool:
    """Serve one client until its input ends or its output is closed; cancellation ends it at once.

    Answers whether the client has left; else `ending` was set, and the session goes on in another front.

    The descriptors stay open and are left as they were found.

    Args:
        server: waits until the SDK is loaded; may be called at once.
        handshake: answers the first messages meanwhile.
        pad: where long answers to this client are kept.
        session_memory: of this session, which may have been another kernel's before.
        drain_s: how long requests in flight at the end of the input may take.
        opened: called when the first message has been answered, or needs the SDK.
        ending: set when this process is to end: no more is read, and what is in flight is answered.
    """
    with non_blocking(fd_in, fd_out):
        session = _Session(
            server, handshake, Input(fd_in, session_memory.receive), Output(fd_out), session_memory, drain_s, opened
        )
        return await session.run(pad, ending)


class _Session:
    """One client on one pair of descriptors; the client end of its calls on the fast path."""

    modern = False
    # As the client sent them, by MCP; the reader checks their form.
    capabilities: Mapping[str, Any] = {}

    def __init__(
        self,
        server: Callable[[], Awaitable[SurfaceServer]],
        handshake: Handshake,
        source: Input,
        output: Output,
        session_memory: SessionMemory,
        drain_s: float,
        opened: Callable[[], None],
    ) -> None:
        self._server = server
        self._handshake = handshake
        self._opened = opened
        self._input = source
        self._output = output
        self._session_memory = session_memory
        # Requests whose answer is not wholly written yet, each with how many messages will be written by then.
        self._unsent: collections.deque[tuple[int, RequestId]] = collections.deque()
        output.changed = self._written
        self._drain_s = drain_s
        self._sdk: SdkSession | None = None
        self._sdk_ready = trio.Event()
        self._calls: dict[RequestId, trio.CancelScope] = {}
        self._batched: dict[RequestId, batch.Pending] = {}
        self._settled = trio.Event()

    # ---- client end of calls --------------------------------------------------------------------------------------

    def notify(self, method: str, params: dict[str, Any]) -> None:
        self._post(msgspec.json.encode({"jsonrpc": "2.0", "method": method, "params": params}))

    async def request(self, method: str, params: dict[str, Any]) -> JsonObject:
        raise AssertionError("operations that ask are not on the fast path")

    # ---- life -----------------------------------------------------------------------------------------------------

    async def run(self, pad: scratchpad.Scratchpad, ending: trio.Event) -> bool:
        # Every task that serves this client is started from here.
        scratchpad.enter(pad)
        current_peer.set(STDIO)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._output.run)
            nursery.start_soon(self._end_when_broken, nursery.cancel_scope)
            kept = self._session_memory.take_over()
            if kept is not None:
                self._handshake.resume(kept.said)
            nursery.start_soon(self._bring_in_sdk, nursery)
            if kept is not None:
                await self._go_on(kept, nursery)
            with trio.CancelScope() as reading:
                nursery.start_soon(_cancel_when, ending, reading)
                async for line in self._lines(kept or Kept()):
                    await self._output.room()
                    await self._accept(line, nursery)
                    self._session_memory.read(line.rest)
            await self._drain()
            nursery.cancel_scope.cancel()
        return not reading.cancelled_caught

    def _lines(self, kept: Kept) -> AsyncIterator[Line]:
        if kept.revivals > REPEATS + 1 and not kept.short:
            fatal, _, kept.rest = kept.rest.partition(b"\n")
            if fatal:
                self._post(error_message(readable_id(fatal), INTERNAL_ERROR, _FATAL))
        excess = Excess(readable_id(kept.rest), LOST) if kept.short else None
        return lines(
            self._input,
            before=b"" if excess else kept.rest,
            excess=excess,
            begun=partial(self._session_memory.read, begun=True),
        )

    async def _go_on(self, kept: Kept, nursery: trio.Nursery) -> None:
        """Where a front that died left the session: what was asked and may be repeated is; the rest is answered."""
        _log.info("a session was resumed; %d requests were in flight", len(kept.asked))
        if kept.cut:
            # The client takes what there is of that line for what it is: no message.
            self._post(b"")
        await self._sdk_ready.wait()
        assert self._sdk is not None
        for message in kept.asked:
            await self._ask_again(self._sdk, message, kept, nursery)
        for news in self._handshake.news():
            self.notify(news, {})

    async def _ask_again(self, sdk: SdkSession, message: bytes, kept: Kept, nursery: trio.Nursery) -> None:
        call = envelope = None
        with contextlib.suppress(NotJson):
            envelope = read_envelope(message)
        if envelope is not None:
            call = sdk.recognise(envelope) or sdk.fast_path.recognise(envelope, modern=True)
            repeatable = call.operation.idempotent if call is not None else not is_call(envelope)
            if repeatable and kept.revivals <= REPEATS:
                await self._accept(Line(message, None, kept.rest), nursery)
                return
        request_id = id_of(message)
        if request_id is not None:
            answer = error_message(request_id, INTERNAL_ERROR, message_of(_DIED.failure))
            if call is not None:
                reads = call.operation.access is Access.READ
                answer = sdk.fast_path.failed(call, _DIED_READING if reads else _DIED).message
            self._respond(correlation_key(request_id), answer)

    async def _bring_in_sdk(self, nursery: trio.Nursery) -> None:
        server = await self._server()
        from services.front.transport.sdk_session import SdkSession

        self._sdk = SdkSession(server, self._post, self._respond, self._handshake.answered)
        nursery.start_soon(self._sdk.run)
        told = 0
        # More may be taken meanwhile; none can be after the last.
        while told < len(self._handshake.taken):
            message = self._handshake.taken[told]
            await self._sdk.hand_over(message, b'"id"' in message, self._post)
            told += 1
            await self._sdk.handshake_version()
        self._sdk_ready.set()

    async def _end_when_broken(self, scope: trio.CancelScope) -> None:
        await self._output.broken.wait()
        scope.cancel()

    async def _drain(self) -> None:
        """Answer the requests in flight, while the client reads."""
        with trio.move_on_after(self._drain_s):
            while (self._calls or (self._sdk is not None and self._sdk.in_hand)) and not self._output.abandoned():
                self._settled = trio.Event()
                with trio.move_on_after(_ABANDONED_POLL_S):
                    await self._settled.wait()
            if not self._output.abandoned():
                await self._output.flush()

    def _respond(self, key: RequestId, answer: bytes) -> None:
        pending = self._batched.pop(key, None)
        (self._post if pending is None else pending.answer)(answer)
        self._answered(key)
        self._settled.set()

    def _answered(self, key: RequestId) -> None:
        if self._output.empty:
            self._session_memory.answered(key)
        else:
            self._unsent.append((self._output.posted, key))

    def _written(self) -> None:
        self._session_memory.written(cut=self._output.cut)
        # Each as soon as it is: where this front dies, the next one answers what is not noted, once more.
        while self._unsent and self._unsent[0][0] <= self._output.written:
            self._session_memory.answered(self._unsent.popleft()[1])

    def _post(self, message: bytes) -> None:
        self._output.post(message + b"\n")

    # ---- messages -------------------------------------------------------------------------------------------------

    async def _accept(self, line: Line, nursery: trio.Nursery) -> None:
        if line.excess is not None:
            self._post(error_message(line.excess.request_id, INVALID_REQUEST, line.excess.why))
            return
        try:
            envelope = read_envelope(line.data)
        except NotJson as error:
            self._post(error_message(error.request_id, PARSE_ERROR, f"Parse error: {error}"))
            return
        sdk = self._sdk
        if sdk is None or not self._sdk_ready.is_set():
            greets = way_of(envelope, Carrier.LOADING) is Way.GREETING
            answer = self._handshake.answer(line.data) if greets else None
            if answer:
                self._post(answer)
            if answer is not None and envelope is not None and isinstance(envelope.method, str):
                self._session_memory.say(envelope.method, line.data)
            self._opened()
            if answer is not None:
                return
            await self._sdk_ready.wait()
            sdk = self._sdk
            assert sdk is not None
        if envelope is None and batch.is_batch(line.data):
            await self._take_batch(sdk, line.data, line.rest, nursery)
        else:
            await self._take(sdk, line.data, line.rest, envelope, nursery, None)

    async def _take_batch(self, sdk: SdkSession, data: bytes, rest: bytes, nursery: trio.Nursery) -> None:
        if await sdk.handshake_version() not in batch.BATCH_VERSIONS:
            text = f"{batch.NOT_A_MESSAGE} (batches are of the revisions up to 2025-03-26 only)"
            self._post(error_message(None, INVALID_REQUEST, text))
            return
        try:
            messages = batch.parts(data)
        except NotJson as error:
            self._post(error_message(None, PARSE_ERROR, f"Parse error: {error}"))
            return
        except batch.Refused as error:
            self._post(error_message(None, INVALID_REQUEST, str(error)))
            return
        pending = batch.Pending(self._post)
        seen: set[RequestId] = set()
        for message in messages:
            envelope = read_envelope(message)
            if (fault := batch.fault(envelope, seen)) is not None:
                pending.add(fault)
            else:
                await self._take(sdk, message, rest, envelope, nursery, pending)
        pending.seal()

    async def _take(
        self,
        sdk: SdkSession,
        data: bytes,
        rest: bytes,
        envelope: Envelope | None,
        nursery: trio.Nursery,
        pending: batch.Pending | None,
    ) -> None:
        refuse = self._post if pending is None else pending.add
        key = None if envelope is None else request_key(envelope)
        if envelope is not None and isinstance(envelope.method, str):
            if key is None:
                self._session_memory.say(envelope.method, data)
            else:
                self._session_memory.ask(key, envelope.method, data, rest)
                refuse = partial(self._respond, key)
        if pending is not None and key is not None:
            pending.expect()
            if (other := self._batched.get(key)) is not None:
                # The id was used again: an answer to it belongs to the later batch, and holds up no other.
                other.drop()
            self._batched[key] = pending
        way = way_of(envelope, Carrier.STDIO)
        if way is Way.GREETING and key is not None and (answer := self._handshake.answer(data)):
            self._respond(key, answer)
            return
        call = sdk.recognise(envelope) if envelope is not None and way is Way.CALL else None
        if call is not None:
            nursery.start_soon(self._serve, sdk, call, nursery)
            return
        # One that is no envelope has an id that is none, or members that no message has.
        has_id = envelope is None or not isinstance(envelope.id, UnsetType)
        withdrawn = await sdk.hand_over(data, has_id, refuse)
        if withdrawn is not None:
            self._withdraw(withdrawn)

    def _withdraw(self, key: RequestId) -> None:
        scope = self._calls.get(key)
        if scope is not None:
            scope.cancel()
        pending = self._batched.pop(key, None)
        if pending is not None:
            pending.drop()
        self._session_memory.answered(key)
        self._settled.set()

    async def _serve(self, sdk: SdkSession, call: ToolCall, nursery: trio.Nursery) -> None:
        key = correlation_key(call.id)
        with trio.CancelScope() as scope:
            self._calls[key] = scope
            try:
                # A cancelled call is never answered.
                self._respond(key, (await sdk.fast_path.answer(call, self, nursery, sdk.level(call))).message)
            finally:
                # An id that was used again meanwhile belongs to the later call.
                if self._calls.get(key) is scope:
                    del self._calls[key]
                self._settled.set()


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
