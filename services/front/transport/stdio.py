"""MCP's stdio transport: one JSON-RPC message per line, over a pair of descriptors.

Only requests that need the SDK wait until it is loaded (`services.front.protocol.dispatch`).  Only JSON-RPC is ever
written.  A line that is not a message is answered with an error, and the session continues.  When the input ends,
requests in flight are still answered, for at most `drain_s` and while the client reads.
"""

from __future__ import annotations

import collections
import contextlib
import logging
from collections.abc import AsyncIterator
from functools import partial

import trio

from proto.errors import MaybeExecuted, Unavailable
from proto.grants import STDIO
from proto.mcp import BATCH_VERSIONS, INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR, RequestId
from proto.operation import CLIENT
from proto.origin import Origin
from services.front import scratchpad
from services.front.gateway import Gateway
from services.front.mounted.mounted import KNOWN_S
from services.front.protocol import batch
from services.front.protocol.dispatch import MessageDispatcher
from services.front.protocol.handshake import GREETINGS, lists_of, offered, resume
from services.front.protocol.messages import (
    LONG_BYTES,
    NOT_A_MESSAGE,
    Envelope,
    NotJson,
    correlation_key,
    error_message,
    fault_of,
    has_envelope,
    is_call,
    read_envelope,
    read_long,
    readable_id,
    request_key,
)
from services.front.protocol.notifier import list_changed
from services.front.protocol.session import McpSession, Request
from services.front.transport.descriptors import Input, Output, non_blocking
from services.front.transport.json_lines import LOST, Line, SkippedLine, lines
from services.front.transport.session_memory import SessionMemory, SessionRecord, id_of

DRAIN_S = 30.0
"""How long requests in flight may take after the end of the input."""

_ABANDONED_POLL_S = 0.1

_DIED = MaybeExecuted("the process that served this call died before it was answered; another one has taken over")

_DIED_READING = Unavailable("every process that served this call died before it was answered")

REPEATS = 2
"""How often a request is repeated after its front died; then it is answered with an error, as it may be the cause."""

_FATAL = "Every process that read this message died; it is not read again"

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
    """Serve one local client on descriptors that it passed; the caller closes them.

    Returns True when the client has gone and its requests are answered, and False if `ending` was set before.
    Cancellation ends it at once.

    Args:
        memory: descriptor of the session's memory, if the session should outlive this front.
        drain_s: how long requests in flight may take after the end of the input.
        ending: set when this process is stopping.

    Raises:
        InvalidParams: no surface has this name.
    """
    gateway.wanted.set()
    await gateway.find(surface)
    with contextlib.closing(SessionMemory(memory)) as session_memory:
        ending = trio.Event() if ending is None else ending
        return await StdioSession(gateway, surface, fd_in, fd_out, session_memory, drain_s, ending).run()


class StdioSession(McpSession):
    """The session of one local client, and the channel of all its requests.

    Args:
        memory: the memory of this session, which another front may have served before.
        drain_s: how long requests in flight may take after the end of the input.
        ending: set when this process is stopping: reading ends, and requests in flight are answered.
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
        served = gateway.served(surface)
        self._greeter = served.greeter
        self._lists = lists_of(offered(self._surface))
        self._dispatcher = MessageDispatcher(served, partial(gateway.server, surface))
        self._descriptors = fd_in, fd_out
        self._input = Input(fd_in, memory.receive)
        self._output = Output(fd_out)
        self._output.on_progress = self._written
        self._memory = memory
        # Requests whose answer is not fully written, each with the number of messages written by then.
        self._unsent: collections.deque[tuple[int, RequestId]] = collections.deque()
        self._drain_s = drain_s
        self._ending = ending
        self._batched: dict[RequestId, batch.Pending] = {}
        # Requests that last until the client withdraws them; the end of the input does not wait for them.
        self._streams: set[RequestId] = set()
        self._settled = trio.Event()

    def send(self, message: bytes) -> None:
        self._output.post(message + b"\n")

    async def room(self) -> None:
        await self._output.room()

    async def run(self) -> bool:
        """Serve the client until its input ends or its output is closed; cancellation ends it at once.

        Returns True if the client has left, False if `ending` was set and another front resumes the session.
        """
        # All tasks that serve this client inherit its scratchpad.
        pad = self._gateway.scratchpads.open(self._memory.name, self.state)
        scratchpad.current.set(pad)
        self._origin = Origin(CLIENT, pad.session, STDIO)
        with non_blocking(*self._descriptors), self._gateway.notifier.follow(self, self._surface.name, self._lists):
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._output.run)
                self._nursery.start_soon(_cancel_when, self._output.broken, self._nursery.cancel_scope)
                record = self._memory.take_over()
                if record is not None:
                    await self._resume(record)
                with trio.CancelScope() as reading:
                    self._nursery.start_soon(_cancel_when, self._ending, reading)
                    async for line in self._lines(record or SessionRecord()):
                        await self._output.room()
                        await self._accept(line)
                        self._memory.record_unread(line.rest)
                await self._drain()
                self._nursery.cancel_scope.cancel()
        return not reading.cancelled_caught

    def _lines(self, record: SessionRecord) -> AsyncIterator[Line]:
        if record.revivals > REPEATS + 1 and not record.truncated:
            fatal, _, record.unread = record.unread.partition(b"\n")
            if fatal:
                self.send(error_message(readable_id(fatal), INTERNAL_ERROR, _FATAL))
        skipping = SkippedLine(readable_id(record.unread), LOST) if record.truncated else None
        on_partial = partial(self._memory.record_unread, is_partial=True)
        initial = b"" if skipping else record.unread
        return lines(self._input, initial=initial, skipping=skipping, on_partial=on_partial)

    async def _resume(self, record: SessionRecord) -> None:
        """Resume a session that another front served: repeat the requests in flight, or answer them with an error."""
        _log.info("a session was resumed; %d requests were in flight", len(record.in_flight))
        resume(self, record.state_messages)
        if record.mid_message:
            # The client has received part of a line.  This ends the line, which is not a message.
            self.send(b"")
        for message in record.in_flight:
            await self._repeat(message, record)
        if self.is_open:
            # This front may have different lists.
            for name in sorted(self._lists):
                self.send(list_changed(name))

    async def _repeat(self, message: bytes, record: SessionRecord) -> None:
        envelope = None
        with contextlib.suppress(NotJson):
            envelope = read_envelope(message)
        if envelope is not None and record.revivals <= REPEATS:
            call = self._dispatcher.tool_call(envelope)
            if call is None and is_call(envelope):
                # It may be the tool of a mounted server, which this front is still to learn of.
                await self._gateway.mounted.complete(KNOWN_S)
                call = self._dispatcher.tool_call(envelope)
            if call.operation.idempotent if call is not None else not is_call(envelope):
                await self._accept(Line(message, None, record.unread))
                return
        request_id = id_of(message)
        if request_id is not None:
            answer = self._dispatcher.interrupted(envelope, request_id, reading=_DIED_READING, other=_DIED)
            self._respond(correlation_key(request_id), answer.message)

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
        self._memory.begin_answer(key)
        (self.send if pending is None else pending.answer)(answer)
        if self._output.empty:
            self._memory.end_answer()
            self._memory.record_answer(key)
        else:
            self._unsent.append((self._output.posted, key))
        self._settled.set()

    def _written(self) -> None:
        self._memory.record_output(mid_message=self._output.mid_message)
        # Recorded at once: if this front dies, the next one answers unrecorded requests again.
        while self._unsent and self._unsent[0][0] <= self._output.written:
            self._memory.record_answer(self._unsent.popleft()[1])

    async def _accept(self, line: Line) -> None:
        if line.skipped is not None:
            self.send(error_message(line.skipped.request_id, INVALID_REQUEST, line.skipped.why))
            return
        try:
            envelope = read_envelope(line.data) if len(line.data) <= LONG_BYTES else await read_long(line.data)
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
        if self.version not in BATCH_VERSIONS:
            text = f"{NOT_A_MESSAGE} (only the revisions up to 2025-03-26 have batches)"
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
                self._memory.record_message(envelope.method, data)
            if (withdrawn := self.receive(envelope)) is not None:
                self._forget(withdrawn)
            return
        assert isinstance(envelope.method, str)
        self._memory.record_request(key, envelope.method, data, rest)
        if pending is not None:
            pending.expect()
            if (other := self._batched.get(key)) is not None:
                # The client reused the id.  The answer belongs to the later batch; do not let the earlier one wait.
                other.drop()
            self._batched[key] = pending
        if envelope.method in GREETINGS and (answer := self._greeter.answer(data, self)) is not None:
            self._respond(key, answer)
            return
        if self.modern is None:
            # The first request decides the era; `initialize` belongs to the one with a handshake.
            self.modern = envelope.method != "initialize" and has_envelope(envelope)
        await self._start(envelope)

    async def _start(self, envelope: Envelope) -> None:
        request = Request(envelope, self, self, self._nursery, self._origin)
        (self._streams.add if request.method == _LISTEN else self._streams.discard)(request.key)
        if request.method == "initialize":
            # The client's next messages require an open session.
            await self._serve(request)
        else:
            self._nursery.start_soon(self._serve, request)

    async def _serve(self, request: Request) -> None:
        try:
            # A withdrawn request is not answered.
            if (answer := await self._dispatcher.answer(request)) is not None:
                self._respond(request.key, answer.message)
        finally:
            self._streams.discard(request.key)
            self._settled.set()

    def _forget(self, key: RequestId) -> None:
        """Handle the withdrawal of a request."""
        if (pending := self._batched.pop(key, None)) is not None:
            pending.drop()
        self._memory.record_answer(key)
        self._settled.set()


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
