"""The fast path: an ordinary `tools/call`, decoded, checked, dispatched and answered without the SDK's machinery.

The SDK spends a task, two memory streams, four pydantic passes and a context object on each request; an ordinary call
needs none of them.  What is taken here is only what the SDK would answer the same way: a call in known form, of a tool
with structured content, on a connection that is established.  All else is left to the SDK (`recognise` answers
None), and a test runs the same requests through both and compares.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import msgspec
import trio
from mcp_types import SERVER_INFO_META_KEY
from mcp_types import methods as protocol_methods
from mcp_types.version import LATEST_MODERN_VERSION
from msgspec import UNSET, Raw, UnsetType
from pydantic import ValidationError

from proto.front import SERVICE
from proto.json_types import JsonObject
from proto.operation import Operation
from proto.surfaces.steps import NAMES
from services.front.protocol.calls import bounded, encoded_tool_result, may_be_written, perform
from services.front.protocol.client_requests import CallRequests, Client
from services.front.protocol.failures import as_failure, as_tool_result, is_protocol_error
from services.front.protocol.messages import TOOLS_CALL, Envelope, RequestId, error_message
from services.front.protocol.server import SurfaceServer, as_error


class _Meta(msgspec.Struct, gc=False):
    progress_token: RequestId | UnsetType = msgspec.field(default=UNSET, name="progressToken")
    # A client may send anything: an invalid trace is dropped, and is no reason to refuse the call.
    traceparent: Any = None
    version: str | UnsetType = msgspec.field(default=UNSET, name="io.modelcontextprotocol/protocolVersion")
    capabilities: Raw | UnsetType = msgspec.field(default=UNSET, name="io.modelcontextprotocol/clientCapabilities")
    info: Raw | UnsetType = msgspec.field(default=UNSET, name="io.modelcontextprotocol/clientInfo")
    level: str | UnsetType = msgspec.field(default=UNSET, name="io.modelcontextprotocol/logLevel")


class _Params(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    name: str
    arguments: JsonObject | None = None
    meta: _Meta | UnsetType = msgspec.field(default=UNSET, name="_meta")


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """A call that the fast path takes."""

    id: RequestId
    operation: Operation[object]
    arguments: JsonObject
    modern: bool
    token: RequestId | None
    level: str | None
    traceparent: str | None
    capabilities: Mapping[str, Any]


_decode_params = msgspec.json.Decoder(_Params).decode
_encode = msgspec.json.Encoder().encode


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A JSON-RPC response, encoded; `code` is that of the error where it is one."""

    message: bytes
    code: int | None = None


_KNOWN_ENVELOPES = 256
"""Distinct `_meta` envelopes of 2026-07-28 remembered as valid; a client sends the same with each request."""


class FastPath:
    """The fast path of one surface."""

    def __init__(self, server: SurfaceServer) -> None:
        self._server = server
        surface = server.surface
        self._tools = {
            name: op
            for name, op in surface.tools.items()
            if not op.asks and (not op.is_content or _is_composite(op)) and name not in surface.custom_headers
        }
        stamp = server.sdk.server_info_stamp
        self._stamp = {SERVER_INFO_META_KEY: stamp}
        self._modern_tail = b',"resultType":"complete","_meta":%b' % _encode(self._stamp)
        self._known: OrderedDict[tuple[bytes, bytes | None, str | None], Mapping[str, Any]] = OrderedDict()

    def recognise(self, envelope: Envelope, *, modern: bool) -> ToolCall | None:
        """The call, if it is one for the fast path."""
        request_id, params = envelope.id, envelope.params
        if not isinstance(request_id, int | str) or isinstance(params, UnsetType):
            return None
        try:
            decoded = _decode_params(params)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        operation = self._tools.get(decoded.name)
        if operation is None:
            return None
        meta = decoded.meta
        if isinstance(meta, UnsetType):
            return None if modern else _plain_call(request_id, operation, decoded.arguments)
        # As the client sent them, by MCP; the reader checks their form.
        capabilities: Mapping[str, Any] = {}
        level = None if isinstance(meta.level, UnsetType) else meta.level
        if modern:
            known = self._envelope(meta, level)
            if known is None:
                return None
            capabilities = known
        elif not isinstance(meta.version, UnsetType):
            return None
        else:
            level = None
        return ToolCall(
            id=request_id,
            operation=operation,
            arguments=decoded.arguments or {},
            modern=modern,
            token=None if isinstance(meta.progress_token, UnsetType) else meta.progress_token,
            level=level,
            traceparent=meta.traceparent if isinstance(meta.traceparent, str) else None,
            capabilities=capabilities,
        )

    def _envelope(self, meta: _Meta, level: str | None) -> Mapping[str, Any] | None:
        """The capabilities in a valid envelope of 2026-07-28; None where the SDK must say what is wrong with it."""
        if meta.version != LATEST_MODERN_VERSION or isinstance(meta.capabilities, UnsetType):
            return None
        key = (bytes(meta.capabilities), None if isinstance(meta.info, UnsetType) else bytes(meta.info), level)
        known = self._known.get(key)
        if known is None:
            try:
                known = msgspec.json.decode(key[0])
                envelope = {
                    "io.modelcontextprotocol/protocolVersion": meta.version,
                    "io.modelcontextprotocol/clientCapabilities": known,
                }
                if key[1] is not None:
                    envelope["io.modelcontextprotocol/clientInfo"] = msgspec.json.decode(key[1])
                if level is not None:
                    envelope["io.modelcontextprotocol/logLevel"] = level
                protocol_methods.validate_client_request(TOOLS_CALL, meta.version, {"name": "", "_meta": envelope})
            except (msgspec.DecodeError, UnicodeDecodeError, ValidationError):
                return None
            self._known[key] = known
            if len(self._known) > _KNOWN_ENVELOPES:
                self._known.popitem(last=False)
        return known

    async def answer(self, call: ToolCall, client: Client, nursery: trio.Nursery, level: str | None) -> Answer:
        """Make the call and answer it.

        Args:
            level: the lowest level of log lines that the client wants of this call.
        """
        operation = call.operation
        try:
            params = operation.parse(call.arguments)
            client_requests = CallRequests(client, nursery, token=call.token, level=level)
            meta = None if call.traceparent is None else {"traceparent": call.traceparent}
            value = await perform(
                self._server.dispatcher, operation, params, client_requests, meta, written=may_be_written(operation)
            )
            value = bounded(self._server.surface, operation, params, value)
            result = encoded_tool_result(operation, value, self._modern_tail if call.modern else b"")
        except Exception as error:  # noqa: BLE001  # the edge: a defect is this call's answer, and is logged
            return self.failed(call, error)
        return Answer(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (_encode(call.id), result))

    def failed(self, call: ToolCall, error: Exception) -> Answer:
        """The answer to a call that ended in `error`."""
        failure = as_failure(error, call.operation.name)
        if is_protocol_error(call.operation, failure, modern=call.modern):
            data = as_error(failure).error
            return Answer(error_message(call.id, data.code, data.message, data.data), data.code)
        result = as_tool_result(failure)
        if call.modern:
            result["resultType"] = "complete"
            result["_meta"] = {**result["_meta"], **self._stamp}
        return Answer(_encode({"jsonrpc": "2.0", "id": call.id, "result": result}))


def _is_composite(operation: Operation[object]) -> bool:
    return operation.service == SERVICE and operation.name in NAMES


def _plain_call(request_id: RequestId, operation: Operation[object], arguments: JsonObject | None) -> ToolCall:
    return ToolCall(
        id=request_id, operation=operation, arguments=arguments or {}, modern=False, token=None, level=None,
        traceparent=None, capabilities={},
    )  # fmt: skip
