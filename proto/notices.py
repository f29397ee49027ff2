"""Events that the MCP front passes on to clients; a service publishes them with `Environment.publish(topic, body)`."""

from __future__ import annotations

from typing import Literal

import msgspec

PREFIX = "mcp."
"""Of every topic here."""

LIST_CHANGED = "mcp.list_changed"
"""A list that clients were shown reads otherwise now; the body is a `ListChanged`."""

RESOURCE_UPDATED = "mcp.resource_updated"
"""What a resource holds has changed; the body is a `ResourceUpdated`."""


class ListChanged(msgspec.Struct, frozen=True, kw_only=True):
    """Which list."""

    list: Literal["tools", "prompts", "resources"]


class ResourceUpdated(msgspec.Struct, frozen=True, kw_only=True):
    """Which resource; clients that subscribed to this very URI are told."""

    uri: str
