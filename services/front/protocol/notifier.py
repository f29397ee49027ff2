"""Notifies clients of changed lists and updated resources.

Clients with a handshake are notified in their session, of resources only if they subscribed.  Clients of 2026-07-28
are notified through `subscriptions/listen`.  A client that does not read does not delay the others.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import TypeAlias

import msgspec

from proto import mcp
from proto.mcp import ListChanged, ResourceUpdated
from proto.wire import frames
from proto.wire.frames import Event
from services.front.protocol.messages import notification
from services.front.protocol.session import McpSession

Notice: TypeAlias = ListChanged | ResourceUpdated

_TOPICS: dict[str, type[Notice]] = {mcp.LIST_CHANGED: ListChanged, mcp.RESOURCE_UPDATED: ResourceUpdated}

_log = logging.getLogger("linckia.gateway")


class Notifier:
    """Forwards events of services to clients."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[Notice, Collection[str] | None], Awaitable[None]]] = []
        """Functions called with every notice and the surfaces that it concerns, in addition to the sessions."""
        self._sessions: dict[McpSession, tuple[str, Collection[str]]] = {}

    @contextlib.contextmanager
    def follow(self, session: McpSession, surface: str, lists: Collection[str]) -> Iterator[None]:
        """Notify a session while this context is active and the session is open.

        Args:
            lists: the lists that its surface has; changes to other lists are not sent.
        """
        self._sessions[session] = surface, lists
        try:
            yield
        finally:
            del self._sessions[session]

    async def receive(self, event: Event) -> None:
        """Forward an event of a service; a malformed one is logged and dropped."""
        if (kind := _TOPICS.get(event.topic)) is None:
            return
        try:
            notice = frames.read_body(event.body, kind)
        except msgspec.DecodeError as error:
            _log.warning("event %s is malformed: %s", event.topic, error)
            return
        await self.publish(notice)

    async def publish(self, notice: Notice, surfaces: Collection[str] | None = None) -> None:
        """Send `notice` to every client that it concerns; if `surfaces` are given, only to clients of those."""
        for session, (surface, lists) in self._sessions.items():
            if (surfaces is not None and surface not in surfaces) or not session.is_open or session.modern:
                continue
            if isinstance(notice, ListChanged):
                if notice.list in lists:
                    session.send(list_changed(notice.list))
            else:
                for uri in _subscribed(session.state.uris, notice.uri):
                    session.send(notification("notifications/resources/updated", {"uri": uri}))
        for listener in self.listeners:
            await listener(notice, surfaces)


def list_changed(name: str) -> bytes:
    """Return the notification that a list changed."""
    return notification(f"notifications/{name}/list_changed")


def _subscribed(uris: Collection[str], updated: str) -> list[str]:
    """Return the URIs that name the updated resource, with or without parameters."""
    return [uri for uri in uris if uri == updated or uri.startswith(f"{updated}?")]
