"""The fast path: answers an ordinary `tools/call` without the SDK.

The SDK spends a task, two memory streams, four pydantic passes and a context object on each request; an ordinary call
needs none of them.  The fast path takes only calls that the SDK would answer in the same way: well-formed calls of
tools with structured content, on an established connection.  For any other request `recognise` returns None, and the
SDK answers it.  A test runs the same requests through both and compares the answers.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import trio
from msgspec import UNSET, Raw, UnsetType

from proto.json_types import JsonObject
from proto.keys import META
from proto.names import module
from proto.operation import Operation
from proto.origin import Origin
from proto.wire.front import SERVICE
from services.front.protocol.calls import as_error, completed, encoded_tool_result, may_be_written, perform
from services.front.protocol.client_requests import CallClient, CallRequests
from services.front.protocol.failures import as_failure, as_tool_result, is_protocol_error
from services.front.protocol.handshake import MODERN_VERSIONS, SERVER_INFO, is_usual_envelope
from services.front.protocol.messages import TOOLS_CALL, Answer, Envelope, RequestId, error_message
from services.front.protocol.served import Served
from services.front.surfaces.steps import NAMES
from services.front.tasks import META as TASK_META
from services.front.tasks import declares, is_long

SDK: Final = module("services.front.protocol.server")
"""Module that loads the SDK."""

_PREFIX = "io.modelcontextprotocol/"


class _Meta(msgspec.Struct, gc=False):
    progress_token: RequestId | UnsetType = msgspec.field(default=UNSET, name="progressToken")
    # Any type: an invalid traceparent is ignored and does not fail the call.
    traceparent: Any = None
    version: str | UnsetType = msgspec.field(default=UNSET, name=f"{_PREFIX}protocolVersion")
    capabilities: Raw | UnsetType = msgspec.field(default=UNSET, name=f"{_PREFIX}clientCapabilities")
    info: Raw | UnsetType = msgspec.field(default=UNSET, name=f"{_PREFIX}clientInfo")
    level: str | UnsetType = msgspec.field(default=UNSET, name=f"{_PREFIX}logLevel")
    key: Any = msgspec.field(default=UNSET, name=META)
    task: Any = msgspec.field(default=None, name=TASK_META)


class _Params(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: str
    arguments: JsonObject | None = None
    meta: _Meta | UnsetType = msgspec.field(default=UNSET, name="_meta")


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """A call that the fast path can answer."""

    id: RequestId
    operation: Operation[object]
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
        long_ = self.modern and is_long(self.operation) and declares(self.capabilities)
        return self.task is not None or long_


_decode_params = msgspec.json.Decoder(_Params).decode
_encode = msgspec.json.Encoder().encode


class FastPath:
    """The fast path of one surface."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._surface = served.surface
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
        if operation is None or not self._takes(operation):
            return None
        if isinstance(meta, UnsetType):
            return None if modern else ToolCall(request_id, operation, arguments, completed(origin, None, None))
        origin = completed(origin, meta.traceparent, meta.key)
        token = None if isinstance(meta.progress_token, UnsetType) else meta.progress_token
        if not modern:
            if not isinstance(meta.version, UnsetType):
                return None
            return ToolCall(request_id, operation, arguments, origin, False, token, None, task=meta.task)
        level = None if isinstance(meta.level, UnsetType) else meta.level
        capabilities = _capabilities(meta, level)
        if capabilities is None:
            return None
        return ToolCall(request_id, operation, arguments, origin, True, token, level, capabilities, meta.task)

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
            params = operation.parse(call.arguments)
            client_requests = CallRequests(client, nursery, token=call.token, level=level)
            value = await perform(
                self._served.dispatcher,
                operation,
                params,
                client_requests,
                call.origin,
                written=may_be_written(operation),
            )
            tail = self._modern_tail if call.modern else b""
            head = b'{"jsonrpc":"2.0","id":%b,"result":' % _encode(call.id)
            return Answer(await encoded_tool_result(self._served.surface, operation, params, value, tail, head, b"}"))
        except Exception as error:  # noqa: BLE001  # the edge: a defect is this call's answer, and is logged
            return self.failed(call, error)

    def failed(self, call: ToolCall, error: Exception) -> Answer:
        """Return the answer to a call that failed with `error`."""
        failure = as_failure(error, call.operation.name)
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
    envelope: JsonObject = {f"{_PREFIX}protocolVersion": meta.version}
    try:
        # Their form is checked below.
        capabilities: JsonObject = msgspec.json.decode(meta.capabilities)
        envelope[f"{_PREFIX}clientCapabilities"] = capabilities
        if not isinstance(meta.info, UnsetType):
            envelope[f"{_PREFIX}clientInfo"] = msgspec.json.decode(meta.info)
        if level is not None:
            envelope[f"{_PREFIX}logLevel"] = level
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
