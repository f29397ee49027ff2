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
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from linckia.proto.errors import MaybeExecuted, Unavailable
from linckia.proto.json_types import JsonObject
from linckia.proto.operation import Access
from linckia.services.front import scratchpad
from linckia.services.front.gateway import Gateway
from linckia.services.front.protocol import batch
from linckia.services.front.protocol.failures import message_of
from linckia.services.front.protocol.handshake import Handshake
from linckia.services.front.protocol.messages import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    NOT_A_MESSAGE,
    PARSE_ERROR,
    Envelope,
    NotJson,
    RequestId,
    correlation_key,
    error_message,
    fault_of,
    is_call,
    read_envelope,
    readable_id,
    request_key,
)
from linckia.services.front.protocol.ways import Carrier, Way, way_of
from linckia.services.front.session import STDIO, current_peer
from linckia.services.front.transport.descriptors import Input, Output, non_blocking
from linckia.services.front.transport.json_lines import LOST, Excess, Line, lines
from linckia.services.front.transport.session_memory import Kept, SessionMemory, id_of

if TYPE_CHECKING:
    # They load the SDK, which is done beside the first messages.
    from linckia.services.front.protocol.fast_path import ToolCall
    from linckia.services.front.transport.sdk_session import SdkSession

DRAIN_S = 30.0
"""For calls still in flight when the input has ended."""

_ABANDONED_POLL_S = 0.1

_DIED = MaybeExecuted("the process that served this died while it was in flight; another one has taken over")

_DIED_READING = Unavailable("every process that served this died while it was in flight")

REPEATS = 2
"""Times that what was in flight is asked again, since it may be what the fronts died of; then it is answered so."""

_FATAL = "Every process that read this message died while it did; it is not read again"

_log = logging.getLogger("linckia.gateway")


async def attach(
    gateway: Gateway,
    fd_in: int,
    fd_out: int,
    surface: str,
    memory: int | None = None,
    *,
    drain_s: float = DRAIN_S,
    ending: trio.Event | None = None,
) -> bool:
    """Serve one local client on descriptors that it passed; they stay the caller's to close.

    Returns True when the client has gone and what it had asked is answered; False when `ending` was set before.
    Cancellation ends it at once.  `memory` is the session's, where that is to outlive this front.  Raises
    InvalidParams: there is no such surface.
    """
    gateway.surface(surface)
    gateway.wanted.set()
    with contextlib.closing(SessionMemory(memory)) as session_memory:
        ending = trio.Event() if ending is None else ending
        return await StdioSession(gateway, surface, fd_in, fd_out, session_memory, drain_s, ending).run()


class StdioSession:
    """One client on one pair of descriptors, which are left as they were found; the client end of its calls on the fast
    path.

    Args:
        memory: of this session, which may have been another kernel's before.
        drain_s: how long requests in flight at the end of the input may take.
        ending: set when this process is to end: no more is read, and what is in flight is answered.
    """

    modern = False
    # As the client sent them, by MCP; the reader checks their form.
    capabilities: Mapping[str, Any] = {}

    def __init__(
        self,
        gateway: Gateway,
        surface: str,
        fd_in: int,
        fd_out: int,
        memory: SessionMemory,
        drain_s: float,
        ending: trio.Event,
    ) -> None:
        self._gateway = gateway
        self._surface = surface
        self._handshake = Handshake(gateway.surface(surface), gateway.version)
        self._descriptors = fd_in, fd_out
        self._input = Input(fd_in, memory.receive)
        self._output = Output(fd_out)
        self._output.changed = self._written
        self._memory = memory
        # Requests whose answer is not wholly written yet, each with how many messages will be written by then.
        self._unsent: collections.deque[tuple[int, RequestId]] = collections.deque()
        self._drain_s = drain_s
        self._ending = ending
        self._sdk: SdkSession | None = None
        self._sdk_ready = trio.Event()
        self._calls: dict[RequestId, trio.CancelScope] = {}
        self._batched: dict[RequestId, batch.Pending] = {}
        self._settled = trio.Event()

    def notify(self, method: str, params: JsonObject) -> None:
        self._post(msgspec.json.encode({"jsonrpc": "2.0", "method": method, "params": params}))

    async def request(self, method: str, params: JsonObject) -> JsonObject:
        raise AssertionError("operations that ask are not on the fast path")

    async def run(self) -> bool:
        """Serve the client until its input ends or its output is closed; cancellation ends it at once.

        Answers whether the client has left; else `ending` was set, and the session goes on in another front.
        """
        # Every task that serves this client is started from here.
        scratchpad.enter(self._gateway.scratchpads.open(self._memory.name, self._memory.state))
        current_peer.set(STDIO)
        with non_blocking(*self._descriptors):
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._output.run)
                self._nursery.start_soon(_cancel_when, self._output.broken, self._nursery.cancel_scope)
                kept = self._memory.take_over()
                if kept is not None:
                    self._handshake.resume(kept.said)
                self._nursery.start_soon(self._bring_in_sdk)
                if kept is not None:
                    await self._go_on(kept)
                with trio.CancelScope() as reading:
                    self._nursery.start_soon(_cancel_when, self._ending, reading)
                    async for line in self._lines(kept or Kept()):
                        await self._output.room()
                        await self._accept(line)
                        self._memory.read(line.rest)
                await self._drain()
                self._nursery.cancel_scope.cancel()
        return not reading.cancelled_caught

    def _lines(self, kept: Kept) -> AsyncIterator[Line]:
        if kept.revivals > REPEATS + 1 and not kept.short:
            fatal, _, kept.rest = kept.rest.partition(b"\n")
            if fatal:
                self._post(error_message(readable_id(fatal), INTERNAL_ERROR, _FATAL))
        excess = Excess(readable_id(kept.rest), LOST) if kept.short else None
        begun = partial(self._memory.read, begun=True)
        return lines(self._input, before=b"" if excess else kept.rest, excess=excess, begun=begun)

    async def _go_on(self, kept: Kept) -> None:
        """Where a front that died left the session: what was asked and may be repeated is; the rest is answered."""
        _log.info("a session was resumed; %d requests were in flight", len(kept.asked))
        if kept.cut:
            # The client takes what there is of that line for what it is: no message.
            self._post(b"")
        sdk = await self._loaded()
        for message in kept.asked:
            await self._ask_again(sdk, message, kept)
        for news in self._handshake.news():
            self.notify(news, {})

    async def _ask_again(self, sdk: SdkSession, message: bytes, kept: Kept) -> None:
        call = envelope = None
        with contextlib.suppress(NotJson):
            envelope = read_envelope(message)
        if envelope is not None:
            call = sdk.recognise(envelope) or sdk.fast_path.recognise(envelope, modern=True)
            repeatable = call.operation.idempotent if call is not None else not is_call(envelope)
            if repeatable and kept.revivals <= REPEATS:
                await self._accept(Line(message, None, kept.rest))
                return
        request_id = id_of(message)
        if request_id is not None:
            answer = error_message(request_id, INTERNAL_ERROR, message_of(_DIED.failure))
            if call is not None:
                reads = call.operation.access is Access.READ
                answer = sdk.fast_path.failed(call, _DIED_READING if reads else _DIED).message
            self._respond(correlation_key(request_id), answer)

    async def _bring_in_sdk(self) -> None:
        # Waited for, not asked for: the first message comes first.
        await self._gateway.loaded.wait()
        server = await self._gateway.server(self._surface)
        from linckia.services.front.transport.sdk_session import SdkSession

        self._sdk = SdkSession(server, self._post, self._respond, self._handshake.answered)
        self._nursery.start_soon(self._sdk.run)
        # More may be taken meanwhile, at the end of the list that is gone through; none can be after the last.
        for message in self._handshake.taken:
            await self._sdk.hand_over(message, self._post)
            await self._sdk.handshake_version()
        self._sdk_ready.set()

    async def _loaded(self) -> SdkSession:
        """The SDK's part, once it knows what was said without it."""
        await self._sdk_ready.wait()
        assert self._sdk is not None
        return self._sdk

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
        if self._output.empty:
            self._memory.answered(key)
        else:
            self._unsent.append((self._output.posted, key))
        self._settled.set()

    def _written(self) -> None:
        self._memory.written(cut=self._output.cut)
        # Each as soon as it is: where this front dies, the next one answers what is not noted, once more.
        while self._unsent and self._unsent[0][0] <= self._output.written:
            self._memory.answered(self._unsent.popleft()[1])

    def _post(self, message: bytes) -> None:
        self._output.post(message + b"\n")

    async def _accept(self, line: Line) -> None:
        if line.excess is not None:
            self._post(error_message(line.excess.request_id, INVALID_REQUEST, line.excess.why))
            return
        try:
            envelope = read_envelope(line.data)
        except NotJson as error:
            self._post(error_message(error.request_id, PARSE_ERROR, f"Parse error: {error}"))
            return
        if envelope is None and batch.is_batch(line.data):
            await self._take_batch(await self._loaded(), line)
        elif (fault := fault_of(envelope, line.data)) is not None:
            self._post(fault)
        elif self._sdk_ready.is_set() or not self._greet(line.data, envelope):
            await self._take(await self._loaded(), line.data, line.rest, envelope)

    def _greet(self, data: bytes, envelope: Envelope | None) -> bool:
        """Answer a message while the SDK loads, if it is a greeting."""
        greets = way_of(envelope, Carrier.LOADING) is Way.GREETING
        answer = self._handshake.answer(data) if greets else None
        if answer:
            self._post(answer)
        if answer is not None and envelope is not None and isinstance(envelope.method, str):
            self._memory.say(envelope.method, data)
        self._gateway.opened.set()
        return answer is not None

    async def _take_batch(self, sdk: SdkSession, line: Line) -> None:
        if await sdk.handshake_version() not in batch.BATCH_VERSIONS:
            text = f"{NOT_A_MESSAGE} (batches are of the revisions up to 2025-03-26 only)"
            self._post(error_message(None, INVALID_REQUEST, text))
            return
        try:
            parts = batch.parts(line.data)
        except batch.Refused as error:
            self._post(error.answer)
            return
        pending = batch.Pending(self._post)
        for part in parts:
            if part.fault is not None:
                pending.add(part.fault)
            else:
                await self._take(sdk, part.data, line.rest, part.envelope, pending)
        pending.seal()

    async def _take(
        self,
        sdk: SdkSession,
        data: bytes,
        rest: bytes,
        envelope: Envelope | None,
        pending: batch.Pending | None = None,
    ) -> None:
        refuse = self._post if pending is None else pending.add
        key = None if envelope is None else request_key(envelope)
        if envelope is not None and isinstance(envelope.method, str):
            if key is None:
                self._memory.say(envelope.method, data)
            else:
                self._memory.ask(key, envelope.method, data, rest)
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
            self._nursery.start_soon(self._serve, sdk, call)
            return
        withdrawn = await sdk.hand_over(data, refuse)
        if withdrawn is not None:
            self._withdraw(withdrawn)

    def _withdraw(self, key: RequestId) -> None:
        if (scope := self._calls.get(key)) is not None:
            scope.cancel()
        if (pending := self._batched.pop(key, None)) is not None:
            pending.drop()
        self._memory.answered(key)
        self._settled.set()

    async def _serve(self, sdk: SdkSession, call: ToolCall) -> None:
        key = correlation_key(call.id)
        with trio.CancelScope() as scope:
            self._calls[key] = scope
            try:
                # A cancelled call is never answered.
                answer = await sdk.fast_path.answer(call, self, self._nursery, sdk.level(call))
                self._respond(key, answer.message)
            finally:
                # An id that was used again meanwhile belongs to the later call.
                if self._calls.get(key) is scope:
                    del self._calls[key]
                self._settled.set()


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
