"""MCP over a pair of descriptors: one JSON-RPC message a line, as the stdio transport has it.

Greetings are answered at once, also while the SDK loads; every other request waits for the SDK.  Only JSON-RPC is ever
written.  A line that is not a message is answered with an error and the connection goes on.  When the input ends,
requests in flight are still answered, while the client reads and `drain_s` lasts.
"""

from __future__ import annotations

import collections
import contextlib
import logging
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING

import trio

from linckia.proto.errors import MaybeExecuted, Unavailable
from linckia.services.front import scratchpad
from linckia.services.front.gateway import Gateway
from linckia.services.front.protocol import batch
from linckia.services.front.protocol.handshake import GREETINGS, Greeter, lists_of, offered, resume
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
    has_envelope,
    is_call,
    read_envelope,
    readable_id,
    request_key,
)
from linckia.services.front.protocol.news import list_changed
from linckia.services.front.protocol.session import STDIO, McpSession, Request, current_peer
from linckia.services.front.transport.descriptors import Input, Output, non_blocking
from linckia.services.front.transport.json_lines import LOST, Excess, Line, lines
from linckia.services.front.transport.session_memory import Kept, SessionMemory, id_of

if TYPE_CHECKING:
    # It loads the SDK, which happens beside the first messages.
    from linckia.services.front.protocol.dispatch import MessageDispatcher

DRAIN_S = 30.0
"""How long requests may take that are in flight when the input ends."""

_ABANDONED_POLL_S = 0.1

_DIED = MaybeExecuted("the process that served this died while it was in flight; another one has taken over")

_DIED_READING = Unavailable("every process that served this died while it was in flight")

REPEATS = 2
"""How often a request is repeated after the death of its front; it may be the cause, so then it is answered."""

_FATAL = "Every process that read this message died while it did; it is not read again"

_LISTEN = "subscriptions/listen"

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

    Returns True when the client has gone and its requests are answered, and False if `ending` was set before.
    Cancellation ends it at once.  `memory` holds the session if it should outlive this front.  Raises InvalidParams:
    there is no such surface.
    """
    gateway.surface(surface)
    gateway.wanted.set()
    with contextlib.closing(SessionMemory(memory)) as session_memory:
        ending = trio.Event() if ending is None else ending
        return await StdioSession(gateway, surface, fd_in, fd_out, session_memory, drain_s, ending).run()


class StdioSession(McpSession):
    """One client on one pair of descriptors, which are left as they were found; the channel of all its requests.

    Args:
        memory: of this session, which another front may have served before.
        drain_s: how long requests in flight at the end of the input may take.
        ending: set when this process has to end: reading stops, and requests in flight are answered.
    """

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
        super().__init__(memory.state, duplex=True)
        self._gateway = gateway
        self._surface = gateway.surface(surface)
        self._greeter = Greeter(self._surface, gateway.version)
        self._lists = lists_of(offered(self._surface))
        self._dispatcher: MessageDispatcher | None = None
        self._descriptors = fd_in, fd_out
        self._input = Input(fd_in, memory.receive)
        self._output = Output(fd_out)
        self._output.changed = self._written
        self._memory = memory
        # Requests whose answer is not fully written, each with the number of messages written by then.
        self._unsent: collections.deque[tuple[int, RequestId]] = collections.deque()
        self._drain_s = drain_s
        self._ending = ending
        self._batched: dict[RequestId, batch.Pending] = {}
        # Requests that last as long as the client listens; the end of the input does not wait for them.
        self._streams: set[RequestId] = set()
        self._settled = trio.Event()

    def send(self, message: bytes) -> None:
        self._output.post(message + b"\n")

    async def room(self) -> None:
        await self._output.room()

    async def run(self) -> bool:
        """Serve the client until its input ends or its output is closed; cancellation ends it at once.

        Returns True if the client has left; else `ending` was set, and the session goes on in another front.
        """
        # Every task that serves this client is started from here.
        scratchpad.enter(self._gateway.scratchpads.open(self._memory.name, self.state))
        current_peer.set(STDIO)
        with non_blocking(*self._descriptors), self._gateway.news.follow(self, self._lists):
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._output.run)
                self._nursery.start_soon(_cancel_when, self._output.broken, self._nursery.cancel_scope)
                kept = self._memory.take_over()
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
                self.send(error_message(readable_id(fatal), INTERNAL_ERROR, _FATAL))
        excess = Excess(readable_id(kept.rest), LOST) if kept.short else None
        begun = partial(self._memory.read, begun=True)
        return lines(self._input, before=b"" if excess else kept.rest, excess=excess, begun=begun)

    async def _go_on(self, kept: Kept) -> None:
        """Go on from where another front left the session: repeat requests if that does no harm, else answer them."""
        _log.info("a session was resumed; %d requests were in flight", len(kept.asked))
        resume(self, kept.said)
        if kept.cut:
            # The client has part of a line, which this ends; it is not a message.
            self.send(b"")
        for message in kept.asked:
            await self._ask_again(message, kept)
        if self.is_open:
            # This front may offer other things.
            for name in sorted(self._lists):
                self.send(list_changed(name))

    async def _ask_again(self, message: bytes, kept: Kept) -> None:
        envelope = None
        with contextlib.suppress(NotJson):
            envelope = read_envelope(message)
        dispatcher = await self._loaded()
        if envelope is not None and kept.revivals <= REPEATS:
            call = dispatcher.tool_call(envelope)
            if call.operation.idempotent if call is not None else not is_call(envelope):
                await self._accept(Line(message, None, kept.rest))
                return
        request_id = id_of(message)
        if request_id is not None:
            answer = dispatcher.interrupted(envelope, request_id, reading=_DIED_READING, other=_DIED)
            self._respond(correlation_key(request_id), answer.message)

    async def _loaded(self) -> MessageDispatcher:
        """What answers requests, once the SDK is loaded."""
        if self._dispatcher is None:
            server = await self._gateway.server(self._surface.name)
            from linckia.services.front.protocol.dispatch import MessageDispatcher

            self._dispatcher = MessageDispatcher(server)
        return self._dispatcher

    async def _drain(self) -> None:
        """Answer the requests in flight, while the client reads."""
        with trio.move_on_after(self._drain_s):
            while self.calls.keys() - self._streams and not self._output.abandoned():
                self._settled = trio.Event()
                with trio.move_on_after(_ABANDONED_POLL_S):
                    await self._settled.wait()
            if not self._output.abandoned():
                await self._output.flush()

    def _respond(self, key: RequestId, answer: bytes) -> None:
        pending = self._batched.pop(key, None)
        (self.send if pending is None else pending.answer)(answer)
        if self._output.empty:
            self._memory.answered(key)
        else:
            self._unsent.append((self._output.posted, key))
        self._settled.set()

    def _written(self) -> None:
        self._memory.written(cut=self._output.cut)
        # Noted at once: if this front dies, the next one answers again whatever is not noted.
        while self._unsent and self._unsent[0][0] <= self._output.written:
            self._memory.answered(self._unsent.popleft()[1])

    async def _accept(self, line: Line) -> None:
        if line.excess is not None:
            self.send(error_message(line.excess.request_id, INVALID_REQUEST, line.excess.why))
            return
        try:
            envelope = read_envelope(line.data)
        except NotJson as error:
            self.send(error_message(error.request_id, PARSE_ERROR, f"Parse error: {error}"))
            return
        if envelope is None and batch.is_batch(line.data):
            await self._take_batch(line)
        elif (fault := fault_of(envelope, line.data)) is not None:
            self.send(fault)
        else:
            assert envelope is not None
            await self._take(envelope, line.data, line.rest)

    async def _take_batch(self, line: Line) -> None:
        if self.version not in batch.BATCH_VERSIONS:
            text = f"{NOT_A_MESSAGE} (batches are of the revisions up to 2025-03-26 only)"
            self.send(error_message(None, INVALID_REQUEST, text))
            return
        try:
            parts = batch.parts(line.data)
        except batch.Refused as error:
            self.send(error.answer)
            return
        pending = batch.Pending(self.send)
        for part in parts:
            if part.fault is not None:
                pending.add(part.fault)
            else:
                assert part.envelope is not None
                await self._take(part.envelope, part.data, line.rest, pending)
        pending.seal()

    async def _take(self, envelope: Envelope, data: bytes, rest: bytes, pending: batch.Pending | None = None) -> None:
        key = request_key(envelope)
        if key is None:
            if isinstance(envelope.method, str):
                self._memory.say(envelope.method, data)
            if (withdrawn := self.receive(envelope)) is not None:
                self._forget(withdrawn)
            return
        assert isinstance(envelope.method, str)
        self._memory.ask(key, envelope.method, data, rest)
        if pending is not None:
            pending.expect()
            if (other := self._batched.get(key)) is not None:
                # The id was used again: an answer to it belongs to the later batch, and holds up no other.
                other.drop()
            self._batched[key] = pending
        if envelope.method in GREETINGS and (answer := self._greeter.answer(data, self)) is not None:
            self._respond(key, answer)
            self._gateway.opened.set()
            return
        if self.modern is None:
            # The first request decides the era, and `initialize` belongs to the one with a handshake.
            self.modern = envelope.method != "initialize" and has_envelope(envelope)
        await self._start(envelope)

    async def _start(self, envelope: Envelope) -> None:
        dispatcher = await self._loaded()
        request = Request(envelope, self, self, self._nursery)
        (self._streams.add if request.method == _LISTEN else self._streams.discard)(request.key)
        if request.method == "initialize":
            # What the client sends after it is for an open session.
            await self._serve(dispatcher, request)
        else:
            self._nursery.start_soon(self._serve, dispatcher, request)

    async def _serve(self, dispatcher: MessageDispatcher, request: Request) -> None:
        try:
            # A request that was withdrawn is never answered.
            if (answer := await dispatcher.answer(request)) is not None:
                self._respond(request.key, answer.message)
        finally:
            self._streams.discard(request.key)
            self._settled.set()

    def _forget(self, key: RequestId) -> None:
        """The client has withdrawn this request."""
        if (pending := self._batched.pop(key, None)) is not None:
            pending.drop()
        self._memory.answered(key)
        self._settled.set()


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
