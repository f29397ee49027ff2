"""The servers of the benchmark, Linckia and others on stdio, each with the same files and the same things to know."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from proto.control.client import CallFailed
from tests.acceptance.install_servers import script
from tests.bench.agents import tree
from tests.bench.agents.chooser import Answer, Json
from tests.bench.agents.tasks import Call, Tasks, size
from tests.bench.parts.wire import Stdio
from tests.system.running import RunningKernel, running, wait_until

SURFACES = ("core", "all", "compact")
PEERS = ("filesystem", "memory", "git")
SERVICES = (
    "files", "compare", "watch", "documents", "knowledge", "retrieve", "embed", "graph", "yaml", "transcripts",
    "memory", "decode", "media", "echo",
)  # fmt: skip


class McpClient:
    """A client over stdio that counts the calls, and the tokens of lists and answers."""

    def __init__(self, command: Sequence[str]) -> None:
        self._wire = Stdio(command, quiet=True)
        self._number = 0
        self._tools: list[Json] = self._ask("tools/list", {})["result"]["tools"]
        bare = [{key: each for key, each in tool.items() if key != "outputSchema"} for tool in self._tools]
        self.list_tokens = size({"tools": bare})
        self.calls = 0
        self.answer_tokens = 0

    def _ask(self, method: str, params: Json) -> Any:
        self._number += 1
        request = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        message = json.loads(self._wire.exchange(json.dumps(request).encode()))
        while message.get("id") != self._number or "method" in message:
            message = json.loads(self._wire.receive())
        return message

    def tools(self) -> Sequence[Json]:
        """Return the tools as the server lists them."""
        return self._tools

    def call(self, name: str, arguments: Json) -> Answer:
        """Call a tool; an error of the protocol is a failed answer too."""
        self.calls += 1
        message = self._ask("tools/call", {"name": name, "arguments": arguments})
        result = message.get("result", {"isError": True, "content": [{"type": "text", "text": str(message)}]})
        self.answer_tokens += size(result["content"])
        text = "\n".join(each.get("text", "") for each in result["content"])
        return Answer(text, bool(result.get("isError")))

    def close(self) -> None:
        self._wire.close()


class Server:
    """A running server: how to connect with it, and what it has stored."""

    def __init__(self, command: Sequence[str], stored: Callable[[Call], str], settle: Callable[[], None]) -> None:
        self.command = command
        self.stored = stored
        self.settle = settle
        """Wait until the server knows the files as they are."""


def text_of(kernel: RunningKernel, call: Call) -> str:
    """Return what the operator gets by a call, as JSON."""
    return json.dumps(kernel.call(call[0], call[1], timeout_s=60), ensure_ascii=False)


def answer_of(kernel: RunningKernel, name: str, arguments: Json) -> Answer:
    """Return the answer to a call by the operator."""
    try:
        return Answer(text_of(kernel, (name, arguments)), False)
    except CallFailed as error:
        return Answer(str(error), True)


@contextlib.contextmanager
def linckia(folder: Path, root: Path, tasks: Tasks) -> Iterator[RunningKernel]:
    """A kernel that has indexed the files and knows what the tasks ask for."""
    with running(folder, [root], services=SERVICES) as kernel:
        for project, *said in tree.CHATS:
            messages = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(said)]
            request = {"model": "m", "messages": messages[:-1]}
            response = {"choices": [{"message": messages[-1]}]}
            turn = {"provider": "openai", "project": project, "request": request, "response": response}
            body = base64.b64encode(json.dumps(turn).encode()).decode()
            assert kernel.call("transcript_ingest", {"body": body})["accepted"] == 1
        for step in tasks.setup:
            kernel.call(*step.call, timeout_s=60)
        settled(kernel)
        wait_until(lambda: kernel.call("chats_search", {"query": "passkeys"})["count"])
        wait_until(lambda: kernel.call("documents_search", {"query": "incident"})["results"])
        yield kernel


def settled(kernel: RunningKernel) -> None:
    """Wait until all notes are indexed."""
    count = sum(name.endswith(".md") for name in tree.FILES)

    def is_done() -> bool:
        status = kernel.call("notes_status")
        return bool(status["notes"] == count and not status.get("pending"))

    wait_until(is_done, 60, said=lambda: kernel.call("notes_status"))


def surface(kernel: RunningKernel, name: str) -> Server:
    """Return a surface of a kernel."""
    command = [sys.executable, "-P", "-m", "kernel.cli", "stdio", "--data", str(kernel.data_dir), "--surface", name]
    return Server(command, lambda call: text_of(kernel, call), lambda: settled(kernel))


def peer(name: str, folder: Path, root: Path) -> Server:
    """Return another server, which clients start."""
    memory = folder / "memory.jsonl"
    entities = [
        {"type": "entity", "name": entity, "entityType": kind, "observations": [said]}
        for entity, kind, said in tree.KNOWN
    ]
    memory.write_text("\n".join(map(json.dumps, entities)))
    command = [str(script(name, f"mcp-server-{name}")), *([str(root)] if name == "filesystem" else [])]
    # The wire passes the environment of this process on.
    os.environ["MEMORY_FILE_PATH"] = str(memory)
    return Server(command, lambda _: memory.read_text(), lambda: None)
