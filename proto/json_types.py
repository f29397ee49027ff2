"""JSON objects whose shape is not known where they are handled, and who checks them."""

from __future__ import annotations

from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]
"""Parameters or a result of an operation, or a part of an MCP or HTTP message. The kernel checks parameters against the
operation's types, and MCP's library checks its messages; `linckia call` does not wait for those types to load."""

Layer: TypeAlias = dict[str, Any]
"""Settings from one source, before they are merged and checked (`kernel.configure.settings.check`)."""
