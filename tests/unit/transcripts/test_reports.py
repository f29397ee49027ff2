"""Logs, exports and streams that other programs read wrongly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.transcripts.operations.conversations import TranscriptNode
from tests.unit.transcripts.rig import Json, assistant, post, serving, user
from tests.unit.transcripts.test_cases import turns
from tests.unit.transcripts.test_layouts import CHATGPT, CLAUDE_AI, claude, codex, conversations, spoken, take_in
from tests.unit.transcripts.test_listing import listed

# Streams whose tool calls come in another form than OpenAI's own.


def piece(id_: str | None = None, name: str | None = None, arguments: str = "", index: int | None = 0) -> Json:
    function = {"arguments": arguments} | ({} if name is None else {"name": name})
    return {"function": function} | ({} if id_ is None else {"id": id_}) | ({} if index is None else {"index": index})


PARIS, ROME = '{"city": "Paris"}', '{"city": "Rome"}'
CALLS: dict[str, list[list[Json]]] = {
    "as OpenAI": [[piece("c1", "look", '{"city"')], [piece(arguments=': "Paris"}')],
                  [piece("c2", "look", ROME, index=1)]],
    "each whole, all with one index": [[piece("c1", "look", PARIS)], [piece("c2", "look", ROME)]],
    "each whole, without an index": [[piece("c1", "look", PARIS, None)], [piece("c2", "look", ROME, None)]],
    "in pieces without an index": [[piece("c1", "look", '{"city"', None)], [piece(None, None, ': "Paris"}', None)],
                                   [piece("c2", "look", ROME, None)]],
    "all in one chunk": [[piece("c1", "look", PARIS, 0), piece("c2", "look", ROME, 1)]],
    "id and name in every piece": [[piece("c1", "look", '{"city"')], [piece("c1", "look", ': "Paris"}')],
                                   [piece("c2", "look", ROME, 1)]],
    "the whole again at the end": [[piece("c1", "look", PARIS)], [piece("c2", "look", ROME, 1)],
                                   [piece("c1", "look", PARIS), piece("c2", "look", json.dumps(ROME), 1)]],
    "pieces of two in turns": [[piece("c1", "look", '{"city"'), piece("c2", "look", '{"city"', 1)],
                               [piece(arguments=': "Paris"}'), piece(arguments=': "Rome"}', index=1)]],
}  # fmt: skip


@pytest.mark.parametrize("chunks", CALLS.values(), ids=CALLS)
async def test_streamed_tool_calls_are_assembled(tmp_path: Path, chunks: list[list[Json]]) -> None:
    stream: list[Json] = [
        {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"tool_calls": calls}}]}
        for calls in chunks
    ]
    stream += [{"object": "chat.completion.chunk", "choices": [{"delta": {}, "finish_reason": "tool_calls"}]}]
    # The figures come without a choice.
    stream += [{"object": "chat.completion.chunk", "choices": [], "usage": {"prompt_tokens": 7}}]
    async with serving(tmp_path) as bench:
        given = {"provider": "openai", "request": {"model": "m", "messages": [user("?")]}, "response": stream}
        node = await bench.call(TranscriptNode(hash=(await post(bench, given)).head_hash))
        assert node is not None
        assert [(call.tool_use_id, call.tool_name, call.tool_input) for call in node.bucket.content] == [
            ("c1", "look", {"city": "Paris"}), ("c2", "look", {"city": "Rome"}),
        ]  # fmt: skip
        assert (node.usage or {}).get("prompt_tokens") == 7


@pytest.mark.parametrize(
    ("begins", "ends", "total"),
    [
        ({"input_tokens": 10, "cache_read_input_tokens": 7, "output_tokens": 1}, {"output_tokens": 5}, (17, 5)),
        ({"input_tokens": 10, "output_tokens": 0}, {"input_tokens": 0, "output_tokens": 5}, (10, 5)),
        ({}, {"input_tokens": 10, "cache_read_input_tokens": 7, "output_tokens": 5}, (17, 5)),
        ({"input_tokens": 10, "cache_read_input_tokens": 7},
         {"input_tokens": None, "cache_read_input_tokens": None, "output_tokens": 5}, (17, 5)),
        ({"input_tokens": 10, "cache_read_input_tokens": 7},
         {"input_tokens": 10, "cache_read_input_tokens": 7, "output_tokens": 5}, (17, 5)),
    ],
)  # fmt: skip
async def test_the_figures_of_a_stream_are_cumulative(
    tmp_path: Path, begins: Json, ends: Json, total: tuple[int, int]
) -> None:
    stream: list[Json] = [
        {"type": "message_start", "message": {"model": "m", "usage": begins}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Five."}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": ends},
        {"type": "message_stop"},
    ]
    async with serving(tmp_path) as bench:
        await post(bench, {"provider": "anthropic", "request": {"messages": [user("?")]}, "response": stream})
        (one,) = await listed(bench)
        assert (one.tokens.input, one.tokens.output, one.tokens.estimated) == (*total, False)


CONTINUED = "This session is being continued from a previous conversation that ran out of context. The summary: x"


async def test_a_summary_by_the_agent_is_not_the_title(tmp_path: Path) -> None:
    caveat = "<local-command-caveat>Caveat: The messages below were generated by the user.</local-command-caveat>"
    records = [
        claude("u0", None, "user", caveat, isMeta=True),
        claude("u1", "u0", "user", CONTINUED, isCompactSummary=True),
        claude("a1", "u1", "assistant", [{"type": "text", "text": "Yes."}], id="m1"),
        claude("u2", "a1", "user", "Now the arms"),
    ]
    async with serving(tmp_path) as bench:
        await take_in(bench, records)
        assert [(one.title, one.turns) for one in await listed(bench)] == [("Now the arms", 4)]
        await take_in(bench, [claude("u9", None, "user", CONTINUED, sessionId="t", isCompactSummary=True)], "/t")
        assert "" in [one.title for one in await listed(bench)]


# The output of Claude Code's command, kept in a file.


def output(kind: str, content: Any, *, branch: str | None = None, **more: Any) -> Json:
    message: Json = {"role": kind, "content": content}
    if kind == "assistant":
        message |= {"id": more.pop("id"), "model": "claude-x", "usage": {"input_tokens": 3, "output_tokens": 5}}
    return {"type": kind, "message": message, "session_id": "s", "parent_tool_use_id": branch, **more}


@pytest.mark.parametrize("has_uuids", [False, True])
async def test_the_output_of_the_command_is_a_conversation(tmp_path: Path, has_uuids: bool) -> None:
    task = {"type": "tool_use", "id": "t1", "name": "Task", "input": {"prompt": "Count"}}
    records: list[Json] = [
        {"type": "system", "subtype": "init", "cwd": "/home/u/sea", "session_id": "s", "model": "claude-x"},
        output("user", "How many arms?"),
        output("assistant", [{"type": "text", "text": "Let me see."}], id="m1"),
        output("assistant", [task], id="m1"),
        output("user", "Count", branch="t1"),
        output("assistant", [{"type": "text", "text": "Five"}], branch="t1", id="m2"),
        output("user", [{"type": "tool_result", "tool_use_id": "t1", "content": "Five"}]),
        output("assistant", [{"type": "text", "text": "Five."}], id="m3"),
        {"type": "result", "subtype": "success", "result": "Five.", "session_id": "s", "usage": {"output_tokens": 15}},
    ]
    if has_uuids:
        records = [{**record, "uuid": f"u{number}"} for number, record in enumerate(records)]
    async with serving(tmp_path) as bench:
        taken = await take_in(bench, records)
        assert (taken.unreadable, taken.mended, taken.layout) == (0, 0, "claude")
        (one,) = await listed(bench)
        assert await turns(bench, one) == [
            ("user", "How many arms?"), ("assistant", "Let me see.|Task"), ("user", "Five"), ("assistant", "Five."),
        ]  # fmt: skip
        assert (one.project, one.turns) == ("/home/u/sea", 6)
        # Those of the result are the sum of the others.
        assert (one.tokens.input, one.tokens.output, one.tokens.estimated) == (9, 15, False)


# Codex: copies of a parent's history.


def counts(total: int, last: int) -> Json:
    sums, call = ({"input_tokens": each, "output_tokens": 1, "total_tokens": each + 1} for each in (total, last))
    return codex("event_msg", type="token_count", info={"total_token_usage": sums, "last_token_usage": call})


PARENT = [codex("session_meta", id="p", cwd="/w"), spoken("user", "Plan"), spoken("assistant", "A plan."),
          counts(100, 100), spoken("user", "More"), spoken("assistant", "More of it."), counts(300, 200)]  # fmt: skip
CHILDREN: dict[str, Json] = {
    "forked": {"forked_from_id": "p"},
    "spawned": {"source": {"subagent": {"thread_spawn": {"parent_thread_id": "p"}}}},
}


@pytest.mark.parametrize("parent_first", [True, False])
@pytest.mark.parametrize("has_meta", [True, False])
@pytest.mark.parametrize("about", CHILDREN.values(), ids=CHILDREN)
async def test_a_copied_history_is_counted_once_and_for_the_parent(
    tmp_path: Path, about: Json, has_meta: bool, parent_first: bool
) -> None:
    copied = PARENT if has_meta else PARENT[1:]
    child = [codex("session_meta", id="c", cwd="/v", **about), *copied, spoken("user", "Other"),
             spoken("assistant", "Done."), counts(350, 50)]  # fmt: skip
    files = [("/p", PARENT), ("/c", child)]
    async with serving(tmp_path) as bench:
        for source, records in files if parent_first else reversed(files):
            await take_in(bench, records, source)
        found = {one.project: one for one in await listed(bench)}
        assert {name: (one.tokens.input, one.tokens.estimated) for name, one in found.items()} == {
            "/w": (300, False), "/v": (50, False),
        }  # fmt: skip
        assert {name: one.turns for name, one in found.items()} == {"/w": 4, "/v": 6}


# Exports.

HOW, FIVE = ("user", "How many arms?"), ("assistant", "Five.")
LIBRE = {
    "conversationId": "x", "title": "Stars", "messages": [
        {"messageId": "1", "sender": "User", "isCreatedByUser": True, "text": "How many arms?"},
        {"messageId": "2", "sender": "Sea-4", "isCreatedByUser": False, "text": "",
         "content": [{"type": "text", "text": {"value": "Five."}}]},
    ],
}  # fmt: skip
OPEN_WEBUI = {"id": "x", "title": "Stars", "chat": {
    "history": {"messages": {}, "currentId": "2"}, "models": ["m"],
    "messages": [{**user("How many arms?"), "id": "1"}, {**assistant("Five."), "id": "2", "parentId": "1"}],
}}  # fmt: skip
BUDGET = {"type": "token_budget", "text": None, "content": None, "input": None, "name": None}
EXPORTS: dict[str, tuple[list[Json], list[list[tuple[str, str]]], str]] = {
    "LibreChat": ([LIBRE], [[HOW, FIVE]], "Stars"),
    "Open WebUI": ([OPEN_WEBUI], [[HOW, FIVE]], "Stars"),
    "ChatGPT in an object": (
        [{"conversations": [CHATGPT]}],
        [[HOW, ("assistant", "Five."), ("user", "file-service://x|And this?")], [HOW, ("assistant", "Six.")]],
        "Arms",
    ),
    "Claude in an object": ([{"conversations": [CLAUDE_AI]}], [[("user", "How many arms?|stars"), FIVE]], "Arms"),
    "Claude with new kinds of content": (
        [{"uuid": "k", "name": "Arms", "chat_messages": [
            {"uuid": "1", "sender": "human", "content": [{"type": "voice_note", "title": "x", "text": HOW[1]}]},
            {"uuid": "2", "sender": "assistant", "content": [BUDGET, {"type": "text", "text": "Five."}, BUDGET]}]}],
        [[HOW, FIVE]],
        "Arms",
    ),
    "Gemini CLI with another name of the role": (
        [{"sessionId": "s", "projectHash": "p", "kind": "main"},
         {"id": "1", "type": "user", "content": [{"text": "How many arms?"}]},
         {"id": "2", "type": "model", "content": [{"text": "Five."}]}],
        [[HOW, FIVE]],
        "How many arms?",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("records", "told", "title"), EXPORTS.values(), ids=EXPORTS)
async def test_exports_are_read(
    tmp_path: Path, records: list[Json], told: list[list[tuple[str, str]]], title: str
) -> None:
    async with serving(tmp_path) as bench:
        taken = await take_in(bench, records)
        assert (taken.unreadable, taken.problem) == (0, "")
        assert await conversations(bench) == sorted(told)
        assert [one.title for one in await listed(bench)] == [title]


# Files that agents put beside their sessions.

BESIDE: dict[str, list[Json]] = {
    "Gemini's prompts": [{"sessionId": "s", "messageId": 0, "type": "user", "message": "How many arms?"}],
    "Claude's description of a sub-agent": [{"agentType": "Explore", "description": "Look for arms"}],
    "Claude's index": [{"version": 1, "entries": [{"sessionId": "s", "firstPrompt": "x", "messageCount": 2}]}],
}


@pytest.mark.parametrize("records", BESIDE.values(), ids=BESIDE)
async def test_other_files_in_the_sessions_folder_are_recognized_and_skipped(
    tmp_path: Path, records: list[Json]
) -> None:
    async with serving(tmp_path) as bench:
        taken = await take_in(bench, records)
        assert (taken.messages, taken.unreadable) == (0, 0)
        assert taken.layout != "none"


async def test_the_index_of_claudes_sessions_names_them(tmp_path: Path) -> None:
    entries = [{"sessionId": "s", "summary": "Arms of sea stars"}, {"sessionId": "t", "customTitle": "Mine"}]
    async with serving(tmp_path) as bench:
        await take_in(bench, [claude("u1", None, "user", "How many arms?")], "/s")
        await take_in(bench, [{"version": 1, "entries": entries}], "/index")
        await take_in(bench, [claude("u2", None, "user", "And legs?", sessionId="t")], "/t")
        assert sorted(one.title for one in await listed(bench)) == ["Arms of sea stars", "Mine"]


async def test_the_index_of_codexs_sessions_names_them(tmp_path: Path) -> None:
    index = [{"id": "p", "thread_name": "Plans", "updated_at": "2026-03-01T10:00:00Z"}]
    async with serving(tmp_path) as bench:
        await take_in(bench, PARENT, "/p")
        assert (await take_in(bench, index, "/index")).unreadable == 0
        assert [one.title for one in await listed(bench)] == ["Plans"]
