"""A stdio MCP server of 2026-07-28, written by hand. Run as a script.

Tools: `meta` (the `_meta` of its call), `ask` (ends the first call with a question), `change_list`, `seen`, `touch`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

VERSION = "2026-07-28"
META = "io.modelcontextprotocol/"
seen: list[str] = []
listening: list[tuple[Any, dict[str, Any]]] = []
added: list[str] = []


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(number: Any, content: object) -> None:
    block = {"type": "text", "text": json.dumps(content)}
    send({"id": number, "result": {"resultType": "complete", "content": [block]}})


def notify(method: str, **params: Any) -> None:
    for number, _ in listening:
        send({"method": method, "params": {**params, "_meta": {META + "subscriptionId": number}}})


def tool(number: Any, params: dict[str, Any]) -> None:
    match params["name"]:
        case "meta":
            text(number, params.get("_meta"))
        case "seen":
            text(number, seen)
        case "ask" if "inputResponses" not in params:
            question = {"method": "elicitation/create", "params": {"mode": "form", "message": "Name?"}}
            result = {"resultType": "input_required", "inputRequests": {"q": question}, "requestState": "s1"}
            send({"id": number, "result": result})
        case "ask":
            text(number, {"answers": params["inputResponses"], "state": params.get("requestState")})
        case "change_list":
            added.append(f"extra{len(added)}")
            if any(wanted.get("toolsListChanged") for _, wanted in listening):
                notify("notifications/tools/list_changed")
            text(number, "changed")
        case "touch":
            for _, wanted in listening:
                for uri in wanted.get("resourceSubscriptions", []):
                    notify("notifications/resources/updated", uri=uri)
            text(number, "touched")


def handle(message: dict[str, Any]) -> None:
    number, method, params = message.get("id"), message.get("method"), message.get("params") or {}
    seen.append(str(method))
    if method == "notifications/cancelled":
        listening[:] = [each for each in listening if each[0] != params["requestId"]]
        return
    if method == "initialize" or params.get("_meta", {}).get(META + "protocolVersion") != VERSION:
        error = {"code": -32022, "message": "unsupported", "data": {"supported": [VERSION], "requested": "?"}}
        send({"id": number, "error": error})
        return
    match method:
        case "server/discover":
            send({"id": number, "result": {
                "resultType": "complete", "supportedVersions": [VERSION], "instructions": "Be modern.",
                "capabilities": {"tools": {"listChanged": True}, "resources": {"subscribe": True}},
                "_meta": {META + "serverInfo": {"name": "modern", "version": "2"}},
            }})  # fmt: skip
        case "tools/list":
            names = ["meta", "ask", "change_list", "seen", "touch", *added]
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
            send({"id": number, "result": {"resultType": "complete", "tools": tools}})
        case "subscriptions/listen":
            listening.append((number, params["notifications"]))
            acknowledged = {"notifications": params["notifications"], "_meta": {META + "subscriptionId": number}}
            send({"method": "notifications/subscriptions/acknowledged", "params": acknowledged})
        case "tools/call":
            tool(number, params)
        case _:
            send({"id": number, "error": {"code": -32601, "message": f"no {method}"}})


if __name__ == "__main__":
    while line := sys.stdin.readline():
        handle(json.loads(line))
