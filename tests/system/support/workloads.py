"""An idempotent call and its right answer for each service, over a small folder that `make_folder` fills."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

from tests.system.kills import Workload
from tests.system.running import RunningKernel, wait_until

NOTES = 50
TURNS = 500


def make_folder(folder: Path) -> None:
    """A YAML file and `NOTES` notes whose text names their number."""
    (folder / "settings.yaml").write_text("server:\n  host: example.org  # public\n")
    for n in range(NOTES):
        text = f"# Note {n}\n\nThis is note number {n}, about sea stars that grow back any arm they lose.\n"
        text += f"\nSee [[note-{(n + 1) % NOTES}]].\n"
        (folder / f"note-{n}.md").write_text(text)


def wait_for_folder(kernel: RunningKernel, timeout_s: float = 60.0) -> None:
    """Until every note of `make_folder` is found and every link is in the graph."""
    wait_until(lambda: kernel.call("notes_status")["notes"] >= NOTES, timeout_s)
    wait_until(lambda: kernel.call("graph_stats")["edges"] >= NOTES, timeout_s, said=lambda: kernel.call("graph_stats"))


def _vectors_have_shape(result: Any, shape: list[int]) -> bool:
    return bool(result["vectors"][1] == shape and not result["truncated"])


def turn(messages: list[Any], answer: str) -> bytes:
    """A turn of chat completions, as it is posted."""
    reply = {"role": "assistant", "content": answer}
    return json.dumps(
        {
            "provider": "openai",
            "request": {"model": "m", "messages": messages},
            "response": {"model": "m", "choices": [{"index": 0, "message": reply, "finish_reason": "stop"}]},
        }
    ).encode()


def _numbered_turn(n: int) -> str:
    return base64.b64encode(turn([{"role": "user", "content": f"question {n}"}], f"answer {n}")).decode()


WORKLOADS = {
    workload.service: workload
    for workload in (
        Workload(
            "echo",
            lambda n: ("mcp.echo", {"message": f"message {n}"}),
            lambda n, result: result == {"message": f"message {n}"},
        ),
        Workload(
            "front",
            lambda n: ("query", {"steps": [{"op": "mcp.echo", "params": {"message": f"message {n}"}}]}),
            lambda n, result: result == {"message": f"message {n}"},
        ),
        Workload("tasks", lambda n: ("tasks_list", {"limit": 1 + n % 500}), lambda n, result: result["total"] == 0),
        Workload(
            "events",
            lambda n: ("events_read", {"after": 0, "limit": 1 + n % 100, "wait_s": 0}),
            lambda n, result: "next" in result,
        ),
        Workload(
            "yaml",
            lambda n: ("yaml_get", {"file": "settings.yaml", "path": "server.host"}),
            lambda n, result: result["text"] == "example.org",
        ),
        Workload(
            "knowledge",
            lambda n: ("notes_read", {"id": f"note-{n % NOTES}"}),
            lambda n, result: f"note number {n % NOTES}," in str(result),
        ),
        Workload(
            "retrieve",
            lambda n: (
                "retrieve_search",
                {
                    "collection": "notes",
                    "query": f"note number {n % NOTES}",
                    "limit": 3,
                    "fusion": {"method": "lexical"},
                },
            ),
            lambda n, result: result["hits"][0]["group"] == f"note-{n % NOTES}" and result["stages"] == ["lexical"],
        ),
        Workload(
            "mounts",
            lambda n: ("mounts_offered", {"mount": "never-mounted"}),
            lambda n, result: result["version"] == "",
        ),
        Workload(
            "embed",
            lambda n: ("embed_texts", {"texts": [f"text number {n}"], "kind": "query"}),
            lambda n, result: _vectors_have_shape(result, [1, 384]),
        ),
        Workload(
            "graph",
            lambda n: ("graph_neighbors", {"id": f"note-{n % NOTES}", "direction": "out"}),
            lambda n, result: [node["id"] for node in result["nodes"]] == [f"note-{(n + 1) % NOTES}"],
        ),
        Workload(
            "media",
            lambda n: ("media_content", {"path": f"note-{n % NOTES}.md"}),
            lambda n, result: result["mime_type"] == "text/markdown" and result["size"] > 50,
        ),
        Workload("decode", lambda n: ("decode_formats", {}), lambda n, result: "JPEG" in result["pictures"]),
        Workload(
            "compare",
            lambda n: ("compare_folders", {"paths": ["/", "/nowhere/"], "fingerprints": ["", ""]}),
            lambda n, result: result == {"different": [0, 1]},
        ),
        Workload("files", lambda n: ("jobs_list", {"limit": 1 + n % 9}), lambda n, result: result["jobs"] == []),
        Workload(
            "documents",
            lambda n: ("documents_add", {"name": f"text-{n % NOTES}", "content": f"text number {n % NOTES}"}),
            lambda n, result: result["hash"] == hashlib.sha256(f"text number {n % NOTES}".encode()).hexdigest(),
        ),
        Workload(
            "fetch",
            # An address of this machine, which it may not reach; the answer needs nobody else.
            lambda n: ("documents_download_check", {"url": f"http://127.0.0.{n % 250 + 1}/"}),
            lambda n, result: not result["allowed"] and f"127.0.0.{n % 250 + 1} is" in result["reason"],
        ),
        Workload(
            "transcripts",
            # The same turn again is nothing new, so that a repeated call has the same answer.
            lambda n: ("transcript_ingest", {"body": _numbered_turn(n % TURNS)}),
            lambda n, result: result["accepted"] == 1 and len(result["head_hash"]) == 64,
        ),
        Workload(
            "memory",
            # Once more is merged with what says the same, so that a repeated call has the same answer.
            lambda n: (
                "remember",
                {"text": f"Drawer {n % NOTES} holds letter {n % NOTES}", "scope": f"project:{n % NOTES}"},
            ),
            lambda n, result: result["scope"] == f"project:{n % NOTES}" and "conflicts_with" not in result,
        ),
        Workload(
            "rerank",
            lambda n: ("rerank_model", {}),
            # Most machines have no such model, and then that is the right answer.
            lambda n, result: result["available"] or "linckia models get" in result["reason"],
        ),
        Workload(
            "watch",
            lambda n: ("watch_status", {}),
            lambda n, result: result["watch_limit"] > 0 and not result["rebuilt"],
        ),
        # Nothing names one in these tests, so that nothing is ever sent.
        Workload("llm", lambda n: ("llm_model", {}), lambda n, result: result["configured"] is False),
    )
}
"""By service."""
