"""A mounted server with any number of tools, on standard input and output.

    python server.py TOOLS

It has no dependencies, so that its own cost is small.
"""

from __future__ import annotations

import json
import sys
from typing import Any

PAGE = 500


def tool(number: int) -> dict[str, Any]:
    """Return a tool of usual length."""
    properties = {
        "message": {"type": "string", "description": "The text to return"},
        "limit": {"type": "integer", "description": "Most results", "default": 10},
    }
    return {
        "name": f"tool_{number}",
        "description": f"Do thing number {number}, and say what was done. Use it where nothing else fits the request.",
        "inputSchema": {"type": "object", "properties": properties},
        "annotations": {"readOnlyHint": True, "idempotentHint": True},
    }


def result_of(method: str, params: dict[str, Any], tools: int) -> dict[str, Any]:
    match method:
        case "initialize":
            capabilities: dict[str, Any] = {"tools": {}}
            info = {"name": "bench", "version": "1"}
            return {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
        case "ping":
            return {}
        case "tools/list":
            start = int(params.get("cursor") or 0)
            end = min(tools, start + PAGE)
            page: dict[str, Any] = {"tools": [tool(number) for number in range(start, end)]}
            return page if end == tools else {**page, "nextCursor": str(end)}
        case "tools/call":
            text = str((params.get("arguments") or {}).get("message", "done"))
            return {"content": [{"type": "text", "text": text}], "isError": False}
    raise LookupError(method)


def main() -> None:
    out = sys.stdout.buffer
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if "id" not in request or "method" not in request:
            continue
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
        try:
            reply["result"] = result_of(request["method"], request.get("params") or {}, int(sys.argv[1]))
        except LookupError:
            reply["error"] = {"code": -32601, "message": "unknown method"}
        out.write(json.dumps(reply, separators=(",", ":")).encode() + b"\n")
        out.flush()


if __name__ == "__main__":
    main()
