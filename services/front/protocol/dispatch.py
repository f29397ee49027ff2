"""Dispatches every request: ordinary tool calls to the fast path, lists to `lists`, all others to the SDK.

All return the SDK's answers, which a test checks; the fast path takes a third of the time.  Only requests that need the
SDK wait for it to load.  Greetings never get here: `services.front.protocol.handshake` answers them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from proto.errors import LinckiaError
from proto.operation import CLIENT, Access
from proto.origin import Origin
from services.front.long_messages import turn
from services.front.mounted.mounted import KNOWN_S
from services.front.mounted.requests import MountedRequests
from services.front.protocol import lists
from services.front.protocol.client_requests import CallClient
from services.front.protocol.failures import message_of
from services.front.protocol.fast_path import FastPath, ToolCall
from services.front.protocol.handshake import agree
from services.front.protocol.messages import (
    INTERNAL_ERROR,
    TOOLS_CALL,
    Answer,
    Envelope,
    RequestId,
    error_message,
    has_envelope,
    is_call,
)
from services.front.protocol.served import Served
from services.front.protocol.session import Request

if TYPE_CHECKING:
    from services.front.mounted.requests import LoadSdk

_UNKNOWN: Final = Origin(CLIENT)
"""The origin of calls that are only looked at, not made."""


class MessageDispatcher:
    """Answers the requests of one surface.

    Args:
        load: waits until the SDK is loaded, and returns its server of the surface.
    """

    def __init__(self, served: Served, load: LoadSdk) -> None:
        self._served = served
        self._load = load
        self._fast_path = FastPath(served)
        self._mounted = MountedRequests(served, load)

    async def answer(self, request: Request) -> Answer | None:
        """Answer a request; return None if its client has withdrawn it."""
        try:
            if request.scope.cancel_called:
                return None
            with request.scope:
                await turn(request.envelope.size)
                call = self._recognise(request)
                # The parameters are encoded for the service next.
                await turn(request.envelope.size)
                if call is not None:
                    return await self._call(request, call)
                if is_call(request.envelope):
                    # It may be the tool of a mounted server, which a front that has just started does not know yet.
                    await self._served.mounted.complete(KNOWN_S)
                answer = await lists.answer(self._served, request) or await self._mounted.answer(request)
                return answer or await self._by_sdk(request)
            return None
        finally:
            request.done()

    async def _by_sdk(self, request: Request) -> Answer:
        server = await self._load()
        from services.front.protocol import sdk

        return await sdk.serve(server.sdk, request)

    def _recognise(self, request: Request) -> ToolCall | None:
        """Return the call if the fast path may answer the request."""
        session = request.session
        if not session.admits_requests or not is_call(request.envelope):
            return None
        assert session.modern is not None
        call = self._fast_path.recognise(request.envelope, request.origin, modern=session.modern)
        if call is not None and call.may_be_task:
            return None
        if call is None or request.headers is None or agree(request.headers, TOOLS_CALL, call.operation.name):
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
            return ToolCall(envelope.id, tool, {}, _UNKNOWN, modern=has_envelope(envelope))
        recognise = partial(self._fast_path.recognise, envelope, _UNKNOWN)
        return recognise(modern=False) or recognise(modern=True)

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
