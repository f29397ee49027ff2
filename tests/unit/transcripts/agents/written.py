"""Sessions of each agent as it writes them: the same talk, in two turns, and then a third."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from services.shared import zstd
from tests.unit.transcripts.rig import Json

FOLDER = "/home/ann/garden"
AT = 1_772_359_200
"""2026-03-01T10:00:00Z."""


class Told(NamedTuple):
    """What an agent says in one turn: the question, a call with its result if there is one, and the answer."""

    asked: str
    answer: str
    call: bool = False


TALK = (
    Told("How many arms has a sea star?", "Five.", call=True),
    Told("And a sunflower star?", "Up to 24."),
    Told("And a cushion star?", "Five, short ones."),
)


class Agent(NamedTuple):
    """An agent: the function that writes its session with these turns, its name, and what else the session states.

    `write` returns the file to import; `tokens` are those sent and received in the first two turns; None if
    the session does not state them, so that they are estimated.
    """

    write: Callable[[Path, tuple[Told, ...]], Path]
    name: str
    tokens: tuple[int, int] | None
    title: str = "How many arms has a sea star?"
    project: str = FOLDER
    model: str = ""
    has_calls: bool = True


def written(path: Path, data: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data if isinstance(data, str) else json.dumps(data, indent=2))
    return path


def lines(records: list[Json]) -> str:
    return "".join(f"{json.dumps(record)}\n" for record in records)


def iso(second: int) -> str:
    return f"2026-03-01T10:00:{second:02}.000Z"


def qwen(folder: Path, talk: tuple[Told, ...]) -> Path:
    records: list[Json] = []

    def add(kind: str, parts: list[Json], **more: Any) -> None:
        before = records[-1]["uuid"] if records else None
        role = "model" if kind == "assistant" else "user"
        records.append({
            "uuid": f"q{len(records)}", "parentUuid": before, "sessionId": "qs", "timestamp": iso(len(records)),
            "type": kind, "cwd": FOLDER, "version": "0.9.0", "gitBranch": "main",
            **({"message": {"role": role, "parts": parts}} if parts else {}), **more,
        })  # fmt: skip

    def reply(parts: list[Json]) -> None:
        figures = {"promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 110}
        add("assistant", parts, model="qwen3-coder", usageMetadata={**figures, "cachedContentTokenCount": 40})

    for turn in talk:
        add("user", [{"text": turn.asked}])
        if turn.call:
            call = {"id": "c1", "name": "read_file", "args": {"path": "star"}}
            reply([{"text": "Hm.", "thought": True}, {"text": "Let me look."}, {"functionCall": call}])
            answer = {"id": "c1", "name": "read_file", "response": {"output": "five"}}
            add("tool_result", [{"functionResponse": answer}], toolCallResult={"callId": "c1", "status": "success"})
            add("system", [], subtype="ui_telemetry", systemPayload={"uiEvent": {}})
        reply([{"text": turn.answer}])
    add("system", [], subtype="custom_title", systemPayload={"customTitle": "Arms", "titleSource": "manual"})
    return written(folder / "projects" / "-home-ann-garden" / "chats" / "qs.jsonl", lines(records))


def copilot(folder: Path, talk: tuple[Told, ...]) -> Path:
    events: list[Json] = []

    def add(kind: str, **data: Any) -> None:
        number = len(events)
        events.append({"type": kind, "data": data, "id": f"e{number}", "timestamp": iso(number), "parentId": None})

    context = {"cwd": FOLDER, "gitRoot": FOLDER, "branch": "main"}
    add("session.start", sessionId="cs", version=1, producer="copilot-agent", startTime=iso(0), context=context)
    add("session.model_change", newModel="gpt-5.1")
    for turn in talk:
        add("user.message", content=turn.asked, attachments=[])
        add("assistant.turn_start", turnId="0")
        if turn.call:
            call = {"toolCallId": "c1", "name": "view", "arguments": {"path": "star"}, "type": "function"}
            add("assistant.message", messageId="m1", content="Let me look.", toolRequests=[call], outputTokens=10)
            add("tool.execution_start", toolCallId="c1", toolName="view", arguments={"path": "star"})
            add("tool.execution_complete", toolCallId="c1", success=True, result={"content": "five"})
        add("assistant.message", messageId="m2", content=turn.answer, toolRequests=[], outputTokens=10)
    spent = {"inputTokens": 300, "outputTokens": 30, "cacheReadTokens": 120, "cacheWriteTokens": 0}
    if len(talk) == 2:
        add("session.shutdown", shutdownType="routine", modelMetrics={"gpt-5.1": {"requests": {}, "usage": spent}})
    return written(folder / "session-state" / "cs" / "events.jsonl", lines(events))


def chat_of(talk: tuple[Told, ...]) -> Json:
    requests = []
    for number, turn in enumerate(talk):
        rounds: list[Json] = [{"response": turn.answer, "toolCalls": [], "id": f"{number}b"}]
        results: Json = {}
        if turn.call:
            call = {"name": "read_file", "arguments": '{"path": "star"}', "id": "c1"}
            rounds.insert(0, {"response": "Let me look.", "toolCalls": [call], "id": "0a"})
            results = {"c1": {"$mid": 20, "content": [{"$mid": 21, "value": "five"}]}}
        requests.append({
            "requestId": f"request_{number}", "message": {"text": turn.asked, "parts": []}, "timestamp": AT * 1000,
            "response": [{"value": turn.answer}], "modelId": "copilot/gpt-4.1", "variableData": {"variables": []},
            "result": {"timings": {}, "metadata": {
                "toolCallRounds": rounds, "toolCallResults": results, "promptTokens": 150, "outputTokens": 15}},
        })  # fmt: skip
    return {
        "version": 3, "sessionId": "vs", "creationDate": AT * 1000, "customTitle": "Arms", "requests": requests,
        "responderUsername": "GitHub Copilot",
    }  # fmt: skip


def copilot_chat(folder: Path, talk: tuple[Told, ...]) -> Path:
    storage = folder / "workspaceStorage" / "0a1b"
    written(storage / "workspace.json", {"folder": f"file://{FOLDER}"})
    return written(storage / "chatSessions" / "vs.json", chat_of(talk))


def copilot_log(folder: Path, talk: tuple[Told, ...]) -> Path:
    """The same as a log of changes, in which a response comes after its request."""
    whole = chat_of(talk)
    entries: list[Json] = [{"kind": 0, "v": {**whole, "requests": [], "customTitle": None}}]
    for number, request in enumerate(whole["requests"]):
        entries += [
            {"kind": 2, "k": ["requests"], "v": [{**request, "response": [], "result": None}]},
            {"kind": 2, "k": ["requests", number, "response"], "v": [{"kind": "thinking"}, {"value": "Draft"}]},
            {"kind": 2, "k": ["requests", number, "response"], "v": request["response"], "i": 0},
            {"kind": 1, "k": ["requests", number, "result"], "v": request["result"]},
        ]
    entries += [{"kind": 1, "k": ["draft"], "v": "x"}, {"kind": 3, "k": ["draft"]}]
    entries.append({"kind": 1, "k": ["customTitle"], "v": "Arms"})
    storage = folder / "workspaceStorage" / "0a1b"
    written(storage / "workspace.json", {"folder": f"file://{FOLDER}"})
    return written(storage / "chatSessions" / "vs.jsonl", lines(entries))


def cline_as(extension: str) -> Callable[[Path, tuple[Told, ...]], Path]:
    def write(folder: Path, talk: tuple[Told, ...]) -> Path:
        messages: list[Json] = []
        notices: list[Json] = [{"type": "say", "say": "text", "text": talk[0].asked, "ts": AT * 1000}]
        about = f"<environment_details>\n# Current Working Directory ({FOLDER}) Files\n</environment_details>"

        def add(role: str, *content: Json) -> None:
            messages.append({"role": role, "content": list(content), "ts": (AT + len(messages)) * 1000})
            if role == "assistant":
                figures = {"tokensIn": 60, "tokensOut": 10, "cacheReads": 40, "cacheWrites": 0, "cost": 0.01}
                notices.append({"type": "say", "say": "api_req_started", "text": json.dumps(figures), "ts": AT * 1000})

        for number, turn in enumerate(talk):
            asked = f"<task>\n{turn.asked}\n</task>" if not number else turn.asked
            add("user", {"type": "text", "text": asked}, {"type": "text", "text": about})
            if turn.call:
                call = {"type": "tool_use", "id": "c1", "name": "read_file", "input": {"path": "star"}}
                add("assistant", {"type": "text", "text": "Let me look."}, call)
                add("user", {"type": "tool_result", "tool_use_id": "c1", "content": "five"})
            add("assistant", {"type": "text", "text": turn.answer})
        place = folder / "globalStorage" / extension / "tasks" / "1772359200000"
        written(place / "ui_messages.json", notices)
        written(place / "task_metadata.json", {"files_in_context": [], "model_usage": [{"model_id": "claude-x"}]})
        return written(place / "api_conversation_history.json", messages)

    return write


def amp(folder: Path, talk: tuple[Told, ...]) -> Path:
    messages: list[Json] = []

    def add(role: str, *content: Json) -> None:
        usage = {"model": "claude-x", "inputTokens": 60, "outputTokens": 10, "cacheReadInputTokens": 40}
        more = {"usage": usage, "state": {"type": "complete", "stopReason": "end_turn"}} if role == "assistant" else {}
        messages.append({
            "role": role, "messageId": len(messages), "content": list(content), **more,
            "meta": {"sentAt": (AT + len(messages)) * 1000},
        })  # fmt: skip

    for turn in talk:
        add("user", {"type": "text", "text": turn.asked})
        if turn.call:
            call = {"type": "tool_use", "id": "c1", "name": "Read", "input": {"path": "star"}, "complete": True}
            add("assistant", {"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Let me look."}, call)
            add("user", {"type": "tool_result", "toolUseID": "c1", "run": {"status": "done", "result": "five"}})
        add("assistant", {"type": "text", "text": turn.answer})
    thread = {
        "v": 7, "id": "T-019b9d03", "created": AT * 1000, "title": "Arms", "agentMode": "smart", "messages": messages,
        "env": {"initial": {"trees": [{"displayName": "garden", "uri": f"file://{FOLDER}"}]}},
    }  # fmt: skip
    return written(folder / "threads" / "T-019b9d03.json", thread)


def opencode_session(talk: tuple[Told, ...]) -> tuple[Json, list[tuple[Json, list[Json]]]]:
    said: list[tuple[Json, list[Json]]] = []

    def add(role: str, *parts: Json) -> None:
        id_ = f"msg_{len(said):04}"
        own: Json = {"id": id_, "sessionID": "ses_1", "role": role, "time": {"created": (AT + len(said)) * 1000}}
        if role == "assistant":
            tokens = {"input": 60, "output": 8, "reasoning": 2, "cache": {"read": 40, "write": 0}}
            own |= {"modelID": "claude-x", "providerID": "anthropic", "cost": 0.01, "tokens": tokens}
        named = [{"sessionID": "ses_1", "messageID": id_, **part} for part in parts]
        said.append((own, [{"id": f"prt_{id_}_{number:02}", **part} for number, part in enumerate(named)]))

    start, finish = {"type": "step-start"}, {"type": "step-finish", "reason": "stop", "cost": 0}
    for turn in talk:
        add("user", {"type": "text", "text": turn.asked}, {"type": "text", "text": "(read star)", "synthetic": True})
        if turn.call:
            state = {"status": "completed", "input": {"path": "star"}, "output": "five", "title": "star"}
            call = {"type": "tool", "callID": "c1", "tool": "read", "state": state}
            thought = {"type": "reasoning", "text": "Hm."}
            add("assistant", start, thought, {"type": "text", "text": "Let me look."}, call, finish)
        add("assistant", start, {"type": "text", "text": turn.answer}, finish)
    times = {"created": AT * 1000, "updated": AT * 1000}
    session = {"id": "ses_1", "projectID": "p", "directory": FOLDER, "title": "Arms", "version": "1.0", "time": times}
    return session, said


def opencode_files(folder: Path, talk: tuple[Told, ...]) -> Path:
    session, said = opencode_session(talk)
    storage = folder / "opencode" / "storage"
    for message, parts in said:
        written(storage / "message" / "ses_1" / f"{message['id']}.json", message)
        for part in parts:
            written(storage / "part" / message["id"] / f"{part['id']}.json", part)
    written(storage / "session_diff" / "ses_1.json", [])
    written(folder / "opencode" / "auth.json", {"anthropic": {"type": "api", "key": "sk-ant-secret"}})
    return written(storage / "session" / "p" / "ses_1.json", session)


def database(path: Path, schema: str, rows: dict[str, list[tuple[Any, ...]]], *, wal: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    db = apsw.Connection(str(path))
    if wal:
        db.execute("PRAGMA journal_mode=WAL")
    db.execute(schema)
    with db:
        for table, values in rows.items():
            db.execute(f"DELETE FROM {table}")
            for value in values:
                db.execute(f"INSERT INTO {table} VALUES({', '.join('?' * len(value))})", value)
    db.close()
    return path


def opencode_database(folder: Path, talk: tuple[Told, ...]) -> Path:
    session, said = opencode_session(talk)
    at = AT * 1000
    messages = [
        (own["id"], "ses_1", own["time"]["created"], at, json.dumps({**own, "id": None, "sessionID": None}))
        for own, _ in said
    ]
    parts = [
        (part["id"], own["id"], "ses_1", at, at, json.dumps({key: value for key, value in part.items() if key != "id"}))
        for own, held in said
        for part in held
    ]
    schema = """
        CREATE TABLE IF NOT EXISTS session(id TEXT PRIMARY KEY, project_id TEXT, parent_id TEXT, slug TEXT,
            directory TEXT, title TEXT, version TEXT, time_created INTEGER, time_updated INTEGER);
        CREATE TABLE IF NOT EXISTS message(id TEXT PRIMARY KEY, session_id TEXT, time_created INTEGER,
            time_updated INTEGER, data TEXT);
        CREATE TABLE IF NOT EXISTS part(id TEXT PRIMARY KEY, message_id TEXT, session_id TEXT, time_created INTEGER,
            time_updated INTEGER, data TEXT)"""
    row = ("ses_1", "p", None, "s", FOLDER, session["title"], "1.2", at, at)
    rows: dict[str, list[tuple[Any, ...]]] = {"session": [row], "message": messages, "part": parts}
    return database(folder / "opencode" / "opencode.db", schema, rows, wal=True)


def goose_messages(talk: tuple[Told, ...]) -> list[Json]:
    messages: list[Json] = []

    def add(role: str, *content: Json) -> None:
        messages.append({"role": role, "created": AT + len(messages), "content": list(content)})

    for turn in talk:
        add("user", {"type": "text", "text": turn.asked})
        if turn.call:
            call = {"status": "success", "value": {"name": "developer__shell", "arguments": {"command": "cat star"}}}
            add(
                "assistant",
                {"type": "text", "text": "Let me look."},
                {"type": "toolRequest", "id": "c1", "toolCall": call},
            )
            given = {"status": "success", "value": [{"type": "text", "text": "five"}]}
            add("user", {"type": "toolResponse", "id": "c1", "toolResult": given})
        add("assistant", {"type": "text", "text": turn.answer})
    return messages


def goose(folder: Path, talk: tuple[Told, ...]) -> Path:
    schema = """
        CREATE TABLE IF NOT EXISTS sessions(id TEXT PRIMARY KEY, name TEXT, working_dir TEXT, created_at TIMESTAMP,
            accumulated_input_tokens INTEGER, accumulated_output_tokens INTEGER, model_config_json TEXT);
        CREATE TABLE IF NOT EXISTS messages(id INTEGER PRIMARY KEY, session_id TEXT, role TEXT, content_json TEXT,
            created_timestamp INTEGER, metadata_json TEXT)"""
    model = json.dumps({"model_name": "claude-x"})
    replies = sum(1 + turn.call for turn in talk)
    rows: dict[str, list[tuple[Any, ...]]] = {
        "sessions": [("20260301_1", "Arms", FOLDER, "2026-03-01 10:00:00", 100 * replies, 10 * replies, model)],
        "messages": [
            (number, "20260301_1", each["role"], json.dumps(each["content"]), each["created"], "{}")
            for number, each in enumerate(goose_messages(talk), 1)
        ],
    }
    return database(folder / "goose" / "sessions" / "sessions.db", schema, rows)


def goose_lines(folder: Path, talk: tuple[Told, ...]) -> Path:
    head = {"working_dir": FOLDER, "description": "Arms", "message_count": 4, "total_tokens": 330}
    return written(folder / "goose" / "sessions" / "20250801_1.jsonl", lines([head, *goose_messages(talk)]))


def cursor(folder: Path, talk: tuple[Told, ...]) -> Path:
    bubbles: list[Json] = []

    def add(kind: int, said: str, **more: Any) -> None:
        number = len(bubbles)
        own = {"_v": 3, "type": kind, "bubbleId": f"b{number}", "text": said, "createdAt": iso(number)}
        spent = {"tokenCount": {"inputTokens": 100, "outputTokens": 10}} if kind == 2 else {}
        bubbles.append({**own, **spent, "modelInfo": {"modelName": "claude-x"}, **more})

    for turn in talk:
        add(1, turn.asked)
        if turn.call:
            former = {"toolCallId": "c1", "name": "read_file_v2", "status": "completed", "rawArgs": '{"path": "star"}',
                      "result": '{"contents":"five"}'}  # fmt: skip
            add(2, "Let me look.", toolFormerData=former)
        add(2, turn.answer)
    headers = [{"bubbleId": each["bubbleId"], "type": each["type"]} for each in bubbles]
    data = {
        "_v": 10, "composerId": "k1", "name": "Arms", "createdAt": AT * 1000, "modelConfig": {"modelName": "claude-x"},
        "fullConversationHeadersOnly": headers, "workspaceIdentifier": {"uri": {"fsPath": FOLDER}},
    }  # fmt: skip
    empty = {"_v": 10, "composerId": "k0", "fullConversationHeadersOnly": []}
    rows = [("composerData:k1", json.dumps(data)), ("composerData:k0", json.dumps(empty)), ("other", b"\xff")]
    rows += ((f"bubbleId:k1:{each['bubbleId']}", json.dumps(each)) for each in bubbles)
    schema = "CREATE TABLE IF NOT EXISTS cursorDiskKV(key TEXT UNIQUE ON CONFLICT REPLACE, value BLOB)"
    return database(folder / "globalStorage" / "state.vscdb", schema, {"cursorDiskKV": rows}, wal=True)


def zed_thread(talk: tuple[Told, ...]) -> Json:
    messages: list[Any] = []
    tokens: Json = {}
    for number, turn in enumerate(talk):
        messages.append({"User": {"id": f"u{number}", "content": [{"Text": turn.asked}]}})
        tokens[f"u{number}"] = {"input_tokens": 110, "output_tokens": 15, "cache_read_input_tokens": 40}
        if turn.call:
            call = {"id": "c1", "name": "read_file", "raw_input": "{}", "input": {"path": "star"}}
            result = {"tool_use_id": "c1", "tool_name": "read_file", "is_error": False, "content": {"Text": "five"}}
            content = [{"Thinking": {"text": "Hm."}}, {"Text": "Let me look."}, {"ToolUse": call}]
            messages.append({"Agent": {"content": content, "tool_results": {"c1": result}}})
            messages.append("Resume")
        messages.append({"Agent": {"content": [{"Text": turn.answer}], "tool_results": {}}})
    return {
        "version": "0.3.0", "title": "Arms", "messages": messages, "updated_at": iso(0), "request_token_usage": tokens,
        "model": {"provider": "anthropic", "model": "claude-x"},
    }  # fmt: skip


def zed(folder: Path, talk: tuple[Told, ...]) -> Path:
    schema = """
        CREATE TABLE IF NOT EXISTS threads(id TEXT PRIMARY KEY, summary TEXT NOT NULL, updated_at TEXT NOT NULL,
            data_type TEXT NOT NULL, data BLOB NOT NULL, parent_id TEXT, folder_paths TEXT, created_at TEXT)"""
    data = zstd.Compressor(3).compress(json.dumps(zed_thread(talk)).encode())
    row = ("t1", "Arms", iso(len(talk)), "zstd", data, None, FOLDER, iso(0))
    return database(folder / "threads" / "threads.db", schema, {"threads": [row]})


def old_zed(folder: Path, talk: tuple[Told, ...]) -> Path:
    """A thread of version 0.2, not compressed."""
    messages: list[Json] = []
    for turn in talk:
        messages.append({"id": len(messages), "role": "user", "segments": [{"type": "text", "text": turn.asked}]})
        if turn.call:
            messages.append({
                "id": len(messages), "role": "assistant",
                "segments": [{"type": "thinking", "text": "Hm."}, {"type": "text", "text": "Let me look."}],
                "tool_uses": [{"id": "c1", "name": "read_file", "input": {"path": "star"}}],
                "tool_results": [{"tool_use_id": "c1", "is_error": False, "content": "five"}],
            })  # fmt: skip
        messages.append({"id": len(messages), "role": "assistant", "segments": [{"type": "text", "text": turn.answer}]})
    thread = {
        "version": "0.2.0", "summary": "Arms", "messages": messages, "updated_at": iso(0),
        "model": {"provider": "anthropic", "model": "claude-x"},
        "initial_project_snapshot": {"worktree_snapshots": [{"worktree_path": FOLDER}]},
    }  # fmt: skip
    schema = """
        CREATE TABLE IF NOT EXISTS threads(id TEXT PRIMARY KEY, summary TEXT NOT NULL, updated_at TEXT NOT NULL,
            data_type TEXT NOT NULL, data BLOB NOT NULL)"""
    row = ("t0", "Arms", iso(len(talk)), "json", json.dumps(thread).encode())
    return database(folder / "threads" / "threads.db", schema, {"threads": [row]})


def aider(folder: Path, talk: tuple[Told, ...]) -> Path:
    text = "\n# aider chat started at 2026-02-01 09:00:00\n\n> Aider v0.86.0  \n\n#### /exit  \n"
    text += "\n# aider chat started at 2026-03-01 10:00:00\n\n> Main model: claude-x with diff edit format  \n"
    text += "> Git repo: .git with 3 files  \n\n"
    for turn in talk:
        text += f"#### {turn.asked}  \n\n"
        text += f"{turn.answer}\n\n> Tokens: 0.15k sent, 15 received. Cost: $0.01 message, $0.02 session.  \n"
    return written(folder / "garden" / ".aider.chat.history.md", text)


AGENTS: dict[str, Agent] = {
    "qwen": Agent(qwen, "qwen-code", (300, 30), "Arms", model="qwen3-coder"),
    "copilot": Agent(copilot, "copilot-cli", (300, 30), model="gpt-5.1"),
    "copilot chat": Agent(copilot_chat, "copilot-chat", (300, 30), "Arms", model="gpt-4.1"),
    "copilot chat, log": Agent(copilot_log, "copilot-chat", (300, 30), "Arms", model="gpt-4.1"),
    "cline": Agent(cline_as("saoudrizwan.claude-dev"), "cline", (300, 30), model="claude-x"),
    "roo": Agent(cline_as("rooveterinaryinc.roo-cline"), "roo-code", (300, 30), model="claude-x"),
    "kilo": Agent(cline_as("kilocode.kilo-code"), "kilo-code", (300, 30), model="claude-x"),
    "amp": Agent(amp, "amp", (300, 30), "Arms", model="claude-x"),
    "opencode, files": Agent(opencode_files, "opencode", (300, 30), "Arms", model="claude-x"),
    "opencode, database": Agent(opencode_database, "opencode", (300, 30), "Arms", model="claude-x"),
    "goose": Agent(goose, "goose", (300, 30), "Arms", model="claude-x"),
    "goose, lines": Agent(goose_lines, "goose", None),
    "cursor": Agent(cursor, "cursor", (300, 30), "Arms", model="claude-x"),
    "zed": Agent(zed, "zed", (300, 30), "Arms", model="claude-x"),
    "zed, old": Agent(old_zed, "zed", None, "Arms", model="claude-x"),
    "aider": Agent(aider, "aider", (300, 30), project="", model="claude-x", has_calls=False),
}
