"""How an operation's value becomes what a client gets."""

from __future__ import annotations

from contextvars import ContextVar

import msgspec
import pytest

from proto import ops
from services.front import scratchpad
from services.front.protocol.calls import (
    encoded_tool_result,
    may_be_written,
    resource_result,
    tool_result,
    unknown_tool,
)
from services.front.scratchpad import Scratchpads
from services.front.surfaces.surface import Surface


def test_resource_whose_operation_names_a_text_field_is_that_text() -> None:
    operation = ops.load()["knowledge_stats_summary"]
    result = resource_result(operation, "amalfa://stats/summary", {"text": "Nodes: 2\nEdges: 1"})
    assert result == {
        "contents": [{"uri": "amalfa://stats/summary", "mimeType": "text/plain", "text": "Nodes: 2\nEdges: 1"}]
    }


async def test_json_that_a_service_wrote_reaches_the_client_as_plain_data_would() -> None:
    operation = ops.load()["chats_read"]
    assert may_be_written(operation)
    plain = {"messages": [{"role": "user", "content": 'a "word" \\ and a\nline, ü'}], "depth": 1}
    written = msgspec.Raw(msgspec.json.encode(plain))
    surface, params = Surface("transcripts", ops.load()), operation.parse({"hash": "0" * 64})
    of_written, of_plain = (tool_result(surface, operation, params, value) for value in (written, plain))
    assert of_written == of_plain
    encoded = await encoded_tool_result(operation, params, written, b"", bounds=False, terse=None)
    assert encoded == await encoded_tool_result(operation, params, plain, b"", bounds=False, terse=None)


def test_results_that_the_kernel_inspects_arrive_as_plain_data() -> None:
    table = ops.load()
    # One is shown as a text of its own; a preview is made of the other.
    assert not may_be_written(table["knowledge_stats_summary"])
    assert not may_be_written(table["everything_search"])


def test_a_step_called_as_a_tool_is_refused_with_the_right_tool() -> None:
    core = Surface("core", ops.load())
    for name, said in (
        ("add", "`add` changes what is stored: call it in `ops_execute`"),
        ("grep", "`grep` only reads: call it in `ops_query`"),
    ):
        assert str(unknown_tool(name, core)) == f"Unknown tool: {name}; {said}"
    assert "did you mean notes_search" in str(unknown_tool("search_documnts", core))
    assert str(unknown_tool("add", Surface("yaml", ops.load()))) == "Unknown tool: add"


def test_long_answers_of_notes_are_kept_where_a_contract_says_so_and_cut_on_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = ops.load()
    operation = table["notes_search"]
    params = operation.parse({"query": "x"})
    hit = {"id": "n", "path": "n.md", "snippet": "words " * 100}
    pad = Scratchpads().open()
    monkeypatch.setattr(scratchpad, "current", ContextVar("scratchpad", default=pad))
    for count, is_cut in ((9, False), (40, True)):
        answer = tool_result(Surface("core", table), operation, params, {"results": [hit] * count})["structuredContent"]
        assert answer["results"][0]["path"] == "n.md"
        assert ("more" in answer) == is_cut
        assert len(msgspec.json.encode(answer)) < 8200
    kept = tool_result(Surface("knowledge", table), operation, params, {"results": [hit] * 9})
    assert kept["content"][0]["text"].startswith("📁 Output cached: ")
    assert kept["structuredContent"]["cached"]["id"] in {entry.id for entry in pad.listing().entries}
