"""`linckia wrap`: which wrapped commands are the same server, and the settings that they leave."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kernel.cli.parser import build_parser
from kernel.cli.servers import wrap
from kernel.cli.servers.tables import mounts, written
from proto.control.commands import Usage
from proto.mounts import is_name

SERVER = ("--", "npx", "-y", "@scope/server-files@1.2", "/srv")


@pytest.fixture(autouse=True)
def usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The usual data directory."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in list(os.environ):
        if name != "PATH":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / "linckia"


def wrapped(
    usual: Path, monkeypatch: pytest.MonkeyPatch, *argv: str, session: Callable[[argparse.Namespace], int] | None = None
) -> str:
    """Run `linckia wrap` without a session, and return the surface that the session would have."""
    sessions: list[argparse.Namespace] = []

    def stdio(arguments: argparse.Namespace) -> int:
        sessions.append(arguments)
        return 0 if session is None else session(arguments)

    monkeypatch.setattr(wrap, "stdio", stdio)
    monkeypatch.setattr(wrap, "_started", lambda *_: contextlib.nullcontext())
    arguments = build_parser().parse_args(["wrap", *argv])
    arguments.data_dir = usual
    assert wrap.wrap(arguments) == 0
    (given,) = sessions
    assert given.only_mounts
    assert given.data_dir == usual.with_name("linckia-wrap")
    return str(given.surface)


def test_the_command_is_mounted_with_its_folder_and_environment(
    usual: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setenv("TOKEN", "hidden")
    monkeypatch.setenv("PEM", "two\nlines")
    monkeypatch.setenv("SSH_CLIENT", "1.2.3.4")
    name = wrapped(usual, monkeypatch, "--pin", *SERVER)
    assert re.fullmatch("server-files-[0-9a-f]{8}", name)
    data = usual.with_name("linckia-wrap")
    table = mounts(data)[name]
    assert table == {
        "command": "npx",
        "args": ["-y", "@scope/server-files@1.2", "/srv"],
        "cwd": str(Path.cwd()),
        "pin": True,
        "env_from": [str(data / f"mcp/{name}.{ending}") for ending in ("env", "json")],
    }
    assert "lines" not in (data / "linckia.toml").read_text()
    assert stat.S_IMODE((data / "linckia.toml").stat().st_mode) == 0o600


class Session:
    """Replaces the session: records the files on disk meanwhile, and may run a function."""

    def __init__(self, data: Path, work: Callable[[argparse.Namespace], None] = lambda session: None) -> None:
        self.files: dict[str, str] = {}
        self.modes: set[int] = set()
        self._data, self._work = data, work

    def __call__(self, arguments: argparse.Namespace) -> int:
        for path in environments(self._data):
            self.files[path.suffix] = path.read_text()
            self.modes.add(stat.S_IMODE(path.stat().st_mode))
        self._work(arguments)
        return 0


def environments(data: Path) -> list[Path]:
    return [path for path in (data / "mcp").iterdir() if path.suffix in (".env", ".json")]


def test_the_environment_is_on_disk_only_while_somebody_wraps_the_server(
    usual: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "hidden")
    monkeypatch.setenv("PEM", "two\nlines")
    monkeypatch.setenv("SSH_CLIENT", "1.2.3.4")
    data = usual.with_name("linckia-wrap")
    # It is written again for each first session.
    for _ in range(2):
        session = Session(data)
        wrapped(usual, monkeypatch, "--env", "GIVEN=1", *SERVER, session=session)
        lines = session.files[".env"].splitlines()
        assert {"TOKEN=hidden", "GIVEN=1"} <= set(lines)
        assert not [line for line in lines if line.startswith("SSH_")]
        assert json.loads(session.files[".json"]) == {"PEM": "two\nlines"}
        assert session.modes == {0o600}
        assert environments(data) == []


def test_the_last_session_removes_the_environment_however_it_ends(usual: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = usual.with_name("linckia-wrap")
    left: list[int] = []

    def another(session: argparse.Namespace) -> None:
        wrapped(usual, monkeypatch, *SERVER, session=Session(data))
        left.append(len(environments(data)))
        # As a signal ends it.
        session.at_end()
        left.append(len(environments(data)))

    wrapped(usual, monkeypatch, *SERVER, session=Session(data, another))
    assert left == [1, 0]


def test_leftovers_of_a_killed_session_are_removed_by_the_next_one(
    usual: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = usual.with_name("linckia-wrap")
    killed = wrapped(usual, monkeypatch, *SERVER)
    (data / f"mcp/{killed}.env").write_text("TOKEN=hidden\n")
    wrapped(usual, monkeypatch, *SERVER, "more")
    assert environments(data) == []


def test_a_server_that_starts_with_the_kernel_keeps_its_environment(
    usual: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapped(usual, monkeypatch, "--eager", *SERVER)
    assert [path.suffix for path in environments(usual.with_name("linckia-wrap"))] == [".env"]


def test_the_same_command_is_the_same_server(usual: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = wrapped(usual, monkeypatch, *SERVER)
    # Another terminal, and another client.
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("VSCODE_PID", "1")
    assert wrapped(usual, monkeypatch, *SERVER) == first
    assert list(written(usual.with_name("linckia-wrap"))) == [first]


def test_other_arguments_folders_options_and_variables_are_other_servers(
    usual: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = [
        wrapped(usual, monkeypatch, *SERVER),
        wrapped(usual, monkeypatch, *SERVER, "more"),
        wrapped(usual, monkeypatch, "--cwd", str(tmp_path), *SERVER),
        wrapped(usual, monkeypatch, "--share", "client", *SERVER),
        wrapped(usual, monkeypatch, "--env", "A=1", *SERVER),
    ]
    monkeypatch.setenv("TOKEN", "another user's")
    names.append(wrapped(usual, monkeypatch, *SERVER))
    assert len(set(names)) == len(names) == len(written(usual.with_name("linckia-wrap")))


def test_servers_that_nobody_wraps_any_more_are_forgotten(usual: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = usual.with_name("linckia-wrap")
    old, kept = wrapped(usual, monkeypatch, *SERVER), wrapped(usual, monkeypatch, *SERVER, "more")
    past = time.time() - wrap.KEPT_S - 60
    os.utime(data / f"mcp/{old}.used", (past, past))
    new = wrapped(usual, monkeypatch, *SERVER, "other")
    assert list(written(data)) == [kept, new]
    assert not list((data / "mcp").glob(f"{old}.*"))


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (["npx", "-y", "@modelcontextprotocol/server-filesystem@2.0", "/srv"], "server-filesystem"),
        (["uvx", "mcp-server-git"], "mcp-server-git"),
        (["uv", "run", "server.py"], "server"),
        (["/usr/bin/python3.11", "-m", "mcp_server_time"], "mcp_server_time"),
        (["docker", "run", "-i", "ghcr.io/github/github-mcp-server"], "github-mcp-server"),
        (["/opt/own/bin/own-server", "x"], "own-server"),
        (["npx"], "npx"),
    ],
)
def test_default_names_come_from_the_command(server: list[str], words: str) -> None:
    assert wrap.words_of(server) == words


@pytest.mark.parametrize("given", ["7zip", "本", "x" * 60, "My Server!"])
def test_names_are_valid(usual: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    assert is_name(wrapped(usual, monkeypatch, "--name", given, *SERVER))


def test_a_command_is_needed(usual: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Usage, match="linckia wrap -- COMMAND"):
        wrapped(usual, monkeypatch)
