"""MCP over a pair of descriptors: one JSON-RPC message a line, as the stdio transport has it.

Ordinary tool calls take the short path; every other message goes to the SDK's server, whose answers are written here
too.  Nothing but JSON-RPC is ever written.  A line that is no message is answered with an error and the connection
goes on.  When the input ends, what is in flight is still answered, for as long as somebody reads and `drain_s` lasts.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

import anyio
import msgspec
import trio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.server.connection import Connection
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.jsonrpc_dispatcher import cancelled_request_id_from_params
from mcp.shared.message import SessionMessage
from mcp_types import (
    INVALID_REQUEST,
    PARSE_ERROR,
    PROTOCOL_VERSION_META_KEY,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)
from mcp_types.jsonrpc import jsonrpc_message_adapter
from msgspec import UnsetType
from pydantic import ValidationError

from kernel.gateway import scratchpad
from kernel.gateway.connections import level_of, on_connection
from kernel.gateway.descriptors import Input, Output, non_blocking
from kernel.gateway.server import SurfaceServer
from kernel.gateway.short import (
    Envelope,
    NotJson,
    RequestId,
    ShortPath,
    ToolCall,
    error_message,
    is_call,
    read_envelope,
)

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Longest line that is read."""

DRAIN_S = 30.0
"""For calls still in flight when the input has ended."""

_ABANDONED_POLL_S = 0.1

_LISTEN = "subscriptions/listen"

_EARLY_ID = re.compile(rb'^\s*\{(?:(?!"params").)*?"id"\s*:\s*(-?\d{1,18}|"[^"\\]{0,128}")', re.DOTALL)


async def serve_stdio(server: SurfaceServer, fd_in: int, fd_out: int, *, drain_s: float = DRAIN_S) -> None:
    """Serve one client until its input ends or nobody reads its output; cancellation ends it at once.

    The descriptors stay open and are left as they were found.
    """
    with non_blocking(fd_in, fd_out):
        await _Session(server, Input(fd_in), Output(fd_out), drain_s).run()


class _Session:
    """One client on one pair of descriptors; the client end of its calls on the short path."""

    modern = False
    capabilities: Mapping[str, Any] = {}

    def __init__(self, server: SurfaceServer, source: Input, output: Output, drain_s: float) -> None:
        self._server = server
        self._short = ShortPath(server)
        self._input = source
        self._output = output
        self._drain_s = drain_s
        self._connection: Connection | None = None
        self._established = False
        # None until the first request, which decides the era and is the SDK's.
        self._opened_modern: bool | None = None
        self._calls: dict[RequestId, trio.CancelScope] = {}
        self._with_sdk: set[RequestId] = set()
        self._settled = trio.Event()

    # ---- client end of calls --------------------------------------------------------------------------------------

    def notify(self, method: str, params: dict[str, Any]) -> None:
        self._post(msgspec.json.encode({"jsonrpc": "2.0", "method": method, "params": params}))

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        raise AssertionError("operations that ask are not on the short path")

    # ---- life -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        # Every task that serves this client is started from here.
        scratchpad.current.set(self._server.scratchpads.open())
        to_sdk, sdk_reads = anyio.create_memory_object_stream[SessionMessage | Exception](16)
        sdk_writes, from_sdk = anyio.create_memory_object_stream[SessionMessage](16)
        async with to_sdk, trio.open_nursery() as nursery:
            nursery.start_soon(self._output.run)
            nursery.start_soon(self._end_when_broken, nursery.cancel_scope)
            nursery.start_soon(self._write_for_sdk, from_sdk)
            nursery.start_soon(self._run_sdk, sdk_reads, sdk_writes)
            async for line in lines(self._input):
                await self._output.room()
                await self._accept(line, to_sdk, nursery)
            await self._drain()
            nursery.cancel_scope.cancel()

    async def _run_sdk(
        self,
        reads: MemoryObjectReceiveStream[SessionMessage | Exception],
        writes: MemoryObjectSendStream[SessionMessage],
    ) -> None:
        on_connection.set(self._opening)
        await self._server.sdk.run(reads, writes, self._server.sdk.create_initialization_options())

    def _opening(self, connection: Connection) -> None:
        self._connection = connection

    async def _write_for_sdk(self, messages: MemoryObjectReceiveStream[SessionMessage]) -> None:
        # Closed also when cancelled: what the SDK still wants to say then is dropped, and delays nobody.
        async with messages:
            async for item in messages:
                message = item.message
                self._post(message.model_dump_json(by_alias=True, exclude_unset=True).encode())
                if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None:
                    # The answer to `initialize` is written: nothing can overtake it from here on.
                    self._established = self._connection is not None and self._connection.initialize_accepted
                    self._settle(coerce_request_id(message.id))

    async def _end_when_broken(self, scope: trio.CancelScope) -> None:
        await self._output.broken.wait()
        scope.cancel()

    async def _drain(self) -> None:
        """Answer what is in flight, while somebody reads."""
        with trio.move_on_after(self._drain_s):
            while (self._calls or self._with_sdk) and not self._output.abandoned():
                self._settled = trio.Event()
                with trio.move_on_after(_ABANDONED_POLL_S):
                    await self._settled.wait()
            if not self._output.abandoned():
                await self._output.flush()

    def _settle(self, key: RequestId) -> None:
        self._with_sdk.discard(key)
        self._settled.set()

    def _post(self, message: bytes) -> None:
        self._output.post(message + b"\n")

    # ---- messages -------------------------------------------------------------------------------------------------

    async def _accept(
        self, line: Line, to_sdk: MemoryObjectSendStream[SessionMessage | Exception], nursery: trio.Nursery
    ) -> None:
        if line.excess is not None:
            text = f"Message of more than {MAX_MESSAGE_BYTES} bytes ({MAX_MESSAGE_BYTES >> 20} MiB), the limit"
            self._post(error_message(line.excess.request_id, INVALID_REQUEST, text))
            return
        try:
            envelope = read_envelope(line.data)
        except NotJson as error:
            self._post(error_message(None, PARSE_ERROR, f"Parse error: {error}"))
            return
        if envelope is not None:
            call = self._recognise(envelope)
            if call is not None:
                nursery.start_soon(self._serve, call, nursery)
                return
        # One that is no envelope has an id that is none, or members that no message has.
        has_id = envelope is None or not isinstance(envelope.id, UnsetType)
        await self._hand_over(line.data, has_id, to_sdk)

    def _recognise(self, envelope: Envelope) -> ToolCall | None:
        """The call, if the connection and the message are such that the short path may take it."""
        if not is_call(envelope) or self._opened_modern is None:
            return None
        if not self._opened_modern and not self._established:
            return None
        return self._short.recognise(envelope, modern=self._opened_modern)

    async def _serve(self, call: ToolCall, nursery: trio.Nursery) -> None:
        key = coerce_request_id(call.id)
        level = call.level if call.modern or self._connection is None else level_of(self._connection)
        with trio.CancelScope() as scope:
            self._calls[key] = scope
            try:
                # A cancelled call is never answered.
                self._post((await self._short.answer(call, self, nursery, level)).message)
            finally:
                # An id that was used again meanwhile belongs to the later call.
                if self._calls.get(key) is scope:
                    del self._calls[key]
                self._settled.set()

    async def _hand_over(
        self, data: bytes, has_id: bool, to_sdk: MemoryObjectSendStream[SessionMessage | Exception]
    ) -> None:
        message: JSONRPCMessage | None
        try:
            message = jsonrpc_message_adapter.validate_json(data, by_name=False)
        except ValidationError as error:
            detail = error.errors(include_input=False, include_url=False)[0]
            if detail["type"] == "json_invalid":
                self._post(error_message(None, PARSE_ERROR, f"Parse error: {detail['msg']}"))
                return
            message = None
        if message is None or (isinstance(message, JSONRPCNotification) and has_id):
            text = "Not a JSON-RPC 2.0 message: see its jsonrpc, id and method (batches are not accepted)"
            self._post(error_message(_readable_id(data), INVALID_REQUEST, text))
            return
        match message:
            case JSONRPCNotification(method="notifications/cancelled"):
                cancelled = cancelled_request_id_from_params(message.params)
                if cancelled is not None:
                    self._cancel(coerce_request_id(cancelled))
            case JSONRPCRequest():
                if self._opened_modern is None:
                    meta = (message.params or {}).get("_meta")
                    has_envelope = isinstance(meta, dict) and PROTOCOL_VERSION_META_KEY in meta
                    self._opened_modern = message.method != "initialize" and has_envelope
                if message.method != _LISTEN:
                    self._with_sdk.add(coerce_request_id(message.id))
        await to_sdk.send(SessionMessage(message))

    def _cancel(self, key: RequestId) -> None:
        scope = self._calls.get(key)
        if scope is not None:
            scope.cancel()
        self._settle(key)


class _Excess(msgspec.Struct):
    """A line that was too long to be kept, and the id at its beginning where there was one."""

    request_id: RequestId | None


class Line(msgspec.Struct):
    """One line of input."""

    data: bytes
    excess: _Excess | None = None


async def lines(source: Input, *, limit: int = MAX_MESSAGE_BYTES) -> AsyncIterator[Line]:
    """The lines of `source` that are not blank, the last one also without its newline.

    A line longer than `limit` bytes is skipped as it comes, and yielded as excess.
    """
    buffer = bytearray()
    searched = 0
    excess: _Excess | None = None
    while True:
        data = await source.receive()
        if not data:
            break
        buffer += data
        start = 0
        while (end := buffer.find(b"\n", max(start, searched))) >= 0:
            line = bytes(buffer[start:end])
            start = end + 1
            if excess is None and len(line) > limit:
                excess = _Excess(_readable_id(line))
            if excess is not None:
                yield Line(b"", excess)
                excess = None
            elif line and not line.isspace():
                yield Line(line)
        if start:
            del buffer[:start]
        searched = len(buffer)
        if searched > limit:
            if excess is None:
                excess = _Excess(_readable_id(bytes(buffer[:4096])))
            buffer.clear()
            searched = 0
    if excess is not None:
        yield Line(b"", excess)
    elif buffer and not buffer.isspace():
        yield Line(bytes(buffer))


def _readable_id(data: bytes) -> RequestId | None:
    """The id at the beginning of a message that cannot be read as a whole."""
    match = _EARLY_ID.match(data[:4096])
    return None if match is None else msgspec.json.decode(match[1], type=int | str)
