"""Dispatches every request: ordinary tool calls to the fast path, lists to `lists`, all others to the SDK.

All return the SDK's answers, which a test checks.  Only requests that need the SDK wait for it to load.  Greetings
never get here: `services.front.protocol.handshake` answers them.

The fast path answers an ordinary `tools/call` in a third of the time.  The SDK spends a task, two memory streams, four
pydantic passes and a context object on each request; an ordinary call needs none of them.  The fast path takes only
calls that the SDK would answer in the same way: well-formed calls of tools with structured content, on an established
connection.  For any other request `recognise` returns None.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import trio
from msgspec import UNSET, Raw, UnsetType

from proto.errors import LinckiaError
from proto.json_types import JsonObject
from proto.mcp import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    INTERNAL_ERROR,
    LOG_LEVEL,
    MODERN_VERSIONS,
    SERVER_INFO,
    TOOLS_CALL,
    VERSION,
    RequestId,
    RequestMeta,
)
from proto.names import module
from proto.operation import CLIENT, Access, Operation
from proto.ops.tasks import Schedule, TaskStart
from proto.origin import Origin
from proto.wire.front import SERVICE
from services.front.mounted.mounted import KNOWN_S
from services.front.mounted.requests import MountedRequests
from services.front.protocol import lists
from services.front.protocol.calls import as_error, completed, encoded_tool_result, may_be_written, perform
from services.front.protocol.client_requests import CallClient, CallRequests
from services.front.protocol.failures import as_failure, as_tool_result, is_protocol_error, message_of
from services.front.protocol.handshake import agree, is_usual_envelope
from services.front.protocol.messages import Answer, Envelope, error_message, has_envelope, is_call, turn
from services.front.protocol.served import Served
from services.front.protocol.session import Request
from services.front.surfaces.steps import NAMES
from services.front.tasks import declares, is_long
from services.front.terse import Terse
from services.runtime.dispatch import Dispatcher

if TYPE_CHECKING:
    from services.front.mounted.requests import LoadSdk

SDK: Final = module("services.front.protocol.server")
"""Module that loads the SDK."""


class _Meta(RequestMeta, gc=False):
    version: str | UnsetType = msgspec.field(default=UNSET, name=VERSION)
    capabilities: Raw | UnsetType = msgspec.field(default=UNSET, name=CLIENT_CAPABILITIES)
    info: Raw | UnsetType = msgspec.field(default=UNSET, name=CLIENT_INFO)
    level: str | UnsetType = msgspec.field(default=UNSET, name=LOG_LEVEL)


class _Params(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: str
    arguments: JsonObject | None = None
    meta: _Meta | UnsetType = msgspec.field(default=UNSET, name="_meta")


class Tool(NamedTuple):
    """What the fast path needs to know of a tool.

    Attributes:
        taken: whether the fast path may answer its calls.
        dispatcher: makes its calls; an ordinary one's directly.
        written: whether only the JSON of its result is needed.
        bounds: whether long answers are truncated.
        terse: omits the members of its result that say nothing.
    """

    operation: Operation[object]
    taken: bool
    dispatcher: Dispatcher
    is_long: bool
    written: bool
    bounds: bool
    terse: Terse | None


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """A call that the fast path can answer."""

    id: RequestId
    operation: Operation[object]
    tool: Tool
    arguments: JsonObject
    origin: Origin
    modern: bool = False
    token: RequestId | None = None
    level: str | None = None
    # As the client sent them, unchecked.
    capabilities: Mapping[str, Any] = {}
    task: object = None

    @property
    def may_be_task(self) -> bool:
        """Whether the answer may be a task, which the SDK sends."""
        long_ = self.modern and self.tool.is_long and declares(self.capabilities)
        return self.task is not None or long_


_decode_params = msgspec.json.Decoder(_Params).decode
_encode = msgspec.json.Encoder().encode


class FastPath:
    """The fast path of one surface."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._surface = served.surface
        self._is_reference = served.surface.is_reference
        self._tools: dict[str, Tool] = {}
        self._stamp = {SERVER_INFO: served.info}
        self._modern_tail = b',"resultType":"complete","_meta":%b' % _encode(self._stamp)

    def recognise(self, envelope: Envelope, origin: Origin, *, modern: bool) -> ToolCall | None:
        """Return the call if the fast path can answer it, otherwise None."""
        request_id, params = envelope.id, envelope.params
        if not isinstance(request_id, int | str) or isinstance(params, UnsetType):
            return None
        try:
            decoded = _decode_params(params)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        operation, meta, arguments = self._surface.called.get(decoded.name), decoded.meta, decoded.arguments or {}
        if operation is None or not (tool := self.tool(operation)).taken:
            return None
        if isinstance(meta, UnsetType):
            return None if modern else ToolCall(request_id, operation, tool, arguments, completed(origin, None, None))
        origin = completed(origin, meta.traceparent, meta.key)
        token = None if isinstance(meta.progress_token, UnsetType) else meta.progress_token
        if not modern:
            if not isinstance(meta.version, UnsetType):
                return None
            return ToolCall(request_id, operation, tool, arguments, origin, False, token, None, task=meta.task)
        level = None if isinstance(meta.level, UnsetType) else meta.level
        capabilities = _capabilities(meta, level)
        if capabilities is None:
            return None
        return ToolCall(request_id, operation, tool, arguments, origin, True, token, level, capabilities, meta.task)

    def tool(self, operation: Operation[object]) -> Tool:
        """Return what is known of a tool, for as long as its declaration stays the same."""
        known = self._tools.get(operation.name)
        if known is None or known.operation is not operation:
            served, is_long_ = self._served, is_long(operation)
            is_direct = not is_long_ and not _is_composite(operation) and operation.params not in (TaskStart, Schedule)
            known = self._tools[operation.name] = Tool(
                operation,
                self._takes(operation),
                served.direct if is_direct else served.dispatcher,
                is_long_,
                may_be_written(operation),
                self._surface.bounds(operation),
                self._surface.terse(operation),
            )
        return known

    def _takes(self, operation: Operation[object]) -> bool:
        if operation.asks or operation.name in self._surface.custom_headers:
            return False
        rules = self._served.rules
        if rules and (_is_composite(operation) or rules.choose(operation)):
            # The client may be asked to approve it.
            return False
        return not operation.is_content or _is_composite(operation)

    async def answer(self, call: ToolCall, client: CallClient, nursery: trio.Nursery, level: str | None) -> Answer:
        """Make the call and return its answer.

        Args:
            level: the lowest level of log lines that the client wants of this call.
        """
        operation = call.operation
        try:
            params = operation.parse(call.arguments, reference=self._is_reference)
            client_requests = CallRequests(client, nursery, token=call.token, level=level)
            value = await perform(
                call.tool.dispatcher,
                operation,
                params,
                client_requests,
                call.origin,
                written=call.tool.written,
            )
            tail = self._modern_tail if call.modern else b""
            head = b'{"jsonrpc":"2.0","id":%b,"result":' % _encode(call.id)
            bounds, terse = call.tool.bounds, call.tool.terse
            encoded = await encoded_tool_result(operation, params, value, tail, head, b"}", bounds=bounds, terse=terse)
            return Answer(encoded)
        except Exception as error:  # noqa: BLE001  # the edge: a defect is this call's answer, and is logged
            return self.failed(call, error)

    def failed(self, call: ToolCall, error: Exception) -> Answer:
        """Return the answer to a call that failed with `error`."""
        failure = self._surface.steps.spoken_failure(as_failure(error, call.operation.name))
        if is_protocol_error(call.operation, failure, modern=call.modern):
            refused = as_error(failure)
            return Answer(error_message(call.id, refused.code, refused.message, refused.data), refused.code)
        result = as_tool_result(failure)
        if call.modern:
            result["resultType"] = "complete"
            result["_meta"] = {**result["_meta"], **self._stamp}
        return Answer(_encode({"jsonrpc": "2.0", "id": call.id, "result": result}))


def _is_composite(operation: Operation[object]) -> bool:
    return operation.service == SERVICE and operation.name in NAMES


def _capabilities(meta: _Meta, level: str | None) -> JsonObject | None:
    """Return the capabilities in an envelope of 2026-07-28; None if it is invalid, which the SDK explains."""
    if meta.version not in MODERN_VERSIONS or isinstance(meta.capabilities, UnsetType):
        return None
    envelope: JsonObject = {VERSION: meta.version}
    try:
        # Their form is checked below.
        capabilities: JsonObject = msgspec.json.decode(meta.capabilities)
        envelope[CLIENT_CAPABILITIES] = capabilities
        if not isinstance(meta.info, UnsetType):
            envelope[CLIENT_INFO] = msgspec.json.decode(meta.info)
        if level is not None:
            envelope[LOG_LEVEL] = level
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return capabilities if is_usual_envelope(envelope) or _sdk_accepts(envelope, meta.version) else None


def _sdk_accepts(envelope: JsonObject, version: str) -> bool:
    """Whether the SDK accepts an envelope in an unusual form; False as long as it is not loaded."""
    if SDK not in sys.modules:
        return False
    from mcp_types import methods
    from pydantic import ValidationError

    try:
        methods.validate_client_request(TOOLS_CALL, version, {"name": "", "_meta": envelope})
    except ValidationError:
        return False
    return True


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
        if call is None or request.headers is None:
            return call
        shown = call.operation.shown_as(self._served.surface.name)
        return call if agree(request.headers, TOOLS_CALL, shown) else None

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
            return ToolCall(envelope.id, tool, self._fast_path.tool(tool), {}, _UNKNOWN, modern=has_envelope(envelope))
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
