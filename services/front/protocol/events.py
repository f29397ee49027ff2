"""News for clients: lists that changed and resources that were updated.

Clients with a handshake are told on their connection (resources: those they subscribed to); clients of 2026-07-28
through `subscriptions/listen`.  A client that does not read delays no other, and loses the notice after five
seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from typing import TypeAlias

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
