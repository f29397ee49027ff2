"""What agents write into their folders is kept within seconds, once, whenever the service is killed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import apsw

from tests.system.running import RunningKernel, running, wait_until
from tests.unit.transcripts.agents.written import TALK, aider, cursor, opencode_files


def record(session: str, number: int, words: str = "") -> str:
    """A line of a session file: the person's and the model's turns, one after the other."""
    spoken = "user" if number % 2 == 0 else "assistant"
    message = {"role": spoken, "content": words or f"{session} says {number}"}
    if spoken == "assistant":
        message |= {"id": f"m-{session}-{number}", "model": "claude-sonnet-4-5", "stop_reason": "end_turn"}
    return json.dumps(
        {
            "type": spoken, "uuid": f"{session}-{number}", "parentUuid": f"{session}-{number - 1}" if number else None,
            "sessionId": session, "cwd": "/home/ann/garden", "timestamp": f"2026-01-01T00:00:{number % 60:02}Z",
            "message": message,
        }
    ) + "\n"  # fmt: skip


def until_turns(kernel: RunningKernel, wanted: dict[str, int]) -> None:
    wait_until(lambda: turns(kernel) == wanted, said=lambda: turns(kernel))


def turns(kernel: RunningKernel) -> dict[str, int]:
    answer = kernel.call("chats_list", {"limit": 200})
    return {one["title"]: one["turns"] for one in answer["conversations"]}


def test_session_files_of_agents_are_recorded_once_through_kills(tmp_path: Path) -> None:
    claude, later = tmp_path / "claude", tmp_path / "codex" / "sessions"
    (claude / "projects" / "-work-garden").mkdir(parents=True)
    first = claude / "projects" / "-work-garden" / "a.jsonl"
    first.write_text("".join(record("a", n) for n in range(4)))
    # An account's key, which is not followed, lies beside the followed files.
    (claude / "key.jsonl").write_text(record("secret", 0))
    first.with_name("broken.json").write_text("[1, 2")
    os.mkfifo(first.with_name("pipe.jsonl"))
    environment = {"CLAUDE_CONFIG_DIR": str(claude), "CODEX_HOME": str(later.parent)}
    data = tmp_path / "data"
    data.mkdir()
    (data / "linckia.toml").write_text('[transcripts]\nfollow = ["claude", "codex"]\n')
    with running(data, services=["transcripts", "watch"], environment=environment) as kernel:
        until_turns(kernel, {"a says 0": 4})
        # It grows, the last line by halves, with a kill between.
        line = record("a", 5)
        with first.open("a") as file:
            file.write(record("a", 4) + line[:40])
        until_turns(kernel, {"a says 0": 5})
        kernel.kill("transcripts")
        with first.open("a") as file:
            file.write(line[40:])
        second = first.with_name("b.jsonl")
        second.write_text(record("b", 0))
        until_turns(kernel, {"a says 0": 6, "b says 0": 1})
        kernel.kill("watch")
        # Written again from its beginning and then truncated: nothing is there twice, and nothing is lost.
        first.write_text("".join(record("a", n) for n in range(6)) + record("c", 0))
        until_turns(kernel, {"a says 0": 6, "b says 0": 1, "c says 0": 1})
        first.write_text(record("d", 0))
        until_turns(kernel, {"a says 0": 6, "b says 0": 1, "c says 0": 1, "d says 0": 1})
        # A folder that was not there when all started.
        later.mkdir(parents=True)
        (later / "rollout-1.jsonl").write_text(record("e", 0))
        until_turns(kernel, {"a says 0": 6, "b says 0": 1, "c says 0": 1, "d says 0": 1, "e says 0": 1})
        assert kernel.service("transcripts")["state"] == "ready"


def test_databases_and_folders_of_agents_are_recorded_while_they_are_written(tmp_path: Path) -> None:
    data_home, config, project = tmp_path / "share", tmp_path / "config", tmp_path / "garden"
    for folder in (data_home / "opencode", config / "Cursor" / "User" / "globalStorage", project):
        folder.mkdir(parents=True)
    data = tmp_path / "data"
    data.mkdir()
    (data / "linckia.toml").write_text(f'[transcripts]\nfollow = ["cursor", "opencode", "{project}"]\n')
    environment = {"XDG_DATA_HOME": str(data_home), "XDG_CONFIG_HOME": str(config)}
    one, two = TALK[:1], TALK[:2]
    user = config / "Cursor" / "User"
    path = cursor(user, one)
    # The agent has its database open, so that what it writes is in the log.
    agent = apsw.Connection(str(path))
    agent.execute("PRAGMA journal_mode=WAL")
    agent.execute("INSERT INTO cursorDiskKV VALUES('x', 1)")
    assert path.with_name("state.vscdb-wal").stat().st_size
    with running(data, services=["transcripts", "watch"], environment=environment) as kernel:
        until_turns(kernel, {"Arms": 4})
        cursor(user, two)
        until_turns(kernel, {"Arms": 6})
        kernel.kill("transcripts")
        aider(tmp_path, one)
        until_turns(kernel, {"Arms": 6, TALK[0].asked: 2, "/exit": 1})
        agent.close()
        cursor(user, TALK)
        aider(tmp_path, two)
        until_turns(kernel, {"Arms": 8, TALK[0].asked: 4, "/exit": 1})
        # The same title as Cursor's: a session of its own.
        path.unlink()
        opencode_files(data_home, one)
        wait_until(lambda: agents(kernel) == {"cursor": 8, "aider": 5, "opencode": 4}, said=lambda: agents(kernel))
        opencode_files(data_home, two)
        wait_until(lambda: agents(kernel) == {"cursor": 8, "aider": 5, "opencode": 6}, said=lambda: agents(kernel))
        assert kernel.service("transcripts")["state"] == "ready"


def agents(kernel: RunningKernel) -> dict[str, int]:
    counts: dict[str, int] = {}
    for one in kernel.call("chats_list", {"limit": 200})["conversations"]:
        counts[one["agent"]] = counts.get(one["agent"], 0) + one["turns"]
    return counts
