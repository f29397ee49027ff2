"""Failures as the JSON-RPC errors that the SDK sends."""

from __future__ import annotations

from mcp.shared.exceptions import MCPError

from kernel.gateway.protocol.failures import as_data, code_of, message_of
from proto.asking import MISSING_CAPABILITY
from proto.errors import Failure


def as_error(failure: Failure) -> MCPError:
    """The failure as a JSON-RPC error."""
    data = as_data(failure)
    if failure.code == MISSING_CAPABILITY:
        data["requiredCapabilities"] = {failure.data.get("capability", ""): {}}
    return MCPError(code=code_of(failure), message=message_of(failure), data=data)
