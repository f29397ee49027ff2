"""MCP over a pair of descriptors: one JSON-RPC message a line, as the stdio transport has it.

Until the SDK is loaded the first messages are answered without it; from then on ordinary tool calls take the short
path, and every other message goes to the SDK's server, whose answers are written here too.  Nothing but JSON-RPC is
ever written.  A line that is no message is answered with an error and the connection goes on.  When the input ends,
what is in flight is still answered, for as long as somebody reads and `drain_s` lasts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import trio
from msgspec import UnsetType

from kernel.gateway import batch, scratchpad
from kernel.gateway.descriptors import Input, Output, non_blocking
from kernel.gateway.lines import MAX_MESSAGE_BYTES, Line, lines
from kernel.gateway.messages import (
    INVALID_REQUEST,
    PARSE_ERROR,
    Envelope,
    NotJson,
    RequestId,
    correlation_key,
    error_message,
    read_envelope,
    request_key,
)
from kernel.gateway.opening import Opening

if TYPE_CHECKING:
    # They load the SDK, which is done beside the first messages.
    from kernel.gateway.sdkside import SdkSide
    from kernel.gateway.server import SurfaceServer
    from kernel.gateway.short import ToolCall

DRAIN_S = 30.0
"""For calls still in flight when the input has ended."""

_ABANDONED_POLL_S = 0.1


async def serve_stdio(
    server: Callable[[], Awaitable[SurfaceServer]],
    opening: Opening,
    pad: scratchpad.Scratchpad,
    fd_in: int,
    fd_out: int,
    *,
    drain_s: float,
    opened: Callable[[], None],
) -> None:
    """Serve one client until its input ends or nobody reads its output; cancellation ends it at once.

    The descriptors stay open and are left as they were found.

    Args:
        server: waits until the SDK is loaded; may be called at once.
        opening: answers the first messages meanwhile.
        pad: where long answers to this client are kept.
        drain_s: how long what is in flight at the end of the input may take.
        opened: called when the first message has been answered, or needs the SDK.
    """
    with non_blocking(fd_in, fd_out):
        await _Session(server, opening, Input(fd_in), Output(fd_out), drain_s, opened).run(pad)


class _Session:
    """One client on one pair of descriptors; the client end of its calls on the short path."""

    modern = False
    capabilities: Mapping[str, Any] = {}

    def __init__(
        self,
        server: Callable[[], Awaitable[SurfaceServer]],
        opening: Opening,
        source: Input,
        output: Output,
        drain_s: float,
        opened: Callable[[], None],
    ) -> None:
        self._server = server
        self._opening = opening
        self._opened = opened
        self._input = source
        self._output = output
        self._drain_s = drain_s
        self._sdk: SdkSide | None = None
        self._sdk_ready = trio.Event()
        self._calls: dict[RequestId, trio.CancelScope] = {}
        self._batched: dict[RequestId, batch.Pending] = {}
        self._settled = trio.Event()

    # ---- client end of calls --------------------------------------------------------------------------------------

    def notify(self, method: str, params: dict[str, Any]) -> None:
        self._post(msgspec.json.encode({"jsonrpc": "2.0", "method": method, "params": params}))

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        raise AssertionError("operations that ask are not on the short path")

    # ---- life -----------------------------------------------------------------------------------------------------

    async def run(self, pad: scratchpad.Scratchpad) -> None:
        # Every task that serves this client is started from here.
        scratchpad.enter(pad)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._output.run)
            nursery.start_soon(self._end_when_broken, nursery.cancel_scope)
            nursery.start_soon(self._bring_in_sdk, nursery)
            async for line in lines(self._input):
                await self._output.room()
                await self._accept(line, nursery)
            await self._drain()
            nursery.cancel_scope.cancel()

    async def _bring_in_sdk(self, nursery: trio.Nursery) -> None:
        server = await self._server()
        from kernel.gateway.sdkside import SdkSide

        self._sdk = SdkSide(server, self._post, self._respond, self._opening.answered)
        nursery.start_soon(self._sdk.run)
        told = 0
        # More may be taken meanwhile; none can be after the last.
        while told < len(self._opening.taken):
            message = self._opening.taken[told]
            await self._sdk.hand_over(message, b'"id"' in message, self._post)
            told += 1
            await self._sdk.handshake_version()
        self._sdk_ready.set()

    async def _end_when_broken(self, scope: trio.CancelScope) -> None:
        await self._output.broken.wait()
        scope.cancel()

    async def _drain(self) -> None:
        """Answer what is in flight, while somebody reads."""
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
        self._settled.set()

    def _post(self, message: bytes) -> None:
        self._output.post(message + b"\n")

    # ---- messages -------------------------------------------------------------------------------------------------

    async def _accept(self, line: Line, nursery: trio.Nursery) -> None:
        if line.excess is not None:
            text = f"Message of more than {MAX_MESSAGE_BYTES} bytes ({MAX_MESSAGE_BYTES >> 20} MiB), the limit"
            self._post(error_message(line.excess.request_id, INVALID_REQUEST, text))
            return
        try:
            envelope = read_envelope(line.data)
        except NotJson as error:
            self._post(error_message(error.request_id, PARSE_ERROR, f"Parse error: {error}"))
            return
        sdk = self._sdk
        if sdk is None or not self._sdk_ready.is_set():
            answer = self._opening.answer(line.data)
            if answer:
                self._post(answer)
            self._opened()
            if answer is not None:
                return
            await self._sdk_ready.wait()
            sdk = self._sdk
            assert sdk is not None
        if envelope is None and batch.is_batch(line.data):
            await self._take_batch(sdk, line.data, nursery)
        else:
            await self._take(sdk, line.data, envelope, nursery, None)

    async def _take_batch(self, sdk: SdkSide, data: bytes, nursery: trio.Nursery) -> None:
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
                await self._take(sdk, message, envelope, nursery, pending)
        pending.seal()

    async def _take(
        self, sdk: SdkSide, data: bytes, envelope: Envelope | None, nursery: trio.Nursery, pending: batch.Pending | None
    ) -> None:
        refuse = self._post if pending is None else pending.add
        key = None if envelope is None else request_key(envelope)
        if pending is not None and key is not None:
            pending.expect()
            if (other := self._batched.get(key)) is not None:
                # The id was used again: an answer to it belongs to the later batch, and holds up no other.
                other.drop()
            self._batched[key] = pending
            refuse = partial(self._respond, key)
        call = None if envelope is None else sdk.recognise(envelope)
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
        self._settled.set()

    async def _serve(self, sdk: SdkSide, call: ToolCall, nursery: trio.Nursery) -> None:
        key = correlation_key(call.id)
        with trio.CancelScope() as scope:
            self._calls[key] = scope
            try:
                # A cancelled call is never answered.
                self._respond(key, (await sdk.short.answer(call, self, nursery, sdk.level(call))).message)
            finally:
                # An id that was used again meanwhile belongs to the later call.
                if self._calls.get(key) is scope:
                    del self._calls[key]
                self._settled.set()
