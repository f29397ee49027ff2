"""How an operation's value becomes what a client gets."""

from __future__ import annotations

import msgspec

from proto import ops
from services.front.protocol.calls import encoded_tool_result, may_be_written, resource_result, tool_result


def test_resource_whose_operation_names_a_text_field_is_that_text() -> None:
    operation = ops.load()["knowledge_stats_summary"]
    result = resource_result(operation, "amalfa://stats/summary", {"text": "Nodes: 2\nEdges: 1"})
    assert result == {
        "contents": [{"uri": "amalfa://stats/summary", "mimeType": "text/plain", "text": "Nodes: 2\nEdges: 1"}]
    }


def test_json_that_a_service_wrote_reaches_the_client_as_plain_data_would() -> None:
    operation = ops.load()["transcript_checkout"]
    assert may_be_written(operation)
    plain = {"messages": [{"role": "user", "content": 'a "word" \\ and a\nline, ü'}], "depth": 1}
    written = msgspec.Raw(msgspec.json.encode(plain))
    assert encoded_tool_result(operation, written, b"") == encoded_tool_result(operation, plain, b"")
    assert tool_result(operation, written) == tool_result(operation, plain)


def test_result_of_which_the_kernel_reads_more_than_its_json_comes_as_plain_data() -> None:
    table = ops.load()
    # One is shown as a text of its own, of the other a preview is made.
    assert not may_be_written(table["knowledge_stats_summary"])
    assert not may_be_written(table["search_everything"])
