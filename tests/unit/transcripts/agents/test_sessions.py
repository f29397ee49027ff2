"""The sessions of each agent become conversations, once, however often and at whatever moment they are read."""

from __future__ import annotations

import json
from pathlib import Path

import apsw
import pytest

from services.transcripts.operations.conversations import (
    Conversation,
    TranscriptHistories,
    TranscriptNode,
    TranscriptStats,
)
from services.transcripts.operations.intake import ImportResult, TranscriptImport, TranscriptImportState
from services.transcripts.records import parts
from services.transcripts.sources.finding import main_file, sources
from tests.in_process import Bench
from tests.unit.transcripts.agents.written import AGENTS, TALK, Agent, Told, written
from tests.unit.transcripts.rig import serving
from tests.unit.transcripts.test_layouts import conversations
from tests.unit.transcripts.test_listing import listed

each_agent = pytest.mark.parametrize("agent", AGENTS.values(), ids=AGENTS)


async def take(bench: Bench, path: Path, most: int = 0) -> list[ImportResult]:
    """Import a file as the command does: all sessions in it, from where they were left; or only so many parts."""
    results: list[ImportResult] = []
    for source in sources(str(path)):
        state = await bench.call(TranscriptImportState(source=source.name))
        with source.open() as file:
            for part in parts(file, state.position, state.tail, part_bytes=700):
                request = TranscriptImport(
                    source=source.name, start=part.start, position=part.position, tail=part.tail,
                    records=part.records, final=part.final,
                )  # fmt: skip
                results.append(await bench.call(request))
                if len(results) == most:
                    return results
    return results


def expected(agent: Agent, talk: tuple[Told, ...]) -> list[str]:
    """The texts of the talk in order, with the results of calls."""
    found = []
    for turn in talk:
        called = turn.call and agent.has_calls
        found += [turn.asked, *(["Let me look.", "five"] if called else []), turn.answer]
    return found


async def told(bench: Bench) -> list[str]:
    """The texts of the longest conversation, without what the agents put around them."""
    found = max(await conversations(bench), key=len)
    texts = [text.partition("|")[0].removeprefix("<task>\n").removesuffix("\n</task>") for _, text in found]
    return ["five" if text == '{"contents":"five"}' else text for text in texts]


def counted(one: Conversation) -> tuple[int, int] | None:
    return None if one.tokens.estimated else (one.tokens.input, one.tokens.output)


@each_agent
async def test_all_turns_of_a_session_are_read_with_what_it_states_and_again_nothing_new(
    tmp_path: Path, agent: Agent
) -> None:
    path = agent.write(tmp_path / "agent", TALK[:2])
    async with serving(tmp_path / "data") as bench:
        first = await take(bench, path)
        assert [(each.unreadable, each.mended, each.problem) for each in first] == [(0, 0, "")] * len(first)
        assert await told(bench) == expected(agent, TALK[:2])
        roles = [role for role, _ in max(await conversations(bench), key=len)]
        whole = ["user", "assistant", "tool", "assistant", "user", "assistant"]
        shown = ["user" if role == "tool" and "cline" in str(path.parent) else role for role in roles]
        wanted = whole if agent.has_calls else ["user", "assistant"] * 2
        assert [("tool" if index == 2 and len(shown) == 6 else role) for index, role in enumerate(shown)] == wanted
        one = next(each for each in await listed(bench) if each.turns > 1)
        assert (one.agent, one.title) == (agent.name, agent.title)
        assert one.project == (agent.project or str(path.parent))
        assert counted(one) == agent.tokens
        before = (await bench.call(TranscriptStats())).total_nodes
        assert sum(each.nodes for each in await take(bench, path)) == 0
        assert (await bench.call(TranscriptStats())).total_nodes == before


@each_agent
async def test_a_call_keeps_its_name_arguments_and_result_and_a_reply_its_model(tmp_path: Path, agent: Agent) -> None:
    path = agent.write(tmp_path / "agent", TALK[:2])
    async with serving(tmp_path / "data") as bench:
        await take(bench, path)
        history = max((await bench.call(TranscriptHistories())).histories, key=lambda each: len(each.messages))
        node = await bench.call(TranscriptNode(hash=history.messages[-1].hash))
        assert node is not None
        assert node.bucket.model == agent.model
        if not agent.has_calls:
            return
        call = next(block for message in history.messages for block in message.content if block.tool_name)
        assert call.tool_use_id == "c1"
        assert call.tool_input in ({"path": "star"}, {"command": "cat star"})
        result = next(block for message in history.messages for block in message.content if block.tool_result_id)
        assert (result.tool_result_id, "five" in result.tool_output, result.is_error) == ("c1", True, False)


@each_agent
async def test_a_session_that_grows_is_continued(tmp_path: Path, agent: Agent) -> None:
    """The first turn is read while it is the last, and then each further one."""
    async with serving(tmp_path / "data") as bench:
        for turns in (1, 2, 3):
            path = agent.write(tmp_path / "agent", TALK[:turns])
            await take(bench, path)
            assert await told(bench) == expected(agent, TALK[:turns])
        found = [each for each in await conversations(bench) if len(each) > 1]
        assert len(found) == 1, "what was read early must not remain beside what it became"


@each_agent
async def test_a_turn_that_is_still_being_written_is_replaced_by_what_it_becomes(tmp_path: Path, agent: Agent) -> None:
    async with serving(tmp_path / "data") as bench:
        if agent.name in ("qwen-code", "copilot-cli") or agent.write.__name__ == "goose_lines":
            pytest.skip("lines of these files are final")
        await take(bench, agent.write(tmp_path / "agent", (*TALK[:1], Told(TALK[1].asked, "Up"))))
        await take(bench, agent.write(tmp_path / "agent", TALK[:2]))
        found = [each for each in await conversations(bench) if len(each) > 1]
        assert len(found) == 1
        assert await told(bench) == expected(agent, TALK[:2])
        one = next(each for each in await listed(bench) if each.turns > 1)
        assert counted(one) == agent.tokens


@each_agent
async def test_an_import_that_was_killed_after_any_part_goes_on(tmp_path: Path, agent: Agent) -> None:
    path = agent.write(tmp_path / "agent", TALK)
    async with serving(tmp_path / "data") as bench:
        tries = 1
        while len(await take(bench, path, most=1)):
            tries += 1
        assert tries > 2
        assert await told(bench) == expected(agent, TALK)
        assert sum(each.nodes for each in await take(bench, path)) == 0


def spoilt(path: Path) -> bool:
    """Put rubbish in the place of the session's first answer. Returns False if it cannot be done by a plain edit."""
    if path.suffix in (".vscdb", ".db"):
        db = apsw.Connection(str(path))
        tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master")}
        if "cursorDiskKV" in tables:
            db.execute("UPDATE cursorDiskKV SET value='{\"type\": 2, \"te' WHERE key='bubbleId:k1:b2'")
        elif "part" in tables:
            db.execute("UPDATE message SET data='{{' WHERE id='msg_0002'")
        elif "sessions" in tables:
            db.execute("UPDATE messages SET content_json='[1, ' WHERE id=4")
        else:
            db.close()
            return False
        db.close()
        return True
    if "opencode" in path.parts:
        written(path.parents[2] / "message" / "ses_1" / "msg_0002.json", '{"id": "msg_')
        return True
    text = path.read_text()
    if path.suffix == ".jsonl" and "chatSessions" not in path.parts:
        rows = text.splitlines()
        number = next(index for index, row in enumerate(rows) if '"Five."' in row)
        rows[number] = rows[number][:-30]
        path.write_text("\n".join(rows) + "\n")
        return True
    if path.suffix == ".json":
        data = json.loads(text)
        messages = data if isinstance(data, list) else data.get("messages") or data["requests"]
        number = next(index for index, each in enumerate(messages) if "Five." in json.dumps(each))
        messages[number] = {"rubbish": [1]} if number else messages[number]
        if not number:
            messages.insert(0, 7)
        path.write_text(json.dumps(data))
        return True
    return False


@each_agent
async def test_rubbish_costs_one_record_only(tmp_path: Path, agent: Agent) -> None:
    path = agent.write(tmp_path / "agent", TALK[:2])
    if not spoilt(path):
        pytest.skip("the session is one piece")
    async with serving(tmp_path / "data") as bench:
        results = await take(bench, path)
        assert sum(each.unreadable for each in results) == 1
        texts = {text for each in await conversations(bench) for _, text in each}
        assert {text for text in texts if TALK[1].asked in text}
        assert {text for text in texts if TALK[1].answer in text}


async def test_the_same_session_in_files_and_in_the_database_is_one(tmp_path: Path) -> None:
    """OpenCode moved its sessions from files to a database."""
    async with serving(tmp_path / "data") as bench:
        await take(bench, AGENTS["opencode, files"].write(tmp_path, TALK[:2]))
        taken = await take(bench, AGENTS["opencode, database"].write(tmp_path, TALK[:2]))
        assert sum(each.nodes for each in taken) == 0
        (one,) = await listed(bench)
        assert (one.tokens.input, one.tokens.output) == (300, 30)


def test_files_that_belong_to_a_session_are_read_with_it_and_keys_never(tmp_path: Path) -> None:
    session = AGENTS["opencode, files"].write(tmp_path, TALK[:1])
    storage = session.parents[2]
    for path in (*storage.glob("message/*/*"), *storage.glob("part/*/*"), session):
        assert main_file(str(path)) == str(session), path
    assert main_file(str(storage / "session_diff" / "ses_1.json")) is None
    assert main_file(str(storage.parent / "auth.json")) is None
    history = AGENTS["cline"].write(tmp_path, TALK[:1])
    for name in ("ui_messages.json", "task_metadata.json"):
        assert main_file(str(history.with_name(name))) == str(history)
    assert main_file("/x/state.vscdb-wal") == "/x/state.vscdb"
    assert main_file("/x/.aider.chat.history.md") == "/x/.aider.chat.history.md"
    assert main_file("/x/README.md") is None
