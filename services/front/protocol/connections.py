"""What the gateway knows of a client's connection: its state, the client end of calls that come through the SDK, news.

The SDK keeps a `Connection` for each client with a handshake; its `state` is ours to use, its `exit_stack` tells us
of its end.  The SDK's handlers are given no public way to it in 2.3, hence the one private name in `connection_of`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextvars import ContextVar
from typing import Any, TypeAlias

import mcp_types as types
import msgspec
import trio
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import LOG_LEVEL_META_KEY
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ValidationError

from linckia.proto import frames, mcp
from linckia.proto.errors import InvalidParams, OperationError
from linckia.proto.frames import Event
from linckia.proto.json_types import JsonObject
from linckia.services.front.session import SessionState

Context = ServerRequestContext[Any, Any]

STATE, KEEP = "linckia.state", "linckia.keep"
"""Keys in `Connection.state`: what the session has come to (`SessionState`), and what keeps it after a change."""

on_connection: ContextVar[Callable[[Connection], None] | None] = ContextVar("on_connection", default=None)
"""Set by a transport that wants to know the connection whose `initialize` it carries."""


def connection_of(ctx: Context) -> Connection:
    """The connection that a request came on."""
    return ctx.session._connection


def is_modern(ctx: Context) -> bool:
    """Whether the request is of a revision without handshake."""
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


def state_of(connection: Connection) -> SessionState:
    """What the session of this connection has come to."""
    state: SessionState = connection.state.setdefault(STATE, SessionState())
    return state


async def changed(connection: Connection) -> None:
    """Its state was changed: keep it, before the client is told."""
    keep: Callable[[], Awaitable[None]] | None = connection.state.get(KEEP)
    if keep is not None:
        await keep()


def reporting_level(ctx: Context) -> str | None:
    """The lowest level of log lines that the client of this request wants; None for none at all."""
    if not is_modern(ctx):
        return state_of(connection_of(ctx)).level
    meta = (ctx.params or {}).get("_meta")
    level = meta.get(LOG_LEVEL_META_KEY) if isinstance(meta, Mapping) else None
    return level if isinstance(level, str) else None


_REQUESTS: dict[str, tuple[type[types.ServerRequest], type[BaseModel]]] = {
    "elicitation/create": (types.ElicitRequest, types.ElicitResult),
    "sampling/createMessage": (types.CreateMessageRequest, types.CreateMessageResult),
    "roots/list": (types.ListRootsRequest, types.ListRootsResult),
}

_NOTIFICATIONS: dict[str, type[types.ServerNotification]] = {
    "notifications/progress": types.ProgressNotification,
    "notifications/message": types.LoggingMessageNotification,
}


class SdkClient:
    """`services.front.protocol.client_requests.Client` for a call that came through the SDK.

    Notifications leave in order, from a task of the call's own.
    """

    def __init__(self, ctx: Context, nursery: trio.Nursery) -> None:
        self._ctx = ctx
        self._nursery = nursery
        self._send, self._receive = trio.open_memory_channel[types.ServerNotification](math.inf)
        self._sender: trio.Event | None = None
        self.modern = is_modern(ctx)

    @property
    def capabilities(self) -> Mapping[str, Any]:
        declared = self._ctx.session.client_capabilities
        return {} if declared is None else declared.model_dump(by_alias=True, mode="json", exclude_none=True)

    def notify(self, method: str, params: JsonObject) -> None:
        model = _NOTIFICATIONS[method]
        self._send.send_nowait(model.model_validate({"method": method, "params": params}, by_name=False))
        if self._sender is None:
            self._sender = trio.Event()
            self._nursery.start_soon(self._run_sender, self._sender)

    async def _run_sender(self, done: trio.Event) -> None:
        async for notification in self._receive:
            await self._ctx.session.send_notification(notification, related_request_id=self._ctx.request_id)
        done.set()

    async def drain(self) -> None:
        """Until everything notified has been handed to the transport."""
        self._send.close()
        if self._sender is not None:
            await self._sender.wait()

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
        except ValidationError:
            raise OperationError(f"the client's answer to {method} is not in the form of the protocol") from None
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)


# News for clients: lists that changed and resources that were updated.  Clients with a handshake are told on their
# connection (resources: those they subscribed to); clients of 2026-07-28 through `subscriptions/listen`.  A client that
# does not read delays no other, and loses the notice after five seconds.

DELIVERY_TIMEOUT_S = 5.0
"""For one notice to one client; beyond it the client has stopped reading."""

_ListNotice: TypeAlias = ToolsListChanged | PromptsListChanged | ResourcesListChanged

_LISTS: dict[str, tuple[type[_ListNotice], Callable[[Connection], Awaitable[None]]]] = {
    "tools": (ToolsListChanged, Connection.send_tool_list_changed),
    "prompts": (PromptsListChanged, Connection.send_prompt_list_changed),
    "resources": (ResourcesListChanged, Connection.send_resource_list_changed),
}
_SEND = dict(_LISTS.values())

_log = logging.getLogger("linckia.gateway")


class News:
    """Passes events of services on to clients."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.bus = InMemorySubscriptionBus()
        self._nursery = nursery
        self._connections: dict[Connection, tuple[frozenset[type], Collection[str]]] = {}

    def join(self, connection: Connection, lists: frozenset[str], uris: Collection[str]) -> None:
        """Tell this connection from now on until it ends.

        Args:
            lists: those that its surface has; of the others it was never told that they are there.
            uris: the resources that it wants to be told of, at any time.
        """
        if connection not in self._connections:
            self._connections[connection] = frozenset(_LISTS[name][0] for name in lists), uris
            connection.exit_stack.callback(self._connections.pop, connection, None)

    async def receive(self, event: Event) -> None:
        """An event of a service; one that is not in the form of its topic is logged and dropped."""
        notice: ServerEvent
        try:
            if event.topic == mcp.LIST_CHANGED:
                notice = _LISTS[frames.read_body(event.body, mcp.ListChanged).list][0]()
            elif event.topic == mcp.RESOURCE_UPDATED:
                notice = ResourceUpdated(uri=frames.read_body(event.body, mcp.ResourceUpdated).uri)
            else:
                return
        except msgspec.DecodeError as error:
            _log.warning("event %s is not in its form: %s", event.topic, error)
            return
        await self.publish(notice)

    async def publish(self, notice: ServerEvent) -> None:
        """Tell everyone whom `notice` concerns."""
        for connection, (lists, uris) in list(self._connections.items()):
            if notice.uri in uris if isinstance(notice, ResourceUpdated) else type(notice) in lists:
                self._nursery.start_soon(_tell, connection, notice)
        await self.bus.publish(notice)


async def _tell(connection: Connection, notice: ServerEvent) -> None:
    with trio.move_on_after(DELIVERY_TIMEOUT_S):
        try:
            if isinstance(notice, ResourceUpdated):
                await connection.send_resource_updated(notice.uri)
            else:
                await _SEND[type(notice)](connection)
        except Exception:  # noqa: BLE001  # one client's connection is no reason to end the gateway
            _log.exception("a notice could not be sent to a client")
