"""`linckia mcp` without a running kernel: the settings that it writes, and mistakes."""

from __future__ import annotations

import json
import shutil
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kernel.cli.__main__ import main
from kernel.cli.servers import testing
from kernel.cli.servers.tables import mounts
from kernel.cli.settings_file import REMOVED, edited
from proto.host import log_lines


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    data = tmp_path / "data"
    monkeypatch.setenv("LINCKIA_DATA", str(data))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return data


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    try:
        code = main(["mcp", *argv])
    except SystemExit as exit:
        code = int(exit.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def tables(data: Path) -> Any:
    return tomllib.loads((data / "linckia.toml").read_text()).get("mcp", {})


def test_a_program_is_stored_with_the_place_where_it_was_found(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "sea-star"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    assert run(capsys, "add", "found", "--no-test", "--", "sea-star", "--arms", "5")[0] == 0
    assert run(capsys, "add", "lost", "--no-test", "--", "sea-urchin")[0] == 0
    assert [tables(data)[name]["command"] for name in ("found", "lost")] == [str(program), "sea-urchin"]


def test_a_command_is_added_with_its_options(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys, "add", "github", "--no-test", "--env", "LEVEL=a=b", "--env-from", "TOKEN", "--env-from", "own.env",
        "--share", "client", "--eager", "--pin", "--stateful", "--", "npx", "-y", "server", "--pin", "--", "x",
    )  # fmt: skip
    assert (code, "github is added" in out) == (0, True)
    assert tables(data) == {
        "github": {
            "command": shutil.which("npx") or "npx",
            "args": ["-y", "server", "--pin", "--", "x"],
            "env": {"LEVEL": "a=b"},
            "env_from": ["TOKEN", str(Path.cwd() / "own.env")],
            "confine": True,
            "share": "client",
            "start": "eager",
            "pin": True,
            "stateful": True,
        }
    }
    assert stat.S_IMODE((data / "linckia.toml").stat().st_mode) == 0o600


def test_a_url_is_added_with_headers(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--header", "A=1", "--header-env", "Authorization=DOCS_TOKEN")
    assert run(capsys, "add", "docs", "--no-test", "--url", "https://example.org/mcp", *options)[0] == 0
    assert tables(data)["docs"] == {
        "url": "https://example.org/mcp",
        "headers": {"A": "1"},
        "headers_from": {"Authorization": "DOCS_TOKEN"},
        "confine": True,
    }


def test_a_command_with_paths_from_here_starts_here(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("server.py").touch()
    run(capsys, "add", "own", "--no-test", "--", "python", "server.py")
    run(capsys, "add", "other", "--no-test", "--", "./run")
    assert tables(data)["own"]["cwd"] == str(Path.cwd())
    assert tables(data)["other"] == {"command": str(Path.cwd() / "run"), "confine": True}


def test_a_new_server_is_confined_unless_the_user_says_otherwise(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data.mkdir()
    (data / "linckia.toml").write_text('[mcp.old]\ncommand = "x"\n')
    Path("notes").mkdir()
    run(capsys, "add", "new", "--no-test", "--root", "notes", "--", "y")
    run(capsys, "add", "free", "--no-test", "--no-confine", "--", "y")
    assert tables(data) == {
        "old": {"command": "x"},
        "new": {"command": "y", "roots": [str(Path.cwd() / "notes")], "confine": True},
        "free": {"command": "y"},
    }
    assert {name: table.get("confine", False) for name, table in mounts(data).items()} == {
        "old": False, "new": True, "free": False
    }  # fmt: skip
    listed = [line.split()[:3] for line in run(capsys, "list")[1].splitlines()]
    assert listed == [["NAME", "STATE", "CONFINED"], ["free", "-", "no"], ["new", "-", "yes"], ["old", "-", "no"]]
    assert {each["name"]: each["confine"] for each in json.loads(run(capsys, "list", "--json")[1])} == {
        "old": False, "new": True, "free": False
    }  # fmt: skip


def test_comments_and_other_settings_stay(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data.mkdir()
    before = '# Mine.\nlog_level = "debug"  # loud\n\n[mcp.a]  # first\ncommand = "x"\n\n[http]\nport = 4000\n'
    (data / "linckia.toml").write_text(before)
    assert run(capsys, "add", "b", "--no-test", "--", "y")[0] == 0
    assert run(capsys, "disable", "a")[0] == 0
    text = (data / "linckia.toml").read_text()
    assert all(line in text for line in before.splitlines())
    assert list(mounts(data)) == ["b"]
    assert run(capsys, "enable", "a")[0] == run(capsys, "remove", "b")[0] == 0
    assert list(mounts(data)) == ["a"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["add", "Own", "--", "x"], "names of servers are lower case"),
        (["add", "core", "--", "x"], "such as core-mcp"),
        (["add", "own"], "name the server"),
        (["add", "own", "--url", "http://localhost", "--", "x"], "not both"),
        (["add", "own", "npx", "-y", "x"], "the server's command goes after `--`: linckia mcp add … -- npx"),
        (["add", "own", "--env", "A", "--", "x"], "--env: write it as K=V"),
        (["add", "own", "--url", "http://localhost", "--header-env", "A"], "--header-env: write it as K=V"),
        (["add", "own", "--cwd", "none", "--", "x"], "--cwd: there is no folder"),
        (["add", "own", "--root", "none", "--", "x"], "--root: there is no folder"),
        (["remove", "githob"], "there is no server 'githob'; did you mean github?"),
        (["disable", "none"], "there is no server 'none'"),
    ],
)
def test_mistakes_change_nothing(
    data: Path, capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:  # fmt: skip
    run(capsys, "add", "github", "--no-test", "--", "x")
    before = (data / "linckia.toml").read_bytes()
    code, out, err = run(capsys, *argv)
    assert (code, out) == (2, "")
    assert message in err
    assert (data / "linckia.toml").read_bytes() == before


def test_a_name_is_taken_once(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "add", "a-b", "--no-test", "--", "x")
    assert "there already is a server 'a-b'" in run(capsys, "add", "a-b", "--no-test", "--", "x")[2]
    code, _, err = run(capsys, "add", "a_b", "--no-test", "--", "x")
    assert (code, "nothing was changed" in err, "more than - and _" in err) == (1, True, True)
    assert list(tables(data)) == ["a-b"]


def test_a_first_table_that_is_refused_leaves_no_file(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LINCKIA_LOG_LEVEL", "loud")
    assert "log_level" in run(capsys, "add", "own", "--no-test", "--", "x")[2]
    assert not (data / "linckia.toml").exists()


def test_the_list_shows_all_servers(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "There are no servers" in run(capsys, "list")[1]
    run(capsys, "add", "own", "--no-test", "--", "x", "a b")
    run(capsys, "add", "docs", "--no-test", "--url", "http://localhost/mcp")
    run(capsys, "disable", "docs")
    lines = [line.split(maxsplit=5) for line in run(capsys, "list")[1].splitlines()]
    assert lines[1:] == [
        ["docs", "disabled", "yes", "-", "-", "http://localhost/mcp"], ["own", "-", "yes", "-", "-", "x 'a b'"]
    ]  # fmt: skip


def test_the_data_directory_may_be_named_before_and_after_the_action(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, argv in enumerate((["--data", "D", "add", "x"], ["add", "x", "--data", "D"])):
        given = [str(tmp_path / str(number)) if word == "D" else word for word in argv]
        assert run(capsys, *given, "--no-test", "--", "y")[0] == 0
        assert list(tables(tmp_path / str(number))) == ["x"]


def test_settings_that_cannot_be_edited_are_named() -> None:
    assert tomllib.loads(edited('mcp.a.command = "x"\n', ("mcp", "b"), {"url": "u"}))["mcp"]["b"] == {"url": "u"}
    assert edited('[mcp.a]\ncommand = "x"\n', ("mcp", "a"), REMOVED).strip() == ""


def test_tokens_may_be_for_the_surface_of_a_server(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "add", "docs", "--no-test", "--", "x")
    assert main(["token", "create", "ci", "--surface", "docs"]) == 0
    assert main(["token", "create", "other", "--surface", "dogs"]) == 2
    assert "there is no surface 'dogs'; did you mean docs?" in capsys.readouterr().err


def test_lines_that_a_server_logged_as_json_are_its_own() -> None:
    ours = log_lines.line("info", "linckia.service", "confined", 1.0)
    assert testing.is_ours(ours)
    assert testing.is_ours("  | Traceback (most recent call last):")
    for line in (
        '{"time": "12:00", "level": "error", "message": "no API key"}',
        log_lines.line("error", "app", "x", 1.0),
        "plain",
    ):
        assert not testing.is_ours(line)
