"""`linckia mcp import`: finds the servers of each client, keeps secrets, and changes no client's file."""

from __future__ import annotations

import io
import json
import stat
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kernel.cli.__main__ import main
from kernel.cli.clients.places import places
from kernel.cli.servers import importing
from kernel.cli.servers import tables as mount_tables
from kernel.cli.servers.tables import mounts
from services.mounts.manifest import settings_of
from services.mounts.process.environment import Secrets, command_of

CASES = Path(__file__).parents[5] / "shared/cases/reports/second/cases.json"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home, here = tmp_path / "home", tmp_path / "project"
    for folder in (home, here):
        folder.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LINCKIA_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(here)
    return home


def write(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def run(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> tuple[str, str]:
    assert main(["mcp", "import", *argv]) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def tables(home: Path) -> Any:
    return tomllib.loads((home.parent / "data" / "linckia.toml").read_text())["mcp"]


def servers(**named: object) -> dict[str, object]:
    return {"mcpServers": {name: {"command": command} for name, command in named.items()}}


def test_the_servers_of_every_client_are_found(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = Path.cwd()
    write(home / ".claude.json", {**servers(a="a"), "projects": {"/srv/x": servers(b="b"), "/srv/y": {}}, "n": 1})
    write(project / ".mcp.json", servers(c="c"))
    write(home / ".config/Claude/claude_desktop_config.json", servers(d="d"))
    write(home / ".cursor/mcp.json", servers(e="e"))
    write(project / ".cursor/mcp.json", servers(f="f"))
    write(home / ".config/Code/User/mcp.json", {"servers": {"g": {"command": "g"}}})
    write(project / ".vscode/mcp.json", '{"servers": {"h": {"command": "h"},},} // ours')
    write(home / ".codex/config.toml", '[mcp_servers.i]\ncommand = "i"\n')
    out, err = run(capsys, "--project", "--yes")
    found = tables(home)
    assert {name: table["command"] for name, table in found.items()} == {name: name for name in "abcdefghi"}
    assert {name: table["cwd"] for name, table in found.items() if "cwd" in table} == {
        "b": "/srv/x",
        **dict.fromkeys("cfh", str(project)),
    }
    assert ("9 servers are added" in out, "linckia" in out, err) == (True, True, "")


def test_only_the_named_clients_are_read(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(home / ".claude.json", servers(a="a"))
    write(home / ".cursor/mcp.json", servers(e="e"))
    run(capsys, "--from", "cursor")
    assert list(tables(home)) == ["e"]


def test_a_dry_run_changes_nothing(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(home / ".claude.json", servers(a="a"))
    assert "Nothing was changed" in run(capsys, "--dry-run")[0]
    assert not (home.parent / "data").exists()


def test_files_of_clients_stay_as_they_are(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(home / ".claude.json", servers(a="a"))
    before = path.read_bytes(), path.stat().st_mtime_ns
    run(capsys)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def test_secrets_go_to_files_for_the_owner_only(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = {
        "mcpServers": {
            "a": {"command": "a", "env": {"TOKEN": "hidden-1", "PEM": "two\nlines", "GIVEN": "${GIVEN}"}},
            "b": {"url": "https://example.org/mcp", "headers": {"Authorization": "Bearer hidden-2"}},
        }
    }
    write(home / ".cursor/mcp.json", content)
    out, err = run(capsys)
    data = home.parent / "data"
    assert "hidden-" not in (data / "linckia.toml").read_text() + out + err
    assert "a needs the environment variable GIVEN" in err
    # A file of lines cannot hold it.
    assert json.loads((data / "mcp/a.json").read_text()) == {"PEM": "two\nlines"}
    assert mounts(data)["a"]["env_from"] == ["GIVEN", str(data / "mcp/a.env"), str(data / "mcp/a.json")]
    assert mounts(data)["b"]["headers_from"] == {"Authorization": str(data / "mcp/b.Authorization.header")}
    assert (data / "mcp/a.env").read_text() == "TOKEN=hidden-1\n"
    assert (data / "mcp/b.Authorization.header").read_text() == "Bearer hidden-2"
    assert {stat.S_IMODE(path.stat().st_mode) for path in (data / "mcp").iterdir()} == {0o600}
    assert main(["mcp", "remove", "a"]) == main(["mcp", "remove", "b"]) == 0
    assert list((data / "mcp").iterdir()) == []


def test_equal_servers_are_added_once(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = {"mcpServers": {"a": {"command": "a", "env": {"T": "1"}, "type": "stdio"}}}
    write(home / ".claude.json", same)
    write(home / ".cursor/mcp.json", same)
    run(capsys)
    assert list(tables(home)) == ["a"]
    assert "no new servers" in run(capsys)[0]


def test_imported_servers_are_confined_unless_the_user_says_otherwise(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(home / ".claude.json", servers(a="a"))
    assert "They are confined" in run(capsys)[0]
    assert tables(home) == {"a": {"command": "a", "confine": True}}
    # What Linckia or its user has added to the table does not make it another server.
    settings = home.parent / "data" / "linckia.toml"
    settings.write_text(settings.read_text() + 'roots = ["/srv"]\nnetwork = false\n')
    assert "no new servers" in run(capsys)[0]
    write(home / ".cursor/mcp.json", servers(b="b"))
    assert "confined" not in run(capsys, "--no-confine")[0]
    assert tables(home)["b"] == {"command": "b"}


def test_other_servers_of_the_same_name_are_renamed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(home / ".claude.json", {**servers(a="1"), "projects": {"/srv/shop": servers(a="2")}})
    write(home / ".cursor/mcp.json", servers(a="3", core="4"))
    run(capsys)
    commands = {name: table["command"] for name, table in tables(home).items()}
    assert commands == {"a": "1", "a-shop": "2", "a-cursor": "3", "core-mcp": "4"}


def test_linckia_itself_is_left_out(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = {"a": {"command": "/usr/bin/linckia", "args": ["stdio"]}, "b": {"command": "uvx", "args": ["linckia"]}}
    write(home / ".claude.json", {"mcpServers": content})
    assert "no new servers" in run(capsys)[0]


def test_servers_and_files_with_mistakes_are_skipped(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = {"a": {"command": "a", "args": ["${input:key}"]}, "b": {"command": "b", "odd": 1}}
    write(home / ".config/Code/User/mcp.json", {"servers": content})
    write(home / ".cursor/mcp.json", "{")
    _, err = run(capsys, code=1)
    assert list(tables(home)) == ["b"]
    assert "${input:key} is an input" in err
    assert "b.odd is not known" in err
    assert ".cursor/mcp.json is not valid JSON" in err


def test_the_shared_file_with_an_entry_without_a_command_is_imported(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not CASES.exists():
        pytest.skip("the shared cases are absent")
    write(home / ".claude.json", json.loads(CASES.read_text())["mcp_import_goes_on"])
    out, err = run(capsys, code=1)
    assert list(tables(home)) == ["time"]
    assert "nocmd: it has neither `command` nor `url`; the server is skipped" in err
    assert "1 server is added" in out


BAD: list[object] = [
    "x", None, 7, [], {}, {"args": ["x"]}, {"command": "x", "args": "y"}, {"command": "x", "args": 7},
    {"command": "x", "env": {"A": ["1"]}}, {"command": "x", "env": "A=1"}, {"command": "x", "url": "http://localhost/"},
    {"command": "x", "type": "ws"}, {"url": "localhost"}, {"command": {"args": ["x"]}}, {"command": "x", "env_vars": 1},
    {"url": "http://localhost/", "headers": ["A"], "bearer_token_env_var": "A"},
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_one_bad_entry_is_named_and_stops_no_other(home: Path, capsys: pytest.CaptureFixture[str], bad: object) -> None:
    write(home / ".cursor/mcp.json", {"mcpServers": {"odd": bad, "good": {"command": "good"}}})
    write(home / ".codex/config.toml", '[mcp_servers.other]\ncommand = "other"\n')
    out, err = run(capsys, code=1)
    assert sorted(tables(home)) == ["good", "other"]
    (line,) = err.splitlines()
    assert ".cursor/mcp.json: " in line
    assert "odd" in line
    assert line.endswith("the server is skipped")
    assert "2 servers are added" in out
    # It is still wrong.
    assert "no new servers" in run(capsys, code=1)[0]


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"mcpServers": []}', '{"mcpServers": "x"}', "[" * 100_000, b"\xff\xfe{\0}\0"]
)
def test_one_bad_file_is_named_and_stops_no_other(
    home: Path, capsys: pytest.CaptureFixture[str], content: str | bytes
) -> None:
    path = home / ".cursor/mcp.json"
    path.parent.mkdir()
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    write(home / ".claude.json", servers(a="a"))
    write(home / ".codex/config.toml", '[mcp_servers.i]\ncommand = "i"\n')
    _, err = run(capsys, code=1)
    assert sorted(tables(home)) == ["a", "i"]
    assert str(path) in err


def test_a_bad_list_of_one_project_stops_no_other(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    projects = {"/srv/x": {"mcpServers": ["b"]}, "/srv/y": servers(c="c"), "/srv/z": 7}
    write(home / ".claude.json", {**servers(a="a"), "projects": projects})
    _, err = run(capsys, code=1)
    assert sorted(tables(home)) == ["a", "c"]
    assert "projects./srv/x: mcpServers: expected an object" in err


def test_changed_names_are_reported(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = {"": "a", "本": "b", "My Server": "c", "my-server": "d"}
    write(home / ".cursor/mcp.json", servers(**listed))
    _, err = run(capsys)
    assert {name: table["command"] for name, table in tables(home).items()} == {
        "mcp": "a", "mcp-cursor": "b", "my-server": "c", "my-server-cursor": "d"
    }  # fmt: skip
    assert "My Server is called my-server here" in err
    assert "本 is called mcp-cursor here" in err


def test_tokens_of_codex_stay_in_the_environment(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "hidden-1")
    text = """
    [mcp_servers.a]
    url = "https://example.org/mcp"
    bearer_token_env_var = "TOKEN"
    http_headers = {A = "hidden-2"}
    env_http_headers = {B = "OTHER"}
    """
    write(home / ".codex/config.toml", text)
    out, err = run(capsys)
    data = home.parent / "data"
    assert mounts(data)["a"]["headers_from"] == {
        "Authorization": "Bearer ${TOKEN}", "B": "OTHER", "A": str(data / "mcp/a.A.header")
    }  # fmt: skip
    assert "hidden-" not in (data / "linckia.toml").read_text() + out + err
    assert [path.name for path in (data / "mcp").iterdir()] == ["a.A.header"]
    assert "a needs the environment variable OTHER" in err
    assert "no new servers" in run(capsys)[0]


def test_references_of_vs_code_are_carried_over_or_reported(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = Path.cwd()
    (project / ".env").write_text("A=1\n")
    web = {"type": "http", "url": "https://example.org/mcp"}
    listed = {
        "header": {**web, "headers": {"Authorization": "Bearer ${env:TOKEN}"}},
        "asked": {**web, "headers": {"Authorization": "Bearer ${input:key}"}},
        "file": {"command": "${workspaceFolder}/x", "args": ["${workspaceFolderBasename}"],
                 "envFile": "${workspaceFolder}/.env"},
        "lost": {"command": "x", "envFile": "${workspaceFolder}/none"},
        "named": {"command": "x", "args": ["${config:a.b}"]},
    }  # fmt: skip
    write(project / ".vscode/mcp.json", {"inputs": [{"id": "key", "type": "promptString"}], "servers": listed})
    _, err = run(capsys, "--project", "--yes", "--no-confine", code=1)
    found = tables(home)
    assert found["header"]["headers_from"] == {"Authorization": "Bearer ${TOKEN}"}
    assert found["file"] == {
        "command": f"{project}/x", "args": [project.name], "cwd": str(project), "env_from": [f"{project}/.env"]
    }  # fmt: skip
    assert sorted(found) == ["file", "header", "lost"]
    assert "asked.headers.Authorization: ${input:key} is an input" in err
    assert "named.args: ${config:a.b} is not known" in err
    assert "header needs the environment variable TOKEN" in err
    assert f"lost needs the file {project}/none, which is not there" in err


@pytest.mark.parametrize(
    ("platform", "path"),
    [
        ("linux", "{home}/.config/Claude/claude_desktop_config.json"),
        ("darwin", "{home}/Library/Application Support/Claude/claude_desktop_config.json"),
        ("win32", "/roaming/Claude/claude_desktop_config.json"),
    ],
)
def test_every_platform_has_its_places(home: Path, platform: str, path: str) -> None:
    found = places(home, Path.cwd(), {"APPDATA": "/roaming"}, platform)
    assert Path(path.format(home=home)) in [place.path for place in found]


def project_of(home: Path) -> None:
    write(home / ".claude.json", servers(mine="mine"))
    write(Path.cwd() / ".mcp.json", servers(**{"good": "good", "evil": "evil"}))


def test_files_of_a_project_are_not_read_unless_asked_for(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project_of(home)
    out, err = run(capsys)
    assert list(tables(home)) == ["mine"]
    assert ".mcp.json belongs to a project and is not read; --project" in err
    assert "evil" not in out + err


@pytest.mark.parametrize("answers", ["y\nn\n", "yes\n", "y\n\n"])
def test_a_projects_server_is_added_only_if_the_user_agrees(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answers: str
) -> None:
    project_of(home)
    changed_after: list[int] = []
    stdin = Terminal(answers)
    monkeypatch.setattr(sys, "stdin", stdin)
    change = mount_tables.change

    def noted(*given: Any) -> object:
        changed_after.append(stdin.tell())
        return change(*given)

    monkeypatch.setattr(importing, "change", noted)
    out, _ = run(capsys, "--project")
    assert sorted(tables(home)) == ["good", "mine"]
    # Nothing was started before the last answer.
    assert changed_after == [len(answers)]
    assert f"in the folder {Path.cwd()}" in out


def test_without_a_terminal_a_project_is_not_read(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    project_of(home)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\ny\n"))
    assert main(["mcp", "import", "--project"]) == 2
    assert "--yes" in capsys.readouterr().err
    assert not (home.parent / "data" / "linckia.toml").exists()


class Terminal(io.StringIO):
    """Scripted answers in place of a person's."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/mcp?key=hidden-1",
        "https://me:hidden-1@example.org/mcp",
        "https://example.org/s/hidden-1abcdefghijklmnop/mcp",
        "https://example.org/${SECRET}",
        "https://${SECRET}.example.org/mcp",
    ],
)
def test_a_secret_in_a_url_goes_to_a_file(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("SECRET", "hidden-1")
    write(home / ".cursor/mcp.json", {"mcpServers": {"a": {"url": url}, "b": {"url": "https://example.org/mcp"}}})
    out, err = run(capsys)
    data = home.parent / "data"
    assert "hidden-1" not in (data / "linckia.toml").read_text()
    assert mounts(data)["a"] == {"url_from": str(data / "mcp/a.url"), "confine": True}
    assert mounts(data)["b"] == {"url": "https://example.org/mcp", "confine": True}
    assert (data / "mcp/a.url").read_text() == url.replace("${SECRET}", "hidden-1")
    assert stat.S_IMODE((data / "mcp/a.url").stat().st_mode) == 0o600
    if "$" not in url:
        assert "hidden-1" not in out + err
    assert "no new servers" in run(capsys)[0]


def test_secrets_in_arguments_go_to_files(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "hidden-1")
    args = [
        *("-y", "mcp-remote", "https://example.org/mcp?key=hidden-2", "--header", "Authorization: Bearer hidden-3"),
        *("--api-key", "hidden-4", "--token=hidden-5", "${SECRET}", "DB_PASSWORD=hidden-6", "sk-hidden-7-0123456789"),
        *("--auth", "none", "--port", "8080", "/srv/a folder", "--keyword"),
    ]
    kept = ["-y", "--port", "8080", "/srv/a folder", "--keyword", "none", "mcp-remote", "--header", "--api-key"]
    write(home / ".cursor/mcp.json", {"mcpServers": {"a": {"command": "npx", "args": args}, "b": {"command": "b"}}})
    out, err = run(capsys, "--dry-run")
    assert "hidden-" not in out + err
    out, err = run(capsys)
    data = home.parent / "data"
    assert "hidden-" not in (data / "linckia.toml").read_text() + out + err
    table = mounts(data)["a"]
    assert set(kept) <= set(table["args"])
    assert len(table["args_from"]) == 7
    assert {stat.S_IMODE(Path(path).stat().st_mode) for path in table["args_from"].values()} == {0o600}
    # The server gets what its client gave it.
    command = command_of(settings_of("a", table), {}, secrets := Secrets())
    assert command == ["npx", *(each.replace("${SECRET}", "hidden-1") for each in args)]
    assert "hidden" not in secrets.redact(" ".join(command))
    assert "no new servers" in run(capsys)[0]
    assert main(["mcp", "remove", "a"]) == 0
    assert list((data / "mcp").iterdir()) == []


def test_a_placeholder_in_no_argument_is_refused(home: Path) -> None:
    with pytest.raises(ValueError, match=r"mcp\.a\.args_from: no argument contains '\{key\}'; write it where"):
        settings_of("a", {"command": "a", "args": ["--key"], "args_from": {"{key}": "KEY"}})
