"""An agent that is a language model, behind an HTTP endpoint as OpenAI's (`/chat/completions` with function calls)."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from typing import Any

from tests.bench.agents.chooser import Answer, Client, Request

CALLS = 10
"""Calls that a model makes for one request, at most."""

TIMEOUT_S = 120.0


class ModelAgent:
    """One client of one server, whose model chooses the tools.

    Args:
        url: up to and without `/chat/completions`.
        key: sent as bearer token, if there is one.
    """

    def __init__(self, client: Client, url: str, model: str, key: str = "") -> None:
        self._client = client
        self._url = f"{url.rstrip('/')}/chat/completions"
        self._model = model
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        self._tools = [
            {
                "type": "function",
                "function": {
                    "name": tool["name"],
                    "description": tool.get("description") or "",
                    "parameters": tool["inputSchema"],
                },
            }
            for tool in client.tools()
        ]

    def solve(self, request: Request, solved: Callable[[Answer], bool]) -> bool:
        """Let the model call tools until an answer solves the task, or the model has said its last word.

        Raises OSError if the endpoint does not answer, or answers with an error.
        """
        details = json.dumps(request.facts, ensure_ascii=False)
        content = f"{request.text}\n\nUse the tools. Details that may be of use: {details}"
        messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
        calls = 0
        while calls < CALLS:
            said = self._ask(messages)
            messages.append(said)
            if not said.get("tool_calls"):
                return False
            for call in said["tool_calls"][: CALLS - calls]:
                calls += 1
                answer = self._call(call["function"])
                if not answer.failed and solved(answer):
                    return True
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": answer.text})
        return False

    def _call(self, function: dict[str, str]) -> Answer:
        try:
            arguments = json.loads(function["arguments"] or "{}")
        except ValueError as error:
            return Answer(f"The arguments are not JSON: {error}", True)
        return self._client.call(function["name"], arguments)

    def _ask(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        body = json.dumps({"model": self._model, "messages": messages, "tools": self._tools}).encode()
        asked = urllib.request.Request(self._url, body, self._headers)
        with urllib.request.urlopen(asked, timeout=TIMEOUT_S) as reply:
            message: dict[str, Any] = json.load(reply)["choices"][0]["message"]
        return message
