"""The MCP server of one surface: the SDK's low-level server with handlers that call the dispatcher.

It supports every revision from 2024-11-05 to 2026-07-28.  Handlers raise only `MCPError`, so that no client sees a
traceback or an opaque failure.
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Mapping
from typing import Any

import mcp_types as types
from mcp.server.caching import CacheableMethod, CacheHint
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp.shared.jsonrpc_dispatcher import progress_token_from_params
from mcp_types import INVALID_PARAMS

from proto.json_types import JsonObject
from proto.mcp import KEY, TASK, TOOLS_CALL
from proto.operation import Operation, Params, Role
from proto.ops import Table
from services.front.mounted.surface import MountSurface
from services.front.mounted.tools import MountedTool
from services.front.protocol import calls, completion, lists, skills, tasks
from services.front.protocol.client_requests import LEVELS, CallRequests, InputRequired, merged_answers
from services.front.protocol.failures import as_failure, as_tool_result, is_protocol_error
from services.front.protocol.handshake import LIST_FRESH_MS, NAME, TITLE, lists_of, offered
from services.front.protocol.notifier import Notifier
from services.front.protocol.sdk import (
    Context,
    HandlerClient,
    as_mcp_error,
    is_modern,
    reporting_level,
    request_of,
    session_of,
    subscription_bus,
)
from services.front.protocol.served import Served
from services.front.scratchpad import Scratchpads
from services.front.surfaces.steps import NAMES
from services.front.surfaces.surface import Surface
from services.front.tasks import TaskHandle, Wanted, declares, wanted_by

_LEGACY_RESOURCE_NOT_FOUND = -32002
"""Error code of the revisions before 2026-07-28; later ones use -32602."""

_FRESHNESS: dict[CacheableMethod, CacheHint] = {
    "server/discover": CacheHint(LIST_FRESH_MS, "public"),
    "tools/list": CacheHint(lists.FRESH_MS["tools/list"], "public"),
    "prompts/list": CacheHint(lists.FRESH_MS["prompts/list"], "public"),
    "resources/list": CacheHint(lists.FRESH_MS["resources/list"], "public"),
    "resources/templates/list": CacheHint(lists.FRESH_MS["resources/templates/list"], "public"),
    "resources/read": CacheHint(0, "private"),
}
"""How long clients may cache results; the contents of resources not at all."""


class SurfaceServer:
    """The handlers of one surface; `sdk` is the SDK's server that uses them."""

    def __init__(
        self,
        served: Served,
        table: Table,
        notifier: Notifier,
        scratchpads: Scratchpads,
    ) -> None:
        self.served = served
        self.surface = surface = served.surface
        self.mounted = served.mounted
        self.dispatcher = dispatcher = served.dispatcher
        self._table = table
        self.notifier = notifier
        self.scratchpads = scratchpads
        self.listening = ListenHandler(subscription_bus(notifier, surface.name))
        # Arguments of the SDK's constructor, functions of different types, which it checks.
        handlers: JsonObject = {
            "on_list_tools": self._list_tools,
            "on_call_tool": self._call_tool,
            "on_set_logging_level": self._set_level,
            "on_subscriptions_listen": self._listen,
        }
        capabilities = offered(surface)
        if surface.capabilities is not None:
            # A mounted server may offer more later.
            capabilities = {"resources": {}, "prompts": {}, "completions": {}}
        if "resources" in capabilities:
            handlers |= {
                "on_list_resources": self._list_resources,
                "on_list_resource_templates": self._list_templates,
                "on_read_resource": self._read_resource,
                "on_subscribe_resource": self._subscribe,
                "on_unsubscribe_resource": self._unsubscribe,
            }
        if "prompts" in capabilities:
            handlers |= {"on_list_prompts": self._list_prompts, "on_get_prompt": self._get_prompt}
        if "completions" in capabilities:
            handlers["on_completion"] = self._complete_argument
        with warnings.catch_warnings():
            # Logging is deprecated as of 2026-07-28, but earlier revisions use it.
            warnings.simplefilter("ignore", MCPDeprecationWarning)
            self.sdk: Server[JsonObject] = Server(
                NAME,
                version=served.version,
                title=TITLE,
                instructions=surface.instructions or None,
                cache_hints=_FRESHNESS,
                get_tool_input_schema=self._input_schema,
                **handlers,
            )
        if surface.is_whole:
            skills.install(self.sdk)
        if surface.has_tasks:
            tasks.install(self.sdk, surface, dispatcher)
        # Replaces the SDK's span per message: the router propagates the client's trace context itself.
        self.sdk.middleware[:] = [
            RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience=NAME),
            self._offer,
        ]

    @property
    def lists(self) -> frozenset[str]:
        """The lists of the surface that can change."""
        return lists_of(offered(self.surface))

    async def _offer(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Declare in the handshake what the surface offers now, and that lists can change, for which the SDK's server
        has no setting."""
        result = await call_next(ctx)
        if ctx.method in ("initialize", "server/discover") and isinstance(result, dict):
            own: JsonObject = {"capabilities": offered(self.surface)}
            if self.surface.server_info is not None and ctx.method == "initialize":
                own["serverInfo"] = self.surface.server_info
            return {**result, **own}
        return result

    def _input_schema(self, name: str) -> Mapping[str, Any] | None:
        operation = self.surface.called.get(name)
        if isinstance(operation, MountedTool):
            schema = operation.definition.get("inputSchema")
            return schema if isinstance(schema, dict) else None
        return None if operation is None else operation.input_schema

    async def _list_tools(self, ctx: Context, params: types.PaginatedRequestParams | None) -> Any:
        return await self._page(ctx, "tools/list", params)

    async def _list_resources(self, ctx: Context, params: types.PaginatedRequestParams | None) -> Any:
        return await self._page(ctx, "resources/list", params)

    async def _list_templates(self, ctx: Context, params: types.PaginatedRequestParams | None) -> Any:
        return await self._page(ctx, "resources/templates/list", params)

    async def _list_prompts(self, ctx: Context, params: types.PaginatedRequestParams | None) -> Any:
        return await self._page(ctx, "prompts/list", params)

    async def _page(self, ctx: Context, method: str, params: types.PaginatedRequestParams | None) -> JsonObject:
        """Return a whole list as one page; so no cursor is valid."""
        if params is not None and params.cursor is not None:
            message = "Unknown cursor; this list has one page"
            raise MCPError(code=INVALID_PARAMS, message=message, data={"field": "cursor"})
        return _complete(await lists.result(self.served, method, request_of(ctx).origin))

    async def _call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> Any:
        operation = self.surface.called.get(params.name)
        if operation is None:
            raise as_mcp_error(calls.unknown_tool(params.name, self.surface))

        async def call() -> JsonObject:
            parsed = operation.parse(params.arguments or {}, reference=self.surface.is_reference)
            value = await self._perform(ctx, operation, parsed, params.request_state)
            if isinstance(value, TaskHandle) and _declares_tasks(ctx):
                return tasks.created(value.task)
            return calls.tool_result(self.surface, operation, parsed, value)

        return await _answered(ctx, self.surface, operation, call())

    async def _read_resource(self, ctx: Context, params: types.ReadResourceRequestParams) -> Any:
        uri = str(params.uri)
        if self.surface.is_whole and (file := skills.read(uri)) is not None:
            return file
        found = self.surface.find_resource(uri)
        if found is None:
            code = INVALID_PARAMS if is_modern(ctx) else _LEGACY_RESOURCE_NOT_FOUND
            raise MCPError(code=code, message=f"Resource not found: {uri}", data={"uri": uri})
        operation, arguments = found

        async def read() -> JsonObject:
            # The parameters in a URI are text, so numbers are parsed.
            parsed = operation.parse(arguments, strict=False)
            value = await self._perform(ctx, operation, parsed, params.request_state)
            return calls.resource_result(operation, uri, value)

        return await _answered(ctx, self.surface, operation, read())

    async def _get_prompt(self, ctx: Context, params: types.GetPromptRequestParams) -> Any:
        operation = self.surface.prompts.get(params.name)
        grant = request_of(ctx).origin.grant
        filled = await self.served.prompts.get(params.name, grant, own=True)
        if filled is None and operation is None:
            filled = await self.served.prompts.get(params.name, grant, own=False)
        if filled is not None:
            return _complete(filled)
        if operation is None:
            raise MCPError(code=INVALID_PARAMS, message=f"Unknown prompt: {params.name}", data={"prompt": params.name})

        async def fill() -> JsonObject:
            parsed = operation.parse(params.arguments or {}, strict=False)
            filled: JsonObject = calls.plain(await self._perform(ctx, operation, parsed, params.request_state))
            return self.surface.steps.spoken_in(filled)

        return await _answered(ctx, self.surface, operation, fill())

    async def _perform(
        self, ctx: Context, operation: Operation[object], params: Params[object], state: str | None
    ) -> object:
        raw = ctx.params or {}
        answers = merged_answers(state, raw.get("inputResponses"))
        meta = raw.get("_meta") or {}
        client = HandlerClient(ctx)
        client_requests = CallRequests(
            client,
            request_of(ctx).nursery,
            token=progress_token_from_params(raw),
            level=reporting_level(ctx),
            asks=operation.asks,
            approves=self._approves(operation, modern=client.modern),
            answers=answers,
        )
        wants = Wanted.RESULT
        if ctx.method == TOOLS_CALL:
            wants = wanted_by(meta.get(TASK), client.capabilities, modern=client.modern)
        return await calls.perform(
            self.dispatcher, operation, params, client_requests,
            calls.completed(request_of(ctx).origin, meta.get("traceparent"), meta.get(KEY)), tasks=wants,
        )  # fmt: skip

    def _approves(self, operation: Operation[object], *, modern: bool) -> bool:
        """Whether the client may be asked to approve the call, or a step of it."""
        # If a call ends with a question, the client makes it again, but its other steps have already been executed.
        return bool(self.served.rules) and (not modern or operation.name not in NAMES)

    async def _complete_argument(self, ctx: Context, params: types.CompleteRequestParams) -> Any:
        ref, argument = params.ref, params.argument
        if isinstance(ref, types.PromptReference):
            operation = self.surface.prompts.get(ref.name)
        else:
            operation = self.surface.find_template(str(ref.uri))
        if operation is None:
            raise MCPError(code=INVALID_PARAMS, message="The reference names no known prompt or resource template")
        context = dict(params.context.arguments or {}) if params.context is not None else {}

        async def complete() -> JsonObject:
            found = await completion.complete(
                self._table, self.dispatcher, operation, argument.name, argument.value, context, request_of(ctx).origin
            )
            return completion.completion_result(found)

        return await _answered(ctx, self.surface, operation, complete())

    async def _set_level(self, ctx: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
        if params.level not in LEVELS:
            raise MCPError(code=INVALID_PARAMS, message=f"Unknown level; known levels: {', '.join(LEVELS)}")
        session = session_of(ctx)
        session.state.level = params.level
        await session.changed()
        return types.EmptyResult()

    def _check_subscription(self, ctx: Context, uri: str) -> None:
        """Raise MCPError if the client may not subscribe to a resource; notifications are not filtered by root."""
        if (grant := request_of(ctx).origin.grant) is None:
            return
        found = self.surface.find_resource(uri)
        refusal = found[0].refusal(grant) if found is not None else f"Resource not found: {uri}"
        if grant.roots:
            refusal = f"updates of resources cover all roots, but the token {grant.name} is limited to some of them"
        if refusal:
            raise MCPError(code=INVALID_PARAMS, message=refusal, data={"uri": uri})

    async def _listen(self, ctx: Context, params: types.SubscriptionsListenRequestParams) -> Any:
        uris = [str(uri) for uri in params.notifications.resource_subscriptions or ()]
        for uri in uris:
            self._check_subscription(ctx, uri)
        async with self.mounted.listeners.listening(request_of(ctx).origin, self._mounted_resources(uris)):
            return await self.listening(ctx, params)

    def _mounted_resources(self, uris: list[str]) -> list[tuple[str, str]]:
        """Return those of mounted servers, as mounts and their own URIs."""
        if isinstance(self.surface, MountSurface):
            return [(self.surface.name, uri) for uri in uris]
        return [found for uri in uris if (found := self.mounted.names.resource(uri)) is not None]

    async def _subscribe(self, ctx: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        self._check_subscription(ctx, str(params.uri))
        session = session_of(ctx)
        session.state.subscribe(str(params.uri))
        await session.changed()
        return types.EmptyResult()

    async def _unsubscribe(self, ctx: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        session = session_of(ctx)
        session.state.unsubscribe(str(params.uri))
        await session.changed()
        return types.EmptyResult()


def _declares_tasks(ctx: Context) -> bool:
    return is_modern(ctx) and declares(tasks.capabilities_of(ctx))


def _complete(result: dict[str, Any]) -> JsonObject:
    """Add the result type that 2026-07-28 requires; the SDK removes it for earlier revisions."""
    return {"resultType": "complete", **result}


async def _answered(
    ctx: Context, surface: Surface, operation: Operation[object], answering: Awaitable[JsonObject]
) -> Any:
    """Return the result in wire form; questions to the client and a tool's failures are results too.

    Raises MCPError for failures of resources, prompts and completions, which have no error results.
    """
    try:
        return _complete(await answering)
    except InputRequired as required:
        return {"resultType": "input_required", "inputRequests": required.inputs, "requestState": required.state}
    except MCPError:
        raise
    except Exception as error:  # noqa: BLE001  # the edge: a defect is this call's answer, and is logged
        failure = surface.steps.spoken_failure(as_failure(error, operation.name))
        if operation.role is Role.TOOL and not is_protocol_error(operation, failure, modern=is_modern(ctx)):
            return _complete(as_tool_result(failure))
        raise as_mcp_error(calls.as_error(failure)) from None
