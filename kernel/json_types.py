"""Objects whose shape is not known where they are handled, and who checks them."""

from __future__ import annotations

from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]
"""Parameters or an answer of an operation, or a part of a message of MCP or HTTP.

The kernel checks parameters against the operation's own types, and MCP's own library the messages that it reads. The
command line loads those types only where it lists them, since each command waits for all that it imports.
"""

Layer: TypeAlias = dict[str, Any]
"""Settings from one place, before they are laid over each other and checked (`kernel.settings.check`)."""
