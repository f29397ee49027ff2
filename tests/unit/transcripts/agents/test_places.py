"""Where the conversations of agents are looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.transcripts.manifest import AGENTS as FOLLOWED
from services.transcripts.places import NAMES, find, folders
from tests.unit.transcripts.agents.written import AGENTS, TALK, cline_as


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_each_agent_that_can_be_followed_is_looked_for() -> None:
    assert set(NAMES) == set(FOLLOWED)
    assert len(NAMES) + len({"aider"}) >= 15


@pytest.mark.parametrize(
    ("agent", "system", "place"),
    [
        ("cursor", "linux", ".config/Cursor/User/globalStorage"),
        ("cursor", "darwin", "Library/Application Support/Cursor/User/globalStorage"),
        ("cursor", "win32", "AppData/Roaming/Cursor/User/globalStorage"),
        ("copilot-chat", "linux", ".config/Code/User/workspaceStorage"),
        ("copilot-chat", "darwin", "Library/Application Support/VSCodium/User/workspaceStorage"),
        ("cline", "linux", ".cline/data/tasks"),
        ("cline", "win32", "AppData/Roaming/Code/User/globalStorage/saoudrizwan.claude-dev/tasks"),
        ("zed", "linux", ".local/share/zed/threads"),
        ("zed", "darwin", "Library/Application Support/Zed/threads"),
        ("zed", "win32", "AppData/Local/Zed/threads"),
        ("goose", "darwin", ".local/share/goose/sessions"),
        ("goose", "win32", "AppData/Roaming/Block/goose/sessions"),
        ("claude", "darwin", ".claude/projects"),
        ("codex", "win32", ".codex/sessions"),
    ],
)
def test_an_agent_is_looked_for_at_its_place_on_each_system(home: Path, agent: str, system: str, place: str) -> None:
    assert str(home / place) in folders(agent, {}, system)


@pytest.mark.parametrize(
    ("agent", "variable", "place"),
    [
        ("claude", "CLAUDE_CONFIG_DIR", "projects"), ("codex", "CODEX_HOME", "sessions"),
        ("copilot", "COPILOT_HOME", "session-state"), ("opencode", "XDG_DATA_HOME", "opencode"),
        ("cursor", "XDG_CONFIG_HOME", "Cursor/User/globalStorage"), ("goose", "GOOSE_PATH_ROOT", "data/sessions"),
    ],
)  # fmt: skip
def test_an_agents_own_variable_is_honoured(agent: str, variable: str, place: str) -> None:
    assert folders(agent, {variable: "/elsewhere"}, "linux")[0] == f"/elsewhere/{place}"


def test_what_is_found_is_counted_by_sessions_and_not_by_files(home: Path) -> None:
    AGENTS["opencode, files"].write(home / ".local" / "share", TALK)
    AGENTS["aider"].write(home, TALK)
    cline_as("saoudrizwan.claude-dev")(home / ".config" / "VSCodium" / "User", TALK)
    cline_as("kilocode.kilo-code")(home / ".config" / "Code" / "User", TALK)
    found = {(each.agent, each.sessions, len(each.files)) for each in find({}, "linux")}
    assert found == {("OpenCode", 1, 1), ("Cline", 1, 1), ("Kilo Code", 1, 1)}
    assert {each.agent for each in find({}, "darwin")} == {"OpenCode"}
