"""Databases are read as their agents leave them, and files that are half written wait."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from services.transcripts.sources import Unfinished, is_source
from services.transcripts.sources.finding import main_file, sources
from tests.unit.transcripts.agents.test_sessions import each_agent, expected, take, told
from tests.unit.transcripts.agents.written import (
    AGENTS,
    TALK,
    Agent,
    aider,
    amp,
    cursor,
    goose,
    opencode_files,
    written,
)
from tests.unit.transcripts.rig import serving
from tests.unit.transcripts.test_listing import listed

_WRITER = """
import sys, apsw
db = apsw.Connection(sys.argv[1])
db.execute("PRAGMA journal_mode=WAL")
db.execute("PRAGMA wal_autocheckpoint=0")
{more}
print("ready", flush=True)
sys.stdin.read()
"""


def writing(path: Path, more: str = "") -> subprocess.Popen[str]:
    """Another process that has the database open and writes to it."""
    command = [sys.executable, "-c", _WRITER.format(more=more), str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


async def test_an_open_database_is_read_with_its_log_and_nothing_is_written(tmp_path: Path) -> None:
    path = cursor(tmp_path / "agent", TALK[:1])
    later = cursor(tmp_path / "later", TALK[:2])
    more = f'db.execute("ATTACH ? AS later", ({str(later)!r},))\n'
    more += 'db.execute("INSERT OR REPLACE INTO cursorDiskKV SELECT * FROM later.cursorDiskKV")'
    process = writing(path, more)
    try:
        before = contents(path.parent)
        assert len(before["state.vscdb-wal"]) > 0
        async with serving(tmp_path / "data") as bench:
            await take(bench, path)
            assert await told(bench) == expected(AGENTS["cursor"], TALK[:2])
        assert contents(path.parent) == before
    finally:
        process.communicate(timeout=20)


async def test_a_copied_database_is_read_with_its_log(tmp_path: Path) -> None:
    path = cursor(tmp_path / "agent", TALK[:1])
    later = cursor(tmp_path / "later", TALK[:2])
    more = f'db.execute("ATTACH ? AS later", ({str(later)!r},))\n'
    more += 'db.execute("INSERT OR REPLACE INTO cursorDiskKV SELECT * FROM later.cursorDiskKV")'
    process = writing(path, more)
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("state.vscdb", "state.vscdb-wal"):
        (copy / name).write_bytes(path.with_name(name).read_bytes())
    process.communicate(timeout=20)
    async with serving(tmp_path / "data") as bench:
        await take(bench, copy / "state.vscdb")
        assert await told(bench) == expected(AGENTS["cursor"], TALK[:2])
    assert sorted(each.name for each in copy.iterdir()) == ["state.vscdb", "state.vscdb-wal"]


def test_a_database_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    apsw.Connection(str(other)).execute("CREATE TABLE notes(a)")
    with pytest.raises(ValueError, match="is a SQLite database of no known agent"):
        list(sources(str(other)))
    damaged = goose(tmp_path, TALK[:1])
    data = bytearray(damaged.read_bytes())
    data[100:4096] = bytes(3996)
    damaged.write_bytes(data)
    with pytest.raises(OSError, match="the database cannot be read: "):
        list(sources(str(damaged)))
    locked = goose(tmp_path / "locked", TALK[:1])
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys, apsw\ndb = apsw.Connection(sys.argv[1])\ndb.execute('BEGIN EXCLUSIVE')\n"
         "print('ready', flush=True)\nsys.stdin.read()", str(locked)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(OSError, match="the database cannot be read: database is locked"):
            list(sources(str(locked)))
    finally:
        process.communicate(timeout=20)
    assert len(list(sources(str(locked)))) == 1


@each_agent
async def test_a_half_written_file_waits_and_what_was_read_before_stays(tmp_path: Path, agent: Agent) -> None:
    if agent.write(tmp_path / "probe", TALK[:1]).suffix not in (".json", ".md"):
        pytest.skip("databases and lines have tests of their own")
    async with serving(tmp_path / "data") as bench:
        path = agent.write(tmp_path / "agent", TALK[:1])
        await take(bench, path)
        agent.write(tmp_path / "agent", TALK[:2])
        whole = path.read_text()
        end = len(whole) - 60
        if path.suffix == ".md":
            # A question alone, without its line's end.
            end = whole.index(TALK[1].asked) + 5
        path.write_text(whole[:end])
        if path.suffix == ".md":
            await take(bench, path)
        else:
            with pytest.raises(Unfinished):
                await take(bench, path)
        assert await told(bench) == expected(agent, TALK[:1])
        path.write_text(whole)
        await take(bench, path)
        assert await told(bench) == expected(agent, TALK[:2])


async def test_the_last_message_of_a_folder_waits_until_it_is_whole(tmp_path: Path) -> None:
    path = opencode_files(tmp_path / "agent", TALK[:2])
    storage = path.parents[2]
    last, part = storage / "message/ses_1/msg_0004.json", next((storage / "part/msg_0004").iterdir())
    async with serving(tmp_path / "data") as bench:
        for file in (last, part):
            whole = file.read_text()
            file.write_text(whole[:-20])
            results = await take(bench, path)
            assert await told(bench) == expected(AGENTS["opencode, files"], TALK[:2])[:-1]
            assert sum(each.unreadable for each in results) == 0
            file.write_text(whole)
        await take(bench, path)
        assert await told(bench) == expected(AGENTS["opencode, files"], TALK[:2])


async def test_two_chats_of_one_second_are_two(tmp_path: Path) -> None:
    path = aider(tmp_path, TALK[:1])
    path.write_text(path.read_text() * 2)
    assert len({source.name for source in sources(str(path))}) == 4


async def test_a_copied_thread_without_its_folder_is_read(tmp_path: Path) -> None:
    """A file that is named by itself, wherever it lies."""
    chat = AGENTS["copilot chat, log"].write(tmp_path / "agent", TALK[:2])
    copy = written(tmp_path / "chat.jsonl", chat.read_text())
    async with serving(tmp_path / "data") as bench:
        await take(bench, copy)
        assert await told(bench) == expected(AGENTS["copilot chat, log"], TALK[:2])


def test_a_document_that_is_too_long_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.transcripts.sources.MAX_BYTES", 300)
    for path in (amp(tmp_path, TALK), aider(tmp_path, TALK)):
        with pytest.raises(OSError, match="has more than 300 bytes, and is not read"):
            list(sources(str(path)))


def test_what_is_found_in_a_folder_leaves_out_copies_and_others_databases(tmp_path: Path) -> None:
    for name, found in {
        "a/chatSessions/x.json": True, "a/chatEditingSessions/x/state.json": False, "b/state.vscdb": True,
        "a/GitHub.copilot-chat/transcripts/x.jsonl": False, "b/places.db": False, "opencode/opencode-dev.db": True,
        "opencode/auth.json": False, "p/.aider.chat.history.md": True, "p/notes.md": False, "p/x.ndjson": True,
    }.items():  # fmt: skip
        assert is_source(str(tmp_path / name)) is found, name
    assert main_file(str(tmp_path / "User/workspaceStorage/1/workspace.json")) is None
    # Others have folders of these names too.
    for name in ("storage/session/p/talk.json", "storage/message/a/b.json", "storage/x/y.json"):
        assert main_file(str(tmp_path / name)) == str(tmp_path / name)


async def test_a_changed_title_is_stored(tmp_path: Path) -> None:
    path = amp(tmp_path / "agent", TALK[:2])
    async with serving(tmp_path / "data") as bench:
        await take(bench, path)
        thread = json.loads(path.read_text())
        thread["title"] = "Arms of stars"
        path.write_text(json.dumps(thread))
        assert sum(each.nodes for each in await take(bench, path)) == 0
        assert (await listed(bench))[0].title == "Arms of stars"
