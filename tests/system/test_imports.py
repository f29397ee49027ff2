"""`linckia import-transcripts` on session files that other tools read wrongly: right lists, and damage is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.system.cli.clients import linckia
from tests.system.running import running

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
            done = linckia(kernel.data_dir, "import-transcripts", str(CASES))
            assert done.returncode == 0, done.stderr
            # The second run finds nothing that it has not read.
            assert ("torn-line.jsonl: " in done.stderr, done.stdout.startswith("0 messages")) == (
                is_first, not is_first), done  # fmt: skip
            listed = kernel.call("transcript_list", {"limit": 200})
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
                done = linckia(kernel.data_dir, "import-transcripts", str(folder / name))
                assert done.returncode == 1, (name, done)
                assert f"{folder / name}: " in done.stderr, name
                assert "Claude Code, Codex CLI or Gemini CLI" in done.stderr, name
            done = linckia(kernel.data_dir, "import-transcripts", str(folder / "export.zip"))
            assert "must be unpacked first" in done.stderr
            done = linckia(kernel.data_dir, "import-transcripts", str(good))
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
        done = linckia(kernel.data_dir, "import-transcripts", str(path))
        assert done.returncode == 0, done.stderr
        place = len(lines[0]) + len(lines[1])
        assert f"{path}: the record at byte {place} has {len(lines[2])} bytes" in done.stderr
        (one,) = kernel.call("transcript_list")["conversations"]
        assert (one["turns"], one["title"]) == (27, "Show the log")
        found = kernel.call("transcript_histories")["histories"][0]["messages"]
        assert found[2]["content"][0]["tool_output"].startswith("begin xxx")
        assert found[-1]["content"][0]["text"] == "That is all."
