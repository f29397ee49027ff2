"""Dispatches every request: ordinary tool calls to the fast path, all others to the SDK.

Both return the same answers, which a test checks; the fast path takes a third of the time.  Greetings never get here:
`services.front.protocol.handshake` answers them, because they must not wait for the SDK to load.
"""

from __future__ import annotations

from collections.abc import Mapping

from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    decode_header_value,
)
from mcp_types.version import LATEST_MODERN_VERSION

from linckia.proto.errors import LinckiaError
from linckia.proto.operation import Access
from linckia.services.front.mounted.requests import MountedRequests
from linckia.services.front.protocol import sdk
from linckia.services.front.protocol.client_requests import CallClient
from linckia.services.front.protocol.failures import message_of
from linckia.services.front.protocol.fast_path import FastPath, ToolCall
from linckia.services.front.protocol.messages import (
    INTERNAL_ERROR,
    TOOLS_CALL,
    Answer,
    Envelope,
    RequestId,
    error_message,
    has_envelope,
    is_call,
)
from linckia.services.front.protocol.server import SurfaceServer
from linckia.services.front.protocol.session import Request


class MessageDispatcher:
    """Answers the requests of one surface."""

    def __init__(self, server: SurfaceServer) -> None:
        self._server = server
        self._fast_path = FastPath(server)
        self._mounted = MountedRequests(server, server.mounted.catalogue, server.mounted.names)

    async def answer(self, request: Request) -> Answer | None:
        """Answer a request; return None if its client has withdrawn it."""
        try:
            if request.scope.cancel_called:
                return None
            with request.scope:
                call = self._recognise(request)
                if call is None:
                    mounted = await self._mounted.answer(request)
                    if mounted is not None:
                        return mounted
                    return await sdk.serve(self._server.sdk, request)
                return await self._call(request, call)
            return None
        finally:
            request.done()

    def _recognise(self, request: Request) -> ToolCall | None:
        """Return the call if the fast path may answer the request."""
        session = request.session
        if request.method != TOOLS_CALL or session.modern is None or not (session.modern or session.is_open):
            return None
        if not is_call(request.envelope):
            return None
        call = self._fast_path.recognise(request.envelope, modern=session.modern)
        if call is not None and call.may_be_task:
            return None
        if call is None or request.headers is None or _agree(request.headers, call):
            return call
        return None

    async def _call(self, request: Request, call: ToolCall) -> Answer:
        session = request.session
        capabilities = call.capabilities if call.modern else session.capabilities
        client = CallClient(request.channel.send, capabilities, modern=call.modern)
        level = call.level if call.modern else session.state.level
        return await self._fast_path.answer(call, client, request.nursery, level)

    def tool_call(self, envelope: Envelope) -> ToolCall | None:
        """Return the tool call in a message of either era."""
        if not is_call(envelope):
            return None
        tool = self._mounted.tool(envelope)
        if tool is not None:
            assert isinstance(envelope.id, int | str)
            return ToolCall(envelope.id, tool, {}, modern=has_envelope(envelope))
        return self._fast_path.recognise(envelope, modern=False) or self._fast_path.recognise(envelope, modern=True)

    def interrupted(
        self, envelope: Envelope | None, request_id: RequestId, *, reading: LinckiaError, other: LinckiaError
    ) -> Answer:
        """Return the answer to a request whose process ended while serving it.

        Args:
            reading: the error for a call that only reads.
            other: the error for any other request.
        """
        call = None if envelope is None else self.tool_call(envelope)
        if call is None:
            return Answer(error_message(request_id, INTERNAL_ERROR, message_of(other.failure)), INTERNAL_ERROR)
        return self._fast_path.failed(call, reading if call.operation.access is Access.READ else other)


def _agree(headers: Mapping[str, str], call: ToolCall) -> bool:
    """Whether the HTTP headers match this call, as 2026-07-28 requires."""
    name = headers.get(MCP_NAME_HEADER)
    return (
        headers.get(MCP_PROTOCOL_VERSION_HEADER) == LATEST_MODERN_VERSION
        and headers.get(MCP_METHOD_HEADER) == TOOLS_CALL
        and name is not None
        and decode_header_value(name) == call.operation.name
    )
