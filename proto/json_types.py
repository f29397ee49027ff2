"""Objects whose shape is not known where they are handled, and who checks them."""

from __future__ import annotations

from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]
"""Parameters or an answer of an operation, or a part of a message of MCP or HTTP.  The kernel checks parameters against
the operation's own types, and MCP's library its messages; the command line does not wait for those types to load."""

Layer: TypeAlias = dict[str, Any]
"""Settings from one place, before they are laid over each other and checked (`kernel.settings.check`)."""
