"""A stdio MCP server of the handshake revisions, by hand, which also misbehaves when told to. Run as a script.

Tools: `echo`, `pid`, `raw` (a result with unusual members), `crash`, `stop`, `hang`, `garbage`, `big`, `progress`,
`ask` (elicitation), `roots`, `grow`, `change_list`, `touch` (a resource), `count`, `slow` (waits for `release`),
`deafen` (stdin is closed),
`block` (the only thread waits for a file `until`; with `chat`, it logs meanwhile),
`reply` (writes the given line, with `$id` replaced, and `$ff` by that byte).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

TOOLS = [
    "echo", "pid", "raw", "crash", "stop", "hang", "garbage", "big", "progress", "ask", "roots", "grow", "change_list",
    "touch", "count", "slow", "release", "env", "seen", "deafen", "reply",
    "block",
]  # fmt: skip
PAGE = 7
kept: list[bytearray] = []
held: list[Any] = []
asked: dict[str, Any] = {}
seen: list[str] = []
calls: list[Any] = []
added: list[str] = []


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(number: Any, content: str) -> None:
    send({"id": number, "result": {"content": [{"type": "text", "text": content}]}})


def tool(number: Any, params: dict[str, Any]) -> None:  # noqa: C901, PLR0912, PLR0915  # one branch for each tool
    arguments = params.get("arguments") or {}
    token = (params.get("_meta") or {}).get("progressToken")
    match params["name"]:
        case "echo":
            text(number, json.dumps(arguments))
        case "pid":
            text(number, str(os.getpid()))
        case "count":
            calls.append(number)
            text(number, str(len(calls)))
        case "env":
            text(number, os.environ.get(arguments["name"], "-"))
        case "seen":
            text(number, json.dumps(seen))
        case "leak":
            value = os.environ[arguments["name"]]
            sys.stdout.write(f"{value} on stdout\n")
            print(f"{value} on stderr", file=sys.stderr, flush=True)
            text(number, value)
        case "raw":
            content = '[{"type":"hologram","x":1.10,"big":123456789012345678901}]'
            result = f'{{"content":{content},"_meta":{{"a/b":[null]}},"unknown":"\\u00e9"}}'
            sys.stdout.write(f'{{"jsonrpc":"2.0","id":{number},"result":{result}}}\n')
            sys.stdout.flush()
        case "crash":
            print("out of luck", file=sys.stderr, flush=True)
            os._exit(arguments.get("code", 7))
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "hang":
            if arguments.get("deaf"):
                os.close(0)
                text(number, "deaf")
                signal.pause()
            if arguments.get("whole"):
                signal.pause()
        case "deafen":
            os.close(0)
            text(number, "deaf")
            signal.pause()
        case "block":
            send({"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}})
            while not os.path.exists(arguments["until"]):
                time.sleep(0.02)
                if arguments.get("chat"):
                    print("still at it", file=sys.stderr, flush=True)
            text(number, "unblocked")
        case "reply":
            line = arguments["line"].replace("$id", str(number)).encode().replace(b"$ff", b"\xff")
            sys.stdout.buffer.write(line + b"\n")
            sys.stdout.flush()
        case "garbage":
            sys.stdout.write("Listening on port 1\n{broken\n[1,2]\n\n\x1b[0m\n")
            text(number, "still here")
        case "big":
            text(number, "x" * arguments["size"])
        case "progress":
            for step in (1, 2):
                send({"method": "notifications/message", "params": {"level": "notice", "data": f"step {step}"}})
                done = {"progressToken": token, "progress": step, "total": 2, "message": f"step {step}"}
                send({"method": "notifications/progress", "params": done})
            text(number, "done")
        case "ask":
            asked["q"] = number
            send({"id": "q", "method": "elicitation/create", "params": {"message": "Name?", "requestedSchema": {}}})
        case "roots":
            asked["r"] = number
            send({"id": "r", "method": "roots/list"})
        case "grow":
            kept.append(bytearray(os.urandom(1024) * arguments["kib"]))
            text(number, "grown")
        case "change_list":
            added.append(f"extra{len(added)}")
            for _ in range(3):
                send({"method": "notifications/tools/list_changed"})
            text(number, "changed")
        case "touch":
            send({"method": "notifications/resources/updated", "params": {"uri": "test://a"}})
            text(number, "touched")
        case "slow":
            held.append(number)
            send({"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}})
        case "release":
            for each in held:
                text(each, "released")
            held.clear()
            text(number, "ok")


def handle(message: dict[str, Any]) -> None:
    number, method, params = message.get("id"), message.get("method"), message.get("params") or {}
    if method is not None:
        seen.append(method)
    match method:
        case None:
            reply = message.get("result", message.get("error"))
            if number in asked:
                text(asked.pop(number), json.dumps(reply))
        case "initialize":
            send({"id": number, "result": {
                "protocolVersion": "2025-06-18", "serverInfo": {"name": "hand", "version": "1", "more": [1]},
                "capabilities": {"tools": {"listChanged": True}, "resources": {"subscribe": True}, "logging": {}},
                "instructions": "Be kind.",
            }})  # fmt: skip
        case "ping" if not os.environ.get("IGNORE_PING"):
            send({"id": number, "result": {}})
        case "tools/list":
            start = int(params.get("cursor", 0))
            names = [*TOOLS, *added]
            page = [{"name": name, "inputSchema": {"type": "object"}, "vendor": 1.50} for name in names[start:][:PAGE]]
            more = {"nextCursor": str(start + PAGE)} if start + PAGE < len(names) else {}
            send({"id": number, "result": {"tools": page, **more}})
        case "resources/list":
            send({"id": number, "result": {"resources": [{"uri": "test://a", "name": "a"}]}})
        case "resources/subscribe" | "resources/unsubscribe":
            send({"id": number, "result": {}})
        case "tools/call":
            tool(number, params)
        case _ if number is not None and method != "ping":
            if os.environ.get("STRICT"):
                sys.exit("expected initialize")
            send({"id": number, "error": {"code": -32601, "message": f"no {method}", "data": {"x": 1}}})


def main() -> None:
    if os.environ.get("FAIL"):
        sys.exit("cannot read the configuration")
    while line := sys.stdin.readline():
        handle(json.loads(line))


if __name__ == "__main__":
    main()
