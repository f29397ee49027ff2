"""Files that agents leave become the conversations that their models were part of, however the files are cut up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio

from services.transcripts.operations.conversations import (
    Histories,
    TranscriptCheckout,
    TranscriptHistories,
    TranscriptNode,
    TranscriptsSearch,
    TranscriptStats,
)
from services.transcripts.operations.intake import ImportResult, ImportState, TranscriptImport, TranscriptImportState
from tests.in_process import Bench
from tests.unit.transcripts.rig import Json, assistant, payload, post, serving, user


async def take_in(bench: Bench, records: Sequence[Json | str], source: str = "/f", *, cut: int = 0) -> ImportResult:
    """A whole file; with `cut`, in two goes, the first of which saw the file end there."""
    texts = [record if isinstance(record, str) else json.dumps(record) for record in records]
    whole = len(texts)
    if cut:
        part = TranscriptImport(source=source, start=0, position=cut, tail="a", records=texts[:cut], final=True)
        await bench.call(part)
    return await bench.call(
        TranscriptImport(source=source, start=cut, position=whole, tail="b", records=texts[cut:], final=True)
    )


async def conversations(bench: Bench) -> list[list[tuple[str, str]]]:
    """Return each conversation as roles and texts or actions."""
    found: Histories = await bench.call(TranscriptHistories())
    return sorted(
        [
            (
                message.role,
                "|".join(
                    block.text or block.tool_output or block.tool_name or block.image_url or block.media_type
                    for block in message.content
                ),
            )
            for message in history.messages
        ]
        for history in found.histories
    )


def claude(uuid: str, parent: str | None, kind: str, content: Any, **more: Any) -> Json:
    message: Json = {"role": kind, "content": content}
    if kind == "assistant":
        message |= {
            "id": more.pop("id"), "model": "claude-x", "type": "message", "stop_reason": more.pop("stop", None),
            "usage": {"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 5},
        }  # fmt: skip
    return {
        "parentUuid": parent, "isSidechain": False, "cwd": "/home/u/sea", "sessionId": "s", "version": "2.0",
        "uuid": uuid, "timestamp": "2026-03-01T10:00:00.000Z", "type": kind, "message": message, **more,
    }  # fmt: skip


def use(id_: str, name: str) -> Json:
    return {"type": "tool_use", "id": id_, "name": name, "input": {"path": id_}}


def result(id_: str, said: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": id_, "content": said}


PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}

CLAUDE: list[Json] = [
    {"type": "summary", "summary": "Sea stars", "leafUuid": "a5"},
    {"type": "file-history-snapshot", "messageId": "u1", "snapshot": {}},
    claude("u1", None, "user", "How many arms has a sea star?"),
    claude("a1", "u1", "assistant", [{"type": "thinking", "thinking": "Hm.", "signature": "s"}], id="m1"),
    claude("a2", "a1", "assistant", [{"type": "text", "text": "Let me look."}], id="m1"),
    claude("a3", "a2", "assistant", [use("t1", "Read")], id="m1"),
    claude("r1", "a3", "user", [result("t1", "five")], toolUseResult={"file": {}}),
    claude("a4", "a3", "assistant", [use("t2", "Look")], id="m1", stop="tool_use"),
    {"type": "progress", "uuid": "p1", "parentUuid": "a4", "data": {}},
    claude("r2", "p1", "user", [result("t2", [{"type": "text", "text": "a picture"}, PNG])]),
    {"type": "system", "uuid": "s1", "parentUuid": "r2", "subtype": "hook", "content": "x"},
    claude("a5", "s1", "assistant", [{"type": "text", "text": "Five."}], id="m2", stop="end_turn"),
    # The person goes back and asks again, and the API fails once.
    claude("u2", None, "user", "How many arms has a brittle star?"),
    {**claude("e1", "u2", "assistant", [{"type": "text", "text": "API Error"}], id="x"), "message": {
        "id": "x", "model": "<synthetic>", "role": "assistant", "content": [{"type": "text", "text": "API Error"}]}},
    claude("a6", "e1", "assistant", [{"type": "text", "text": "Five as well."}], id="m3"),
    claude("u3", "a5", "user", "And a sunflower star?"),
    claude("a7", "u3", "assistant", [{"type": "text", "text": "Up to 24."}], id="m4"),
    claude("u4", "a5", "user", "And a cushion star?"),
    claude("a8", "u4", "assistant", [{"type": "text", "text": "Five, "}], id="m5"),
    claude("a9", "a8", "assistant", [{"type": "text", "text": "short ones."}], id="m5"),
]  # fmt: skip

_LOOKED = [
    ("user", "How many arms has a sea star?"),
    ("assistant", "Let me look.|Read|Look"),
    ("user", "five|a picture|image/png"),
    ("assistant", "Five."),
]
CLAUDE_TOLD = sorted(
    [
        [*_LOOKED, ("user", "And a sunflower star?"), ("assistant", "Up to 24.")],
        [*_LOOKED, ("user", "And a cushion star?"), ("assistant", "Five, |short ones.")],
        [("user", "How many arms has a brittle star?"), ("assistant", "Five as well.")],
    ]
)


def codex(kind: str, **more: Any) -> Json:
    return {"timestamp": "2026-03-01T10:00:00.000Z", "type": kind, "payload": more}


def item(type_: str, **more: Any) -> Json:
    return codex("response_item", **{"type": type_, **more})


def spoken(role: str, text: str) -> Json:
    kind = "output_text" if role == "assistant" else "input_text"
    return item("message", role=role, content=[{"type": kind, "text": text}])


CODEX: list[Json] = [
    codex("session_meta", id="s", cwd="/home/u/sea", cli_version="0.50", instructions="Be brief.", git={}),
    spoken("user", "<environment_context>\n<cwd>/home/u/sea</cwd>\n</environment_context>"),
    codex("turn_context", cwd="/home/u/sea", model="gpt-x"),
    spoken("user", "How many arms has a sea star?"),
    codex("event_msg", type="user_message", message="How many arms has a sea star?"),
    item("reasoning", summary=[{"type": "summary_text", "text": "Hm."}], encrypted_content="x"),
    spoken("assistant", "Let me look."),
    item("function_call", name="shell", arguments='{"command": ["cat", "star"]}', call_id="c1"),
    codex("event_msg", type="token_count", info={"last_token_usage": {
        "input_tokens": 7, "cached_input_tokens": 4, "output_tokens": 5, "total_tokens": 12}}),
    item("function_call_output", call_id="c1", output="five"),
    spoken("assistant", "Five."),
    spoken("user", "And a crab?"),
    spoken("assistant", "None."),
    codex("event_msg", type="thread_rolled_back", num_turns=1),
    spoken("user", "And a brittle star?"),
    spoken("assistant", "Five as well."),
    codex("compacted", message="We spoke of arms."),
    spoken("user", "Go on."),
    spoken("assistant", "Sea urchins have none."),
]  # fmt: skip
_CODEX_BEGAN = [
    ("user", "<environment_context>\n<cwd>/home/u/sea</cwd>\n</environment_context>"),
    ("user", "How many arms has a sea star?"),
    ("assistant", "Let me look.|shell"),
    ("tool", "five"),
    ("assistant", "Five."),
]
CODEX_TOLD = sorted(
    [
        [*_CODEX_BEGAN, ("user", "And a crab?"), ("assistant", "None.")],
        [*_CODEX_BEGAN, ("user", "And a brittle star?"), ("assistant", "Five as well.")],
        [("user", "We spoke of arms."), ("user", "Go on."), ("assistant", "Sea urchins have none.")],
    ]
)
OLD_CODEX: list[Json] = [
    {"id": "s", "timestamp": "2025-05-01T10:00:00Z", "instructions": None, "git": {}},
    *(record["payload"] for record in CODEX[:13] if record["type"] == "response_item"),
    {"record_type": "state"},
]

GEMINI_MESSAGES: list[Json] = [
    {"id": "1", "timestamp": "2026-03-01T10:00:00Z", "type": "user", "content": "How many arms has a sea star?"},
    {"id": "2", "timestamp": "2026-03-01T10:00:01Z", "type": "info", "content": "Update available."},
    {"id": "3", "timestamp": "2026-03-01T10:00:02Z", "type": "gemini", "content": "Let me look.", "model": "gemini-x",
     "thoughts": [{"subject": "Arms", "description": "Hm."}],
     "tokens": {"input": 7, "output": 5, "cached": 4, "total": 12},
     "toolCalls": [{"id": "c1", "name": "read_file", "args": {"path": "star"}, "status": "success", "result": [
         {"functionResponse": {"id": "c1", "name": "read_file", "response": {"output": "five"}}}]}]},
    {"id": "4", "timestamp": "2026-03-01T10:00:03Z", "type": "gemini", "content": "Five.", "model": "gemini-x"},
]  # fmt: skip
GEMINI_TOLD = [
    [
        ("user", "How many arms has a sea star?"),
        ("assistant", "Let me look.|read_file"),
        ("tool", "five"),
        ("assistant", "Five."),
    ]
]
GEMINI: list[Json] = [{"sessionId": "s", "projectHash": "p", "startTime": "x", "messages": GEMINI_MESSAGES}]
GEMINI_LINES: list[Json] = [
    {"sessionId": "s", "projectHash": "p", "startTime": "x"},
    GEMINI_MESSAGES[0],
    {
        **GEMINI_MESSAGES[2],
        "toolCalls": [{**GEMINI_MESSAGES[2]["toolCalls"][0], "result": None, "status": "executing"}],
    },
    GEMINI_MESSAGES[2],
    {"$set": {"lastUpdated": "y"}},
    {"id": "9", "timestamp": "2026-03-01T10:00:03Z", "type": "gemini", "content": "Six."},
    {"$rewindTo": "9"},
    GEMINI_MESSAGES[3],
]
GEMINI_LINES_TOLD = sorted([*GEMINI_TOLD, [*GEMINI_TOLD[0][:-1], ("assistant", "Six.")]])
GEMINI_API: list[Json] = [
    {"role": "user", "parts": [{"text": "How many arms has a sea star?"}]},
    {"role": "model", "parts": [
        {"text": "Hm.", "thought": True}, {"text": "Let me look."},
        {"functionCall": {"id": "c1", "name": "read_file", "args": {"path": "star"}}}]},
    {"role": "user", "parts": [
        {"functionResponse": {"id": "c1", "name": "read_file", "response": {"output": "five"}}}]},
    {"role": "model", "parts": [{"text": "Five."}]},
]  # fmt: skip

ASKED, ANSWERED = ("user", "How many arms?"), ("assistant", "Five.")
CHATGPT: Json = {
    "title": "Arms", "create_time": 1772359200.0, "conversation_id": "c", "current_node": "n4", "mapping": {
        "n0": {"id": "n0", "message": None, "parent": None, "children": ["n1"]},
        "n1": {"id": "n1", "parent": "n0", "children": ["n2", "n4"], "message": {
            "id": "n1", "author": {"role": "user"}, "create_time": 1772359200.0, "metadata": {},
            "content": {"content_type": "text", "parts": ["How many arms?"]}}},
        "n2": {"id": "n2", "parent": "n1", "children": [], "message": {
            "id": "n2", "author": {"role": "assistant"}, "metadata": {"model_slug": "gpt-x"},
            "content": {"content_type": "text", "parts": ["Six."]}}},
        "n3": {"id": "n3", "parent": "n4", "children": ["n5"], "message": {
            "id": "n3", "author": {"role": "user"}, "content": {"content_type": "multimodal_text", "parts": [
                {"content_type": "image_asset_pointer", "asset_pointer": "file-service://x"}, "And this?"]}}},
        "n4": {"id": "n4", "parent": "n1", "children": ["n3"], "message": {
            "id": "n4", "author": {"role": "assistant"}, "content": {"content_type": "text", "parts": ["Five."]}}},
        "n5": {"id": "n5", "parent": "n3", "children": [], "message": {
            "id": "n5", "author": {"role": "assistant"}, "content": {"content_type": "thoughts", "thoughts": []}}},
    },
}  # fmt: skip
CLAUDE_AI: Json = {
    "uuid": "k", "name": "Arms", "chat_messages": [
        {"uuid": "k1", "sender": "human", "text": "How many arms?", "created_at": "2026-03-01T10:00:00Z",
         "content": [{"type": "text", "text": "How many arms?"}],
         "attachments": [{"file_name": "a.txt", "extracted_content": "stars"}]},
        {"uuid": "k2", "sender": "assistant", "text": "Five.", "content": []},
    ],
}  # fmt: skip
EXPORTS: list[tuple[str, list[Json], list[list[tuple[str, str]]]]] = [
    ("messages", [{"model": "m", "messages": [user("How many arms?"), assistant("Five.")]}], [[ASKED, ANSWERED]]),
    ("one by one", [user("How many arms?"), assistant("Five.")], [[ASKED, ANSWERED]]),
    (
        "several conversations",
        [{"messages": [user("How many arms?"), assistant("Five.")]}, {"messages": [user("Legs?"), assistant("None.")]}],
        [[ASKED, ANSWERED], [("user", "Legs?"), ("assistant", "None.")]],
    ),
    (
        "anthropic",
        [{"system": "Be brief.", "model": "claude-x", "messages": [
            user("How many arms?"), {"role": "assistant", "content": [use("t1", "look")]},
            {"role": "user", "content": [result("t1", "5")]}, assistant("Five.")]}],
        [[ASKED, ("assistant", "look"), ("user", "5"), ANSWERED]],
    ),
    (
        "openai with tools",
        [{"messages": [
            user("How many arms?"),
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "5"}, assistant("Five.")]}],
        [[ASKED, ("assistant", "look"), ("tool", "5"), ANSWERED]],
    ),
    ("captured", [payload([user("How many arms?")], "Five.")], [[ASKED, ANSWERED]]),
    ("fine-tuning", [{"conversations": [
        {"from": "human", "value": "How many arms?"}, {"from": "gpt", "value": "Five."}]}],
     [[ASKED, ANSWERED]]),
    ("chatgpt", [CHATGPT], sorted([
        [ASKED, ("assistant", "Six.")], [ASKED, ANSWERED, ("user", "file-service://x|And this?")]])),
    ("claude.ai", [CLAUDE_AI], [[("user", "How many arms?|stars"), ANSWERED]]),
    ("gemini api", GEMINI_API, GEMINI_TOLD),
]  # fmt: skip

FILES: list[tuple[str, list[Json], list[list[tuple[str, str]]]]] = [
    ("claude", CLAUDE, CLAUDE_TOLD),
    ("codex", CODEX, CODEX_TOLD),
    ("old codex", OLD_CODEX, [CODEX_TOLD[0] if "crab" in str(CODEX_TOLD[0]) else CODEX_TOLD[1]]),
    ("gemini", GEMINI, GEMINI_TOLD),
    ("gemini lines", GEMINI_LINES, GEMINI_LINES_TOLD),
    *EXPORTS,
]


@pytest.mark.parametrize(("records", "told"), [file[1:] for file in FILES], ids=[file[0] for file in FILES])
async def test_a_file_becomes_its_conversations_and_again_nothing_new(
    tmp_path: Path, records: list[Json], told: list[list[tuple[str, str]]]
) -> None:
    async with serving(tmp_path) as bench:
        first = await take_in(bench, records)
        assert await conversations(bench) == sorted(told)
        assert (first.unreadable, first.problem) == (0, "")
        assert first.nodes == (await bench.call(TranscriptStats())).total_nodes
        again = await take_in(bench, records, "/copy")
        assert (again.messages, again.nodes) == (first.messages, 0)


@pytest.mark.parametrize(
    ("records", "told"),
    [(CLAUDE, CLAUDE_TOLD), (CODEX, CODEX_TOLD), (GEMINI_LINES, GEMINI_LINES_TOLD)],
    ids=["claude", "codex", "gemini lines"],
)
async def test_a_file_that_is_read_while_it_grows_comes_to_the_same(
    tmp_path: Path, records: list[Json], told: list[list[tuple[str, str]]]
) -> None:
    for cut in range(1, len(records)):
        async with serving(tmp_path / str(cut)) as bench:
            await take_in(bench, records, cut=cut)
            assert await conversations(bench) == told, f"read up to record {cut} before"


async def test_repeated_parts_are_recognized_and_parts_out_of_order_get_the_expected_position(tmp_path: Path) -> None:
    texts = [json.dumps(record) for record in CLAUDE]
    async with serving(tmp_path) as bench:
        first = TranscriptImport(source="/f", start=0, position=9, tail="x", records=texts[:9])
        answer = await bench.call(first)
        assert await bench.call(first) == answer
        assert (await bench.call(TranscriptImportState(source="/f"))).position == 9
        out_of_turn = TranscriptImport(source="/f", start=4, position=9, tail="y", records=texts[4:9])
        assert await bench.call(out_of_turn) == ImportResult(moved=ImportState(position=9, tail="x", layout="claude"))
        rest = TranscriptImport(source="/f", start=9, position=20, tail="y", records=texts[9:], final=True)
        await bench.call(rest)
        assert await conversations(bench) == CLAUDE_TOLD
        # The file was written again with the same content, so nothing is new.
        assert (await take_in(bench, CLAUDE)).nodes == 0


async def test_two_imports_of_one_file_continue_each_other(tmp_path: Path) -> None:
    texts = [json.dumps(record) for record in CLAUDE]
    answers: list[ImportResult] = []

    def part(start: int, end: int) -> TranscriptImport:
        records, final = texts[start:end], end == len(texts)
        return TranscriptImport(source="/f", start=start, position=end, tail=str(end), records=records, final=final)

    async with serving(tmp_path) as bench:

        async def send(one: TranscriptImport) -> None:
            answers.append(await bench.call(one))

        await send(part(0, 4))
        # The import that was interrupted has a part under way, and its successor sends the same one, and another.
        async with trio.open_nursery() as nursery:
            for end in (7, 7, 9):
                nursery.start_soon(send, part(4, end))
        moved = [answer.moved for answer in answers if answer.moved is not None]
        (at,) = {each.position for each in moved}
        assert [answer.moved for answer in answers[1:]].count(None) == (2 if at == 7 else 1)
        await send(part(at, len(texts)))
        assert await conversations(bench) == CLAUDE_TOLD


async def test_unreadable_records_are_counted_and_the_rest_is_kept(tmp_path: Path) -> None:
    broken = ['{"type": "user", "uuid"', "[1]", '{"foo": 1}']
    async with serving(tmp_path) as bench:
        taken = await take_in(bench, [*CLAUDE[:3], *broken, *CLAUDE[3:]])
        assert await conversations(bench) == CLAUDE_TOLD
        assert taken.unreadable == 3
        assert taken.problem.startswith("record 4 after byte 0 is not JSON")
        assert (await take_in(bench, ['{"foo": 1}'], "/other")).layout == "none"


async def test_turns_keep_their_speaker_time_and_place(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await take_in(bench, CLAUDE)
        found = await bench.call(TranscriptsSearch(query="sunflower star", project="/home/u/sea", agent="claude-code"))
        assert found.results[0].preview == "And a sunflower star?"
        reply = found.results[0].lineage[1].hash
        node = await bench.call(TranscriptNode(hash=reply))
        assert node is not None
        assert (node.bucket.model, node.bucket.provider, node.stop_reason) == ("claude-x", "anthropic", "tool_use")
        assert node.usage == {
            "prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12, "cache_read_input_tokens": 4}  # fmt: skip
        assert (await bench.call(TranscriptsSearch(query="star", since="2026-03-02"))).count == 0
        messages = (await bench.call(TranscriptCheckout(hash=found.results[0].hash))).messages
        assert [part["type"] for part in messages[1]["content"]] == ["text", "tool_use", "tool_use"]
        await take_in(bench, CODEX, "/codex")
        found = await bench.call(TranscriptsSearch(query="brittle star", agent="codex"))
        checkout = await bench.call(TranscriptCheckout(hash=found.results[0].hash))
        assert checkout.messages[0] == {"role": "system", "content": "Be brief."}
        assert checkout.model == "gpt-x"


async def test_a_session_continued_in_another_file_is_one_conversation(tmp_path: Path) -> None:
    async with serving(tmp_path) as bench:
        await take_in(bench, CLAUDE[:12], "/one")
        await take_in(bench, CLAUDE[12:], "/two")
        assert await conversations(bench) == CLAUDE_TOLD


async def test_importing_an_export_of_recorded_turns_adds_nothing(tmp_path: Path) -> None:
    said = [user("How many arms?"), assistant("Five."), user("And a crab?")]
    async with serving(tmp_path) as bench:
        await post(bench, payload(said, "None."))
        taken = await take_in(bench, [{"model": "m", "messages": [*said, assistant("None.")]}])
        assert (taken.messages, taken.nodes) == (4, 0)


async def test_secrets_in_files_are_stored_nowhere_not_even_while_a_message_is_incomplete(tmp_path: Path) -> None:
    secret = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    records = [
        claude("u1", None, "user", f"The token is {secret}."),
        claude("a1", "u1", "assistant", [{"type": "text", "text": f"I see {secret}."}], id="m1"),
    ]
    async with serving(tmp_path) as bench:
        await take_in(bench, records)
        assert (await bench.call(TranscriptStats())).total_nodes == 2
    assert not [file for file, data in contents(tmp_path) if secret.encode() in data]


def contents(folder: Path) -> list[tuple[Path, bytes]]:
    """All files below a folder."""
    return [(file, file.read_bytes()) for file in folder.rglob("*") if file.is_file()]


@pytest.mark.parametrize("records", [CLAUDE, CODEX, GEMINI_LINES], ids=["claude", "codex", "gemini"])
async def test_records_of_no_known_type_do_not_end_an_import(tmp_path: Path, records: list[Json]) -> None:
    kinds: list[Any] = [[], {"a": 1}, 7]
    strange = [{**records[1], "id": "x", "type": kind} for kind in kinds]
    async with serving(tmp_path) as bench:
        whole = await take_in(bench, records)
        result = await take_in(bench, [*records, *strange], source="/g")
        assert (result.messages, result.unreadable) == (whole.messages, whole.unreadable + len(strange))


async def test_an_export_with_invalid_child_ids_is_read(tmp_path: Path) -> None:
    said = {"author": {"role": "user"}, "content": {"content_type": "text", "parts": ["How many arms?"]}}
    node = {"id": "n", "parent": None, "children": [{"a": 1}, ["b"], 7], "message": said}
    async with serving(tmp_path) as bench:
        result = await take_in(bench, [{"mapping": {"n": node}}])
        assert (result.messages, result.unreadable) == (1, 0)
