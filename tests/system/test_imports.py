"""`linckia import-chats` on session files that other tools read wrongly: right lists, and damage is named."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.system.cli.clients import LINCKIA, environment, linckia
from tests.system.running import running
from tests.unit.transcripts.agents.written import AGENTS, TALK

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases" / "reports" / "transcripts"

EXPECTED = {
    ("codex", "Fix the login redirect"): (1000, 10), ("codex", "Port to Rust"): (1000, 10),
    ("codex", "Q: list the tables"): (2200, 80), ("codex", "Y: set up the printer"): (60020, 600),
    ("claude-code", "Please tidy up the invoice module"): (2_000_010, 100),
    ("claude-code", "Write the parser for config files"): (1500, 80),
    ("claude-code", "Z question number 0 about kiwis"): (1000, 100),
    ("gemini-cli", "GA: how do tides work"): (300, 85), ("gemini-cli", "GB: run the linter"): (2100, 30),
}  # fmt: skip
"""Tokens in and out of some, by agent and title."""


@pytest.mark.skipif(not CASES.is_dir(), reason="the shared cases are not beside this checkout")
def test_session_files_are_listed_by_session_with_their_tokens_and_damage_is_named(tmp_path: Path) -> None:
    with running(tmp_path / "data", services=["transcripts"]) as kernel:
        for is_first in (True, False):
            done = linckia(kernel.data_dir, "import-chats", str(CASES))
            assert done.returncode == 0, done.stderr
            # The second run finds nothing that it has not read.
            assert ("torn-line.jsonl: " in done.stderr, done.stdout.startswith("0 messages")) == (
                is_first, not is_first), done  # fmt: skip
            listed = kernel.call("chats_list", {"limit": 200})
            assert listed["total"] == len(list(CASES.rglob("*.jsonl")))
            found = {(one["agent"], one["title"]): one for one in listed["conversations"]}
            for name, tokens in EXPECTED.items():
                told = found[name]["tokens"]
                assert (told["input"], told["output"], told["estimated"]) == (*tokens, False), name
            assert sorted(one["project"] for one in listed["conversations"] if one["title"] == "continue") == [
                "/home/u/alpha", "/home/u/beta",
            ]  # fmt: skip


def test_a_file_that_is_not_understood_is_named_with_what_was_expected(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    files: dict[str, bytes] = {
        "export.zip": b"PK\x03\x04" + bytes(40) + b"\n{",
        "chat.html": b"<html><body>hello</body></html>\n",
        "state.json": b"SQLite format 3\x00" + bytes(90),
        "settings.json": b'{"theme": "dark"}',
        "list.json": b'[{"theme": "dark"}, {"theme": "light"}]',
        "cut.json": b'[{"mapping": {"a": {"message": {"content',
        "one-line.json": b'{"chat_messages": [{"sender": "human", "te',
        "other-form.json": b'{"messages": [{"speaker": "me", "said": "hello"}]}',
        "empty-mapping.json": b'[{"title": "x", "mapping": {"a": {"message": {"body": "hello"}}}}]',
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    good = folder / "good.json"
    good.write_text('{"messages": [{"role": "user", "content": "hello"}]}')
    with running(tmp_path / "data", services=["transcripts"]) as kernel:
        for is_first in (True, False):
            for name in files:
                done = linckia(kernel.data_dir, "import-chats", str(folder / name))
                assert done.returncode == 1, (name, done)
                assert f"{folder / name}: " in done.stderr, name
                assert "expected sessions of an agent (docs/transcripts.md lists them)" in done.stderr, name
            done = linckia(kernel.data_dir, "import-chats", str(folder / "export.zip"))
            assert "must be unpacked first" in done.stderr
            done = linckia(kernel.data_dir, "import-chats", str(good))
            assert (done.returncode, done.stderr, done.stdout.startswith("1 message")) == (0, "", is_first)


def test_a_session_with_a_huge_line_is_whole_and_the_line_is_named(tmp_path: Path) -> None:
    def line(uuid: str, parent: str | None, role: str, content: Any) -> str:
        message = {"role": role, "content": content, "id": uuid, "model": "m"}
        record = {"uuid": uuid, "parentUuid": parent, "type": role, "sessionId": "s", "message": message}
        return f"{json.dumps(record)}\n"

    huge = [{"type": "tool_result", "tool_use_id": "t", "content": "begin " + "x" * 45_000_000}]
    lines = [
        line("u1", None, "user", "Show the log"),
        line("a1", "u1", "assistant", [{"type": "tool_use", "id": "t", "name": "Read", "input": {}}]),
        line("r1", "a1", "user", huge),
        *(line(f"u{n}", f"u{n - 1}" if n > 2 else "r1", "user", f"{n} " + "y" * 1_000_000) for n in range(2, 25)),
        line("a2", "u24", "assistant", [{"type": "text", "text": "That is all."}]),
    ]
    path = tmp_path / "s.jsonl"
    path.write_text("".join(lines))
    assert path.stat().st_size > 64 * 1024 * 1024
    with running(tmp_path / "data", services=["transcripts"]) as kernel:
        done = linckia(kernel.data_dir, "import-chats", str(path))
        assert done.returncode == 0, done.stderr
        place = len(lines[0]) + len(lines[1])
        assert f"{path}: the record at byte {place} has {len(lines[2])} bytes" in done.stderr
        (one,) = kernel.call("chats_list")["conversations"]
        assert (one["turns"], one["title"]) == (27, "Show the log")
        found = kernel.call("transcript_histories")["histories"][0]["messages"]
        assert found[2]["content"][0]["tool_output"].startswith("begin xxx")
        assert found[-1]["content"][0]["text"] == "That is all."


def test_an_import_without_a_path_shows_what_is_at_the_usual_places_and_imports_it_with_consent(tmp_path: Path) -> None:
    home = tmp_path / "home"
    written = {
        name: AGENTS[name].write for name in ("qwen", "copilot", "goose", "cursor", "opencode, database", "cline")
    }
    written["qwen"](home / ".qwen", TALK[:2])
    written["copilot"](tmp_path / "elsewhere", TALK[:2])
    written["goose"](home / ".local" / "share", TALK[:2])
    written["opencode, database"](home / ".local" / "share", TALK[:2])
    written["cursor"](home / ".config" / "Cursor" / "User", TALK[:2])
    written["cline"](home / ".config" / "Code" / "User", TALK[:2])
    places = {"HOME": str(home), "COPILOT_HOME": str(tmp_path / "elsewhere"), "CLAUDE_CONFIG_DIR": str(tmp_path)}
    places |= {"XDG_DATA_HOME": "", "XDG_CONFIG_HOME": "", "CODEX_HOME": str(tmp_path / "none")}
    names = {"Qwen Code", "Copilot CLI", "Goose", "Cursor", "OpenCode", "Cline"}
    with running(tmp_path / "data", services=["transcripts"]) as kernel:
        shown = linckia(kernel.data_dir, "import-chats", **places)
        assert shown.returncode == 1
        assert "add --yes to import all of these, or give a path" in shown.stderr
        rows = [re.split(r"\s{2,}", line.strip()) for line in shown.stdout.splitlines()]
        assert rows[0] == ["AGENT", "SESSIONS", "SIZE", "PLACE"]
        assert {row[0]: row[1] for row in rows[1:]} == dict.fromkeys(names, "1")
        assert [row[3] for row in rows if row[0] == "Copilot CLI"] == [str(tmp_path / "elsewhere" / "session-state")]
        assert kernel.call("chats_list", {})["total"] == 0
        done = linckia(kernel.data_dir, "import-chats", "--yes", **places)
        assert (done.returncode, done.stderr) == (0, ""), done
        listed = kernel.call("chats_list", {"limit": 50})["conversations"]
        agents = {"qwen-code", "copilot-cli", "goose", "cursor", "opencode", "cline"}
        assert {one["agent"]: one["turns"] for one in listed} == dict.fromkeys(agents, 6)
        again = linckia(kernel.data_dir, "import-chats", "--yes", **places)
        assert (again.returncode, again.stderr) == (0, ""), again
        assert again.stdout.startswith("0 messages in 6 files, 0 new")
        nothing = linckia(kernel.data_dir, "import-chats", **{**places, "HOME": "/nowhere", "COPILOT_HOME": "/no"})
        assert (nothing.returncode, nothing.stdout) == (0, "")
        assert "no conversations at the usual places of Claude Code, Codex CLI," in nothing.stderr


@pytest.mark.parametrize(("answer", "turns"), [("y", 6), ("n", 0)])
def test_an_import_without_a_path_asks_on_a_terminal(tmp_path: Path, answer: str, turns: int) -> None:
    AGENTS["qwen"].write(tmp_path / ".qwen", TALK[:2])
    with running(tmp_path / "data", services=["transcripts"]) as kernel:
        ours, theirs = pty.openpty()
        variables = environment(kernel.data_dir, HOME=str(tmp_path), XDG_DATA_HOME="", XDG_CONFIG_HOME="")
        with subprocess.Popen(
            [*LINCKIA, "import-chats"], env=variables, stdin=theirs, stdout=subprocess.PIPE, text=True
        ) as asked:
            os.close(theirs)
            os.write(ours, f"{answer}\n".encode())
            said, _ = asked.communicate(timeout=60)
        os.close(ours)
        assert "Import these conversations? [y/N]" in said
        assert asked.returncode == (0 if turns else 1)
        assert sum(one["turns"] for one in kernel.call("chats_list", {})["conversations"]) == turns


def test_a_database_of_another_program_and_a_half_written_session_are_named(tmp_path: Path) -> None:
    other, half = tmp_path / "places.db", AGENTS["amp"].write(tmp_path, TALK[:2])
    apsw.Connection(str(other)).execute("CREATE TABLE places(a)")
    whole = half.read_text()
    half.write_text(whole[:-50])
    with running(tmp_path / "data", services=["transcripts"]) as kernel:
        done = linckia(kernel.data_dir, "import-chats", str(other))
        assert done.returncode == 1
        assert f"{other}: is a SQLite database of no known agent; expected sessions of an agent" in done.stderr
        done = linckia(kernel.data_dir, "import-chats", str(half))
        assert (done.returncode, "the file is incomplete and is left for the next import" in done.stderr) == (0, True)
        half.write_text(whole)
        done = linckia(kernel.data_dir, "import-chats", str(half))
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("6 messages in 1 file, 6 new")
