"""The server that is mounted: small, on standard input and output, and it misbehaves on request.

    python server.py FOLDER [FAILURES]

It notes its pid in FOLDER, and ends with exit code 1 at its first FAILURES starts. It has no dependencies, so that its
own cost is small beside a gateway's.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

MIB = 1024 * 1024
BIG_BYTES = 50_000_000
LEAK_BYTES, LEAK_STEP_BYTES, LEAK_STEP_S = 1024 * MIB, 32 * MIB, 0.1
PIDS, SLOW = "pids", "slow"
"""Files in FOLDER: the processes, and whether the tool `slow` was called."""

READ_ONLY = {"readOnlyHint": True, "idempotentHint": True}
TOOLS: dict[str, dict[str, bool]] = {
    "echo": READ_ONLY,
    "slow": READ_ONLY,
    "big": READ_ONLY,
    "garbage": READ_ONLY,
    "hang": {},
    "deafen": {},
    "close": {},
    "leak": {},
}

leaked: list[bytes] = []


def leak() -> None:
    """Grow for three seconds."""
    for _ in range(LEAK_BYTES // LEAK_STEP_BYTES):
        leaked.append(os.urandom(MIB) * (LEAK_STEP_BYTES // MIB))
        time.sleep(LEAK_STEP_S)


def call(name: str, arguments: dict[str, Any]) -> str:
    match name:
        case "slow":
            (Path(sys.argv[1]) / SLOW).touch()
            time.sleep(arguments["seconds"])
        case "big":
            return "x" * BIG_BYTES
        case "garbage":
            sys.stdout.buffer.write(b"Downloading model: 37 %\n\xff\xfe\x00 not text\n{ not JSON\n[1, 2]\n\n")
        case "hang":
            while True:
                time.sleep(3600)
        case "deafen":
            os.close(0)
            while True:
                time.sleep(3600)
        case "close":
            # As a process does whose interpreter is stuck at its end: its pipes are closed, and it lives.
            os.close(0)
            os.close(1)
            while True:
                time.sleep(3600)
        case "leak":
            leak()
    return str(arguments.get("message", "done"))


def result_of(method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            capabilities: dict[str, Any] = {"tools": {}}
            info = {"name": "bench", "version": "1"}
            return {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
        case "ping":
            return {}
        case "tools/list":
            schema = {"type": "object", "properties": {"message": {"type": "string"}, "seconds": {"type": "number"}}}
            return {
                "tools": [
                    {"name": name, "description": name, "inputSchema": schema, "annotations": hints}
                    for name, hints in TOOLS.items()
                ]
            }
        case "tools/call":
            text = call(params["name"], params.get("arguments") or {})
            return {"content": [{"type": "text", "text": text}], "isError": False}
    raise LookupError(method)


def main() -> None:
    pids = Path(sys.argv[1]) / PIDS
    with pids.open("a") as file:
        file.write(f"{os.getpid()}\n")
    failures = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    if len(pids.read_text().split()) <= failures:
        sys.exit("bench: cannot start yet")
    out = sys.stdout.buffer
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if "id" not in request or "method" not in request:
            continue
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
        try:
            reply["result"] = result_of(request["method"], request.get("params") or {})
        except LookupError:
            reply["error"] = {"code": -32601, "message": "unknown method"}
        out.write(json.dumps(reply, separators=(",", ":")).encode() + b"\n")
        out.flush()


if __name__ == "__main__":
    main()
