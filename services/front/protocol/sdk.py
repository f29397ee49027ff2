"""Serves one request with the SDK's server, through its public function `serve_one`.

The SDK looks up the handler, checks parameters and results against the revision, and shapes the result.  This module
provides what the SDK's own transports would: the context of a request, and the client end of its handler.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import anyio
import mcp_types as types
import msgspec
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.runner import modern_error_data, serve_one
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.shared.inbound import InboundLadderRejection, classify_inbound_request, validate_mcp_param_headers
from mcp.shared.jsonrpc_dispatcher import progress_token_from_params
from mcp.shared.message import ServerMessageMetadata
from mcp.shared.transport_context import TransportContext
from mcp_types import LOG_LEVEL_META_KEY, UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.version import LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS
from msgspec import UnsetType
from pydantic import BaseModel, ValidationError

from proto.errors import InvalidParams, OperationError
from proto.json_types import JsonObject
from proto.mcp import INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR, TOOLS_CALL, ListChanged
from services.front.protocol.client_requests import CallClient
from services.front.protocol.failures import ProtocolError
from services.front.protocol.messages import Answer, Envelope, error_message, has_envelope, notification, result_message
from services.front.protocol.notifier import Notice, Notifier
from services.front.protocol.session import McpSession, Request

Context = ServerRequestContext[Any, Request]
"""The context of a handler; its `request` is a `Request` of `services.front.protocol.session`."""

_PARAM_HEADER = "mcp-param-"


async def serve(sdk: Server[JsonObject], request: Request) -> Answer:
    """Answer a request with the SDK's server."""
    try:
        result = await _serve(sdk, request)
    except Exception as error:  # noqa: BLE001  # the edge: the SDK decides what each error is on the wire
        data = modern_error_data(error)
        return Answer(error_message(request.id, data.code, data.message, data.data), data.code)
    return Answer(result_message(request.id, result))


async def _serve(sdk: Server[JsonObject], request: Request) -> JsonObject:
    method, session = request.method, request.session
    params = _params_of(request.envelope)
    if session.duplex:
        _check_era(request)
    context = RequestContext(request, params)
    connection = _modern_connection(sdk, request, params) if session.modern else _connection(session, context)
    result = await serve_one(sdk, context, method, params, connection=connection, lifespan_state={})
    if method == "initialize" and not session.modern:
        session.open(params or {}, connection.protocol_version)
    return result


def _params_of(envelope: Envelope) -> JsonObject | None:
    if isinstance(envelope.params, UnsetType):
        return None
    try:
        params: JsonObject | None = msgspec.json.decode(envelope.params)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MCPError(code=PARSE_ERROR, message=f"Parse error: {error}") from None
    return params


def _check_era(request: Request) -> None:
    """Raise MCPError if the request belongs to another era than the client's first request on this pipe."""
    if request.session.modern and request.method == "initialize":
        raise MCPError(
            code=UNSUPPORTED_PROTOCOL_VERSION,
            message="connection is serving the 2026-07-28 protocol; the initialize handshake is not accepted",
            data={"supported": list(MODERN_PROTOCOL_VERSIONS), **_requested(request)},
        )
    if not request.session.modern and request.method != "initialize" and has_envelope(request.envelope):
        raise MCPError(
            code=INVALID_REQUEST,
            message="this connection serves the handshake protocol era; "
            "requests carrying the 2026-07-28 envelope are not accepted on it",
        )


def _requested(request: Request) -> JsonObject:
    version = (_params_of(request.envelope) or {}).get("protocolVersion")
    return {"requested": version} if isinstance(version, str) else {}


def _connection(session: McpSession, context: RequestContext) -> Connection:
    """Return the SDK's view of a session with a handshake, which may not have happened yet."""
    if session.client_params is None and session.client:
        # If the SDK does not accept what the client declared, it is treated as undeclared.
        session.client_params = _client_params(session)
    version = session.version or LATEST_HANDSHAKE_VERSION
    connection = Connection(context, protocol_version=version, client_params=session.client_params)
    if session.is_open:
        connection.initialized.set()
    return connection


def _client_params(session: McpSession) -> types.InitializeRequestParams | None:
    try:
        return types.InitializeRequestParams.model_validate(session.client, by_name=False)
    except ValidationError:
        return None


def check_modern(sdk: Server[JsonObject], request: Request) -> None:
    """Raise ProtocolError if the envelope or the headers of a request of 2026-07-28 are wrong."""
    try:
        _modern_connection(sdk, request, _params_of(request.envelope))
    except MCPError as error:
        raise ProtocolError(error.error.code, error.error.message, error.error.data) from None


def as_mcp_error(error: ProtocolError) -> MCPError:
    """Return the error that a handler raises for the SDK to send."""
    return MCPError(code=error.code, message=error.message, data=error.data)


def _modern_connection(sdk: Server[JsonObject], request: Request, params: JsonObject | None) -> Connection:
    """Return the SDK's view of a request of 2026-07-28.  Raises MCPError if its envelope or headers are wrong."""
    body = {"method": request.method, "params": params}
    route = classify_inbound_request(body, headers=request.headers)
    if not isinstance(route, InboundLadderRejection):
        rejection = _param_header_fault(sdk, request, params or {})
        if rejection is None:
            return Connection.from_envelope(route.protocol_version, route.client_info, route.client_capabilities)
        route = rejection
    raise MCPError(code=route.code, message=route.message, data=route.data)


def _param_header_fault(sdk: Server[JsonObject], request: Request, params: JsonObject) -> InboundLadderRejection | None:
    """Return the error for `Mcp-Param-*` headers that do not match a `tools/call`, if there is one."""
    name, arguments = params.get("name"), params.get("arguments") or {}
    if request.headers is None or request.method != TOOLS_CALL or not isinstance(name, str):
        return None
    if not isinstance(arguments, Mapping) or sdk.get_tool_input_schema is None:
        return None
    if not arguments and not any(header.startswith(_PARAM_HEADER) for header in request.headers):
        return None
    schema = sdk.get_tool_input_schema(name)
    return None if schema is None else validate_mcp_param_headers(schema, arguments, request.headers)


class RequestContext:
    """The SDK's `DispatchContext` of a request; messages of its handler go to the request's channel."""

    def __init__(self, request: Request, params: JsonObject | None) -> None:
        session = request.session
        self.can_send_request = session.reachable and not session.modern
        kind = "stdio" if session.duplex else "streamable-http"
        self.transport = TransportContext(kind=kind, can_send_request=self.can_send_request, headers=request.headers)
        self.request_id = request.id
        self.message_metadata = ServerMessageMetadata(request_context=request)
        # Never set: withdrawing a request cancels its scope.
        self.cancel_requested = anyio.Event()
        self._request = request
        self._token = progress_token_from_params(params)

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Ask the client.  Raises MCPError if it refuses or cannot be asked."""
        if not self.can_send_request:
            raise NoBackChannelError(method)
        response = await self._request.session.ask(method, params, self._request.channel)
        if not isinstance(response.error, UnsetType):
            raise MCPError.from_error_data(_error_data(response.error))
        assert not isinstance(response.result, UnsetType)
        result: dict[str, Any] = msgspec.json.decode(response.result)
        return result

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        await self._request.channel.room()
        self._request.channel.send(notification(method, params))

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        if self._token is None:
            return
        optional = {"total": total, "message": message}
        more = {name: value for name, value in optional.items() if value is not None}
        await self.notify("notifications/progress", {"progressToken": self._token, "progress": progress, **more})


def _error_data(error: msgspec.Raw) -> types.ErrorData:
    try:
        return types.ErrorData.model_validate_json(bytes(error))
    except ValidationError:
        return types.ErrorData(code=INTERNAL_ERROR, message="the error in its response is malformed")


def is_modern(ctx: Context) -> bool:
    """Whether the request uses a revision without a handshake."""
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


def reporting_level(ctx: Context) -> str | None:
    """Return the lowest level of log lines that the client of this request wants; None for no log lines."""
    if not is_modern(ctx):
        return session_of(ctx).state.level
    meta = (ctx.params or {}).get("_meta")
    level = meta.get(LOG_LEVEL_META_KEY) if isinstance(meta, Mapping) else None
    return level if isinstance(level, str) else None


_REQUESTS: dict[str, tuple[type[types.ServerRequest], type[BaseModel]]] = {
    "elicitation/create": (types.ElicitRequest, types.ElicitResult),
    "sampling/createMessage": (types.CreateMessageRequest, types.CreateMessageResult),
    "roots/list": (types.ListRootsRequest, types.ListRootsResult),
}


class HandlerClient(CallClient):
    """The client end of a call that one of the SDK's handlers makes; it can ask the client."""

    def __init__(self, ctx: Context) -> None:
        declared = ctx.session.client_capabilities
        capabilities = {} if declared is None else declared.model_dump(by_alias=True, mode="json", exclude_none=True)
        super().__init__(request_of(ctx).channel.send, capabilities, modern=is_modern(ctx))
        self._ctx = ctx

    async def request(self, method: str, params: JsonObject) -> JsonObject:
        request_type, result_type = _REQUESTS[method]
        try:
            request = request_type.model_validate({"method": method, "params": params}, by_name=False)
        except ValidationError as error:
            raise InvalidParams(f"{method}: {error.errors()[0]['msg']}", field="params") from None
        related = ServerMessageMetadata(related_request_id=self._ctx.request_id)
        try:
            result = await self._ctx.session.send_request(request, result_type, metadata=related)
        except MCPError as error:
            raise OperationError(f"the client did not answer {method}: {error.error.message}") from None
        except (ValidationError, ValueError):
            raise OperationError(f"the client's answer to {method} is malformed") from None
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)


def request_of(ctx: Context) -> Request:
    """Return the request that a handler serves."""
    assert ctx.request is not None
    return ctx.request


def session_of(ctx: Context) -> McpSession:
    """Return the session that the request belongs to."""
    return request_of(ctx).session


_LISTS: dict[str, Callable[[], ServerEvent]] = {
    "tools": ToolsListChanged,
    "prompts": PromptsListChanged,
    "resources": ResourcesListChanged,
}


def subscription_bus(notifier: Notifier, surface: str) -> InMemorySubscriptionBus:
    """Return a bus that forwards all notices about a surface to `subscriptions/listen`."""
    bus = InMemorySubscriptionBus()

    async def publish(notice: Notice, surfaces: Collection[str] | None) -> None:
        if surfaces is not None and surface not in surfaces:
            return
        await bus.publish(_LISTS[notice.list]() if isinstance(notice, ListChanged) else ResourceUpdated(uri=notice.uri))

    notifier.listeners.append(publish)
    return bus
