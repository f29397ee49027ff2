"""`linckia setup` leads from nothing to a question answered, and may be repeated."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

from tests.system.cli.clients import linckia


def test_setup_sets_everything_up_and_answers_a_question(tmp_path: Path) -> None:
    home, notes, data = tmp_path / "home", tmp_path / "notes", tmp_path / "data"
    for folder in (home / ".cursor", home / ".claude" / "projects" / "p", notes):
        folder.mkdir(parents=True)
    client = home / ".cursor" / "mcp.json"
    client.write_text(json.dumps({"mcpServers": {"else": {"url": "http://127.0.0.1:9/mcp"}}}))
    turn = {"type": "user", "sessionId": "s", "uuid": "u", "parentUuid": None, "timestamp": "2026-11-01T10:00:00Z"}
    said = turn | {"message": {"role": "user", "content": "How does a sea star regrow an arm?"}}
    (home / ".claude" / "projects" / "p" / "s.jsonl").write_text(json.dumps(said) + "\n")
    (notes / "sea-stars.md").write_text("# Sea stars\n\nLinckia grows back any arm that it loses.\n")
    variables = {
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "CLAUDE_CONFIG_DIR": str(home / ".claude"),
    }

    shown = linckia(data, "setup", str(notes), "--dry-run", **variables)
    assert shown.returncode == 0, shown
    assert "Nothing was changed." in shown.stdout
    assert "linckia" not in client.read_text()
    assert not data.exists()

    settings = data / "linckia.toml"
    try:
        done = linckia(data, "setup", str(notes), "--yes", **variables)
        assert done.returncode == 0, done
        assert "sea-stars" in done.stdout.partition("A question")[2]
        assert tomllib.loads(settings.read_text())["roots"] == [str(notes)]
        assert set(json.loads(client.read_text())["mcpServers"]) == {"else", "linckia"}
        chats = json.loads(linckia(data, "call", "chats_list", "{}").stdout)
        assert [each["title"] for each in chats["conversations"]] == ["How does a sea star regrow an arm?"]
        before = settings.read_bytes(), client.read_bytes()
        again = linckia(data, "setup", "--yes", "--question", "which animal regrows a limb", **variables)
        assert again.returncode == 0, again
        assert "runs already" in again.stdout
        assert (settings.read_bytes(), client.read_bytes()) == before
    finally:
        linckia(data, "stop")


def test_setup_without_folders_changes_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    unnamed = linckia(data, "setup", "--yes", HOME=str(tmp_path))
    assert unnamed.returncode == 2
    assert "linckia setup ~/notes --yes" in unnamed.stderr
    lost = linckia(data, "setup", str(tmp_path / "none"), "--yes", HOME=str(tmp_path))
    assert lost.returncode == 2
    assert "does not exist" in lost.stderr
    assert "no terminal" in linckia(data, "setup", HOME=str(tmp_path)).stderr
    assert not data.exists()


def test_the_demo_shows_everything_and_leaves_nothing(tmp_path: Path) -> None:
    shown = linckia(tmp_path / "unused", "demo", TMPDIR=str(tmp_path))
    assert shown.returncode == 0, shown
    question, _, rest = shown.stdout.partition("Kill a service")
    killed, _, undone = rest.partition("Undo what")
    assert "deploys" in question
    assert "nothing relevant" not in shown.stderr
    assert killed.rstrip().endswith("later: deploys")
    before, _, after = undone.partition("$ linckia undo --last")
    assert "release on Fridays" in before
    assert "release on Tuesdays" in after
    assert list(tmp_path.iterdir()) == []
