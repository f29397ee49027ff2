"""What fits a question only by its meaning is answered with the real model, however low its score."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.system.running import running, wait_until

pytestmark = pytest.mark.slow

CASES = Path(__file__).parents[4] / "shared/cases/reports/second/cases.json"
SERVICES = ["front", "embed", "retrieve", "knowledge", "llm", "memory"]


def test_a_search_is_never_left_empty(tmp_path: Path) -> None:
    notes = {
        "queue": ("# Queue decision\n\nWe chose RabbitMQ over Kafka for order events.\n",
                  ["which broker did we choose", "queue system decision"]),
        "boiler": ("# Heating\n\nThe boiler is serviced by Larsen Plumbing every October.\n",
                   ["who looks after the furnace"]),
        "visa": ("# Trip\n\nAna's passport expires in May; apply at the embassy in Lima.\n",
                 ["which travel papers have to be renewed"]),
    }  # fmt: skip
    if CASES.exists():
        for number, case in enumerate(json.loads(CASES.read_text())["search_never_empty"]):
            notes[f"case{number}"] = case["note"], case["queries"]
    root = tmp_path / "root"
    root.mkdir()
    for name, (text, _) in notes.items():
        (root / f"{name}.md").write_text(text)
    with running(tmp_path / "data", [root], services=SERVICES) as kernel:
        wait_until(lambda: kernel.call("notes_status", {})["notes"] == len(notes), 60)
        wait_until(lambda: "vector" in kernel.call("notes_search", {"query": "queue"})["metadata"]["stages"], 60)
        for name, (text, queries) in notes.items():
            for query in queries:
                found = kernel.call("notes_search", {"query": query})["results"]
                assert text.split("\n")[2] in json.dumps([hit["snippet"] for hit in found]), (name, query, found)
        kernel.call("remember", {"text": "The depot gate code is 4711"})
        wait_until(lambda: kernel.call("recall", {"query": "how does one enter the warehouse"})["memories"])
