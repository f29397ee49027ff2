"""How an operation's value becomes what a client gets."""

from __future__ import annotations

from kernel.gateway.calls import resource_result
from proto import ops


def test_resource_whose_operation_names_a_text_field_is_that_text() -> None:
    operation = ops.load()["knowledge_stats_summary"]
    result = resource_result(operation, "amalfa://stats/summary", {"text": "Nodes: 2\nEdges: 1"})
    assert result == {
        "contents": [{"uri": "amalfa://stats/summary", "mimeType": "text/plain", "text": "Nodes: 2\nEdges: 1"}]
    }
