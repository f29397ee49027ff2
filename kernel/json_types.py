"""Objects whose shape is not known where they are handled, and who checks them."""

from __future__ import annotations

from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]
"""Parameters on their way to an operation, or its answer; a part of a message of MCP, or of an answer over HTTP.

The kernel checks parameters against the operation's own types, and MCP's own library the messages that it reads. The
command line loads those types only where it lists them, since all that it imports is waited for at each command.
"""

Layer: TypeAlias = dict[str, Any]
"""Settings from one place (a file, the environment, the flags), before they are laid over each other; what comes of
that is checked against `kernel.settings.Settings`, which names the setting that is wrong."""
