"""News for clients: lists that changed and resources that were updated.

Clients with a handshake are told on their connection (resources: those they subscribed to); clients of 2026-07-28
through `subscriptions/listen`.  A client that does not read delays no other, and loses the notice after five
seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

import msgspec
import trio
from mcp.server.connection import Connection
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)

from proto import frames, mcp
from proto.frames import Event

DELIVERY_TIMEOUT_S = 5.0
"""For one notice to one client; beyond it the client has stopped reading."""

_LISTS: dict[str, type[ToolsListChanged | PromptsListChanged | ResourcesListChanged]] = {
    "tools": ToolsListChanged,
    "prompts": PromptsListChanged,
    "resources": ResourcesListChanged,
}

_log = logging.getLogger("linckia.gateway")


class _Interests:
    """The events that one connection receives."""

    def __init__(self, lists: frozenset[str], uris: Collection[str]) -> None:
        self.uris = uris
        self._lists = tuple(_LISTS[name] for name in lists)

    def admit(self, notice: ServerEvent) -> bool:
        return notice.uri in self.uris if isinstance(notice, ResourceUpdated) else isinstance(notice, self._lists)


class News:
    """Passes events of services on to clients."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.bus = InMemorySubscriptionBus()
        self._nursery = nursery
        self._connections: dict[Connection, _Interests] = {}

    def join(self, connection: Connection, lists: frozenset[str], uris: Collection[str]) -> None:
        """Tell this connection from now on until it ends.

        Args:
            lists: those that its surface has; of the others it was never told that they are there.
            uris: the resources that it wants to be told of, at any time.
        """
        if connection not in self._connections:
            self._connections[connection] = _Interests(lists, uris)
            connection.exit_stack.callback(self._connections.pop, connection, None)

    async def receive(self, event: Event) -> None:
        """An event of a service; one that is not in the form of its topic is logged and dropped."""
        try:
            notice = _decoded(event)
        except msgspec.DecodeError as error:
            _log.warning("event %s is not in its form: %s", event.topic, error)
            return
        if notice is not None:
            await self.publish(notice)

    async def publish(self, notice: ServerEvent) -> None:
        """Tell everyone whom `notice` concerns."""
        for connection, interests in list(self._connections.items()):
            if interests.admit(notice):
                self._nursery.start_soon(_tell, connection, notice)
        await self.bus.publish(notice)


def _decoded(event: Event) -> ServerEvent | None:
    if event.topic == mcp.LIST_CHANGED:
        return _LISTS[frames.read_body(event.body, mcp.ListChanged).list]()
    if event.topic == mcp.RESOURCE_UPDATED:
        return ResourceUpdated(uri=frames.read_body(event.body, mcp.ResourceUpdated).uri)
    return None


async def _tell(connection: Connection, notice: ServerEvent) -> None:
    with trio.move_on_after(DELIVERY_TIMEOUT_S):
        try:
            await _send(connection, notice)
        except Exception:  # noqa: BLE001  # one client's connection is no reason to end the gateway
            _log.exception("a notice could not be sent to a client")


async def _send(connection: Connection, notice: ServerEvent) -> None:
    match notice:
        case ResourceUpdated(uri=uri):
            await connection.send_resource_updated(uri)
        case ToolsListChanged():
            await connection.send_tool_list_changed()
        case PromptsListChanged():
            await connection.send_prompt_list_changed()
        case ResourcesListChanged():
            await connection.send_resource_list_changed()
