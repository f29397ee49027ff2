"""The SDK's session with one local client: messages handed over to it, and its answers on their way back.

Made once the SDK is loaded.  It then receives the messages that were answered without it, and its own answers to them
are dropped, so that its idea of the connection is the client's and no request is answered twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import anyio
import trio
from mcp.server.connection import Connection
from mcp.shared.jsonrpc_dispatcher import cancelled_request_id_from_params
from mcp.shared.message import SessionMessage
from mcp_types import (
    PROTOCOL_VERSION_META_KEY,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)
from mcp_types.jsonrpc import jsonrpc_message_adapter
from pydantic import ValidationError

from linckia.services.front.protocol.connections import on_connection, state_of
from linckia.services.front.protocol.fast_path import FastPath, ToolCall
from linckia.services.front.protocol.messages import (
    INVALID_REQUEST,
    NOT_A_MESSAGE,
    PARSE_ERROR,
    Envelope,
    RequestId,
    correlation_key,
    error_message,
    is_call,
    readable_id,
)
from linckia.services.front.protocol.server import SurfaceServer

_LISTEN = "subscriptions/listen"

_log = logging.getLogger("linckia.gateway")


class SdkSession:
    """The SDK's server for one client: `post` sends a message to it, `respond` the answer to a request.

    `answered` are ids of requests that the client has its answer of, `in_hand` those that the SDK has yet to answer.
    """

    def __init__(
        self,
        server: SurfaceServer,
        post: Callable[[bytes], None],
        respond: Callable[[RequestId, bytes], None],
        answered: Iterable[RequestId],
    ) -> None:
        self._server = server
        self.fast_path = FastPath(server)
        self._post = post
        self._respond = respond
        self._answered = set(map(correlation_key, answered))
        self._to_sdk, self._sdk_reads = anyio.create_memory_object_stream[SessionMessage | Exception](16)
        self._sdk_writes, self._from_sdk = anyio.create_memory_object_stream[SessionMessage](16)
        self._connection: Connection | None = None
        self._established = False
        # None until the first request, which decides the era and is the SDK's.
        self._opened_modern: bool | None = None
        self._handshake: RequestId | None = None
        self._shaken = trio.Event()
        self.in_hand: set[RequestId] = set()

    async def run(self) -> None:
        """Serve until cancelled."""
        async with self._to_sdk, trio.open_nursery() as nursery:
            nursery.start_soon(self._write)
            on_connection.set(self._opening)
            await self._server.sdk.run(
                self._sdk_reads, self._sdk_writes, self._server.sdk.create_initialization_options()
            )

    def _opening(self, connection: Connection) -> None:
        self._connection = connection

    async def _write(self) -> None:
        # Closed also when cancelled: messages that the SDK still wants to send are dropped, and delay nothing.
        async with self._from_sdk:
            async for item in self._from_sdk:
                message = item.message
                if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None:
                    self._answer(message, correlation_key(message.id))
                else:
                    self._post(_encoded(message))

    def _answer(self, message: JSONRPCResponse | JSONRPCError, key: RequestId) -> None:
        # The answer to `initialize` is written next: nothing can overtake it from here on.
        self._established = self._connection is not None and self._connection.initialize_accepted
        if key == self._handshake:
            self._handshake = None
            self._shaken.set()
        self.in_hand.discard(key)
        if key in self._answered:
            self._answered.discard(key)
            if isinstance(message, JSONRPCError):
                _log.error("the SDK refused what was answered before it was loaded: %s", message.error)
        else:
            self._respond(key, _encoded(message))

    async def handshake_version(self) -> str | None:
        """The revision that a handshake agreed on, once that is answered; None where there was none."""
        if self._handshake is not None:
            await self._shaken.wait()
        if self._connection is None or not self._established:
            return None
        version: str | None = self._connection.protocol_version
        return version

    def level(self, call: ToolCall) -> str | None:
        """The lowest level of log lines that the client wants of a call."""
        return call.level if call.modern or self._connection is None else state_of(self._connection).level

    def recognise(self, envelope: Envelope) -> ToolCall | None:
        """The call, if the connection and the message are such that the fast path may take it."""
        if not is_call(envelope) or self._opened_modern is None:
            return None
        if not self._opened_modern and not self._established:
            return None
        return self.fast_path.recognise(envelope, modern=self._opened_modern)

    async def hand_over(self, data: bytes, refuse: Callable[[bytes], None]) -> RequestId | None:
        """Give the SDK a message, or have `refuse` send what is wrong with it.

        Returns the request that it withdraws, where it is one of those.
        """
        message: JSONRPCMessage | None
        try:
            message = jsonrpc_message_adapter.validate_json(data, by_name=False)
        except ValidationError as error:
            detail = error.errors(include_input=False, include_url=False)[0]
            if detail["type"] == "json_invalid":
                refuse(error_message(None, PARSE_ERROR, f"Parse error: {detail['msg']}"))
                return None
            message = None
        if message is None:
            refuse(error_message(readable_id(data), INVALID_REQUEST, NOT_A_MESSAGE))
            return None
        withdrawn = None
        match message:
            case JSONRPCNotification(method="notifications/cancelled"):
                cancelled = cancelled_request_id_from_params(message.params)
                withdrawn = None if cancelled is None else correlation_key(cancelled)
                if withdrawn is not None:
                    self.in_hand.discard(withdrawn)
            case JSONRPCRequest():
                if self._opened_modern is None:
                    meta = (message.params or {}).get("_meta")
                    has_envelope = isinstance(meta, dict) and PROTOCOL_VERSION_META_KEY in meta
                    self._opened_modern = message.method != "initialize" and has_envelope
                if message.method == "initialize" and self._handshake is None:
                    self._handshake = correlation_key(message.id)
                    self._shaken = trio.Event()
                if message.method != _LISTEN:
                    self.in_hand.add(correlation_key(message.id))
        await self._to_sdk.send(SessionMessage(message))
        return withdrawn


def _encoded(message: JSONRPCMessage) -> bytes:
    return message.model_dump_json(by_alias=True, exclude_unset=True).encode()
