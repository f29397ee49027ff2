"""`linckia install-client` changes a client's settings as shown, and takes the change back to the byte."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kernel.cli.__main__ import main
from kernel.cli.clients.install_client import BACKUP_ENDING, FORMATS
from kernel.cli.clients.places import settings_file
from kernel.cli.servers.client_files import plain_json, servers_in
from kernel.cli.servers.options import CLIENTS

EARLIER = {
    ".json": '// mine\n{\n  "theme": "dark", // of course\n  "%s": {\n    "other": {"command": "x"},\n  },\n}\n',
    ".toml": '# mine\nmodel = "large" # of course\n\n[%s.other]\ncommand = "x"\n',
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "notes").mkdir()
    monkeypatch.chdir(tmp_path / "notes")
    return tmp_path


def place(client: str, home: Path, *, project: bool = False) -> Path:
    found = settings_file(client, home, home / "notes", {}, project=project)
    assert found is not None
    return found


def earlier(client: str, home: Path) -> Path:
    """Settings that the client has already, with comments."""
    path = place(client, home)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(EARLIER[path.suffix] % FORMATS[client].table)
    path.chmod(0o640)
    return path


def content(path: Path) -> dict[str, Any]:
    text = path.read_text()
    found: dict[str, Any] = tomllib.loads(text) if path.suffix == ".toml" else json.loads(plain_json(text))
    return found


def run(*words: str) -> int:
    return main(["install-client", *words])


def test_every_client_that_is_known_has_a_format() -> None:
    assert FORMATS.keys() == set(CLIENTS)


@pytest.mark.parametrize("client", CLIENTS)
def test_the_entry_is_added_beside_the_others_and_undone_to_the_byte(client: str, home: Path) -> None:
    path = earlier(client, home)
    before = path.read_bytes()
    assert run(client, str(home / "notes"), "--yes") == 0
    servers = content(path)[FORMATS[client].table]
    assert servers["other"] == {"command": "x"}
    entry = servers["linckia"]
    assert Path(entry["command"]).name == "linckia"
    assert entry["args"] == ["stdio", str(home / "notes")]
    assert {server.name for server in servers_in(content(path), "")} == {"other", "linckia"}
    assert path.stat().st_mode & 0o777 == 0o640
    assert path.with_name(path.name + BACKUP_ENDING).read_bytes() == before
    assert run(client, str(home / "notes"), "--yes") == 0
    assert run(client, "--undo", "--yes") == 0
    assert path.read_bytes() == before
    assert path.stat().st_mode & 0o777 == 0o640
    assert not path.with_name(path.name + BACKUP_ENDING).exists()


@pytest.mark.parametrize("client", CLIENTS)
def test_undo_keeps_what_was_changed_since(client: str, home: Path) -> None:
    path = earlier(client, home)
    assert run(client, "--yes") == 0
    path.write_text(path.read_text().replace("dark", "light").replace("large", "small") + "\n")
    changed = content(path)
    assert run(client, "--undo", "--yes") == 0
    del changed[FORMATS[client].table]["linckia"]
    assert content(path) == changed


@pytest.mark.parametrize("client", CLIENTS)
def test_a_file_that_did_not_exist_is_made_and_removed_again(client: str, home: Path) -> None:
    path = place(client, home)
    assert run(client, "--yes") == 0
    assert content(path)[FORMATS[client].table].keys() == {"linckia"}
    assert run(client, "--undo", "--yes") == 0
    assert not path.exists()


@pytest.mark.parametrize("client", sorted(set(CLIENTS) - {"claude-desktop", "copilot-cli"}))
def test_a_project_has_a_file_of_its_own(client: str, home: Path) -> None:
    assert run(client, "--project", "--yes", "--name", "mine", "--surface", "files") == 0
    entry = content(place(client, home, project=True))[FORMATS[client].table]["mine"]
    assert entry["args"] == ["stdio", "--surface", "files"]
    assert not place(client, home).exists()


@pytest.mark.parametrize(
    ("client", "member", "value"), [("claude-code", "alwaysLoad", True), ("copilot-cli", "deferTools", "never")]
)
def test_clients_that_hide_tools_are_told_to_show_them(client: str, member: str, value: object, home: Path) -> None:
    assert run(client, "--yes") == 0
    assert content(place(client, home))[FORMATS[client].table]["linckia"][member] == value


def test_a_client_without_project_settings_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("claude-desktop", "--project", "--yes") == 2
    assert "--project" in capsys.readouterr().err


def test_without_a_terminal_nothing_is_changed_unasked(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = earlier("cursor", home)
    before = path.read_bytes()
    assert run("cursor") == 1
    out, err = capsys.readouterr()
    assert '+    "linckia": {' in out
    assert "--yes" in err
    assert run("cursor", "--dry-run") == 0
    assert path.read_bytes() == before
    assert not path.with_name(path.name + BACKUP_ENDING).exists()


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("", 1), ("no", 1)])
def test_a_person_is_asked(home: Path, monkeypatch: pytest.MonkeyPatch, answer: str, code: int) -> None:
    path = earlier("zed", home)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _: answer)
    assert run("zed") == code
    assert ("linckia" in content(path)["context_servers"]) == (code == 0)


@pytest.mark.parametrize("client", ["vscode", "codex"])
def test_a_file_that_is_wrong_is_named_and_left_alone(
    client: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = earlier(client, home)
    path.write_text('{"servers" = [')
    assert run(client, "--yes") == 1
    assert path.read_text() == '{"servers" = ['
    err = capsys.readouterr().err
    assert str(path) in err
    assert "nothing was changed" in err


def test_a_link_stays_a_link_and_its_target_is_changed(home: Path) -> None:
    path = earlier("claude-code", home)
    target = home / "dotfiles.json"
    path.rename(target)
    path.symlink_to(target)
    before = target.read_bytes()
    assert run("claude-code", "--yes") == 0
    assert path.is_symlink()
    assert "linckia" in content(target)["mcpServers"]
    assert run("claude-code", "--undo", "--yes") == 0
    assert (path.is_symlink(), target.read_bytes()) == (True, before)


def test_an_entry_of_the_same_name_is_shown_and_comes_back(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = place("gemini", home)
    path.parent.mkdir()
    path.write_text('{"mcpServers": {"linckia": {"command": "mine"}}}')
    assert run("gemini", "--yes") == 0
    assert '-{"mcpServers": {"linckia": {"command": "mine"}}}' in capsys.readouterr().out
    path.write_text(path.read_text() + "\n")
    assert run("gemini", "--undo", "--yes") == 0
    assert content(path) == {"mcpServers": {"linckia": {"command": "mine"}}}


def test_there_must_be_an_entry_to_undo(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    earlier("cursor", home)
    assert run("cursor", "--undo", "--yes") == 1
    assert "has no server 'linckia'" in capsys.readouterr().err
