"""Answers of MCP servers over HTTP: a JSON document, or a stream of events if the call took long or asked for it."""

from __future__ import annotations

import json
from typing import Any


def message_of(body: str) -> Any:
    """Return the message, the last one of a stream."""
    if body.startswith(("{", "[")):
        return json.loads(body)
    data = [line for line in body.split("\n") if line.startswith("data:")]
    assert data, f"neither JSON nor a stream of events: {body[:1000]!r}"
    return json.loads(data[-1].removeprefix("data:"))
