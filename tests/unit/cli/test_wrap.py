"""`linckia wrap`: which wrapped commands are the same server, and the settings that they leave."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import stat
import time
from pathlib import Path

import pytest

from linckia.kernel.cli import Usage, wrap
from linckia.kernel.cli.mcp_settings import mounts, written
from linckia.kernel.cli.parser import build_parser
from linckia.proto.mounts import is_name

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


def wrapped(usual: Path, monkeypatch: pytest.MonkeyPatch, *argv: str) -> str:
    """Run `linckia wrap` without a session, and return the surface that the session would have."""
    sessions: list[argparse.Namespace] = []

    def stdio(arguments: argparse.Namespace) -> int:
        sessions.append(arguments)
        return 0

    monkeypatch.setattr(wrap, "stdio", stdio)
    monkeypatch.setattr(wrap, "_started", lambda *_: contextlib.nullcontext())
    arguments = build_parser().parse_args(["wrap", *argv])
    arguments.data_dir = usual
    assert wrap.wrap(arguments) == 0
    (session,) = sessions
    assert session.only_mounts
    assert session.data_dir == usual.with_name("linckia-wrap")
    return str(session.surface)


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
        "env_from": [str(data / f"mcp/{name}.env")],
        "env": {"PEM": "two\nlines"},
    }
    path = data / f"mcp/{name}.env"
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((data / "linckia.toml").stat().st_mode) == 0o600
    lines = path.read_text().splitlines()
    assert "TOKEN=hidden" in lines
    assert not [line for line in lines if line.startswith("SSH_")]


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
def test_names_say_what_is_run(server: list[str], words: str) -> None:
    assert wrap.words_of(server) == words


@pytest.mark.parametrize("given", ["7zip", "本", "x" * 60, "My Server!"])
def test_names_are_valid(usual: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    assert is_name(wrapped(usual, monkeypatch, "--name", given, *SERVER))


def test_a_command_is_needed(usual: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Usage, match="linckia wrap -- COMMAND"):
        wrapped(usual, monkeypatch)
