"""A small MCP server on standard input and output, for tests of mounted servers.

    python mcp_server.py [--crash | --slow-start SECONDS | --hang]

Its tools: `echo` (read-only), `pid`, `environment` (its variables), `read`, `write` and
`append` (a file, at `path`), `die`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

HINTS = {"echo": {"readOnlyHint": True}, "pid": {"readOnlyHint": True}, "write": {"idempotentHint": True}}
TOOLS = ("echo", "pid", "environment", "read", "write", "append", "die")


def append(path: str, line: bytes) -> None:
    """Append a line, or nothing: a full disk may take the beginning of one, and the next would continue it."""
    with open(path, "ab", buffering=0) as file:
        end = file.tell()
        try:
            while line:
                line = line[file.write(line) :]
        except OSError:
            file.truncate(end)
            raise


def call(name: str, arguments: dict[str, Any]) -> str:
    match name:
        case "echo":
            return str(arguments["text"])
        case "pid":
            return str(os.getpid())
        case "environment":
            return json.dumps(dict(os.environ))
        case "read":
            with open(arguments["path"], encoding="utf-8") as file:
                return file.read()
        case "write":
            with open(arguments["path"], "w", encoding="utf-8") as file:
                file.write("written")
            return "written"
        case "append":
            append(arguments["path"], f"{arguments['text']}\n".encode())
            return "appended"
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError(f"there is no tool {name}")


def result_of(method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            version = params.get("protocolVersion", "2025-11-25")
            info = {"name": "small", "version": "1"}
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        case "ping":
            return {}
        case "tools/list":
            tools = [
                {"name": name, "inputSchema": {"type": "object"}, "annotations": HINTS.get(name, {})} for name in TOOLS
            ]
            return {"tools": tools}
        case "tools/call":
            try:
                text, failed = call(params["name"], params.get("arguments", {})), False
            except OSError as error:
                text, failed = str(error), True
            return {"content": [{"type": "text", "text": text}], "isError": failed}
    raise LookupError(method)


def main(argv: list[str]) -> None:
    if "--crash" in argv:
        sys.exit("this server cannot start")
    if "--slow-start" in argv:
        time.sleep(float(argv[argv.index("--slow-start") + 1]))
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            reply["result"] = result_of(message["method"], message.get("params", {}))
        except LookupError:
            reply["error"] = {"code": -32601, "message": f"unknown method {message['method']}"}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main(sys.argv)
