"""`linckia proxy` becomes a process of `transcripts`, and passes on what it was given as it was given."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from kernel.cli.__main__ import main as linckia
from services.transcripts.proxy.__main__ import main


class Became(Exception):
    """The process would be another program now."""


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command line that this process would have become."""
    command: list[str] = []

    def become(path: str, arguments: list[str]) -> None:
        assert path == sys.executable
        command.extend(arguments)
        raise Became

    monkeypatch.setattr(os, "execv", become)
    return command


def test_options_reach_the_proxy_even_those_that_look_like_options(
    became: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Became):
        linckia(["proxy", "--data", str(tmp_path), "--upstream", "ftp://nowhere", "--agent=--listen", "--project=-x y"])
    python, *flags = became
    assert (python, flags[:3]) == (sys.executable, ["-P", "-m", "services.transcripts.proxy"])
    assert main(flags[3:]) == 2
    assert "--upstream: 'ftp://nowhere'" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("upstream", "listen", "code", "said"),
    [
        ("https://", "127.0.0.1:0", 2, "--upstream: 'https://'"),
        ("http://me@host", "127.0.0.1:0", 2, "--upstream: 'http://me@host'"),
        ("http://host/v1?key=x", "127.0.0.1:0", 2, "--upstream: 'http://host/v1?key=x'"),
        ("http://host", "8484", 2, "--listen is '8484'; expected HOST:PORT"),
        ("http://host", "localhost:66000", 2, "--listen is 'localhost:66000'"),
        ("http://host", "localhost:²", 2, "--listen is 'localhost:²'"),
        ("http://host", "203.0.113.9:80", 1, "cannot listen on 203.0.113.9:80"),
    ],
)
def test_an_option_that_is_wrong_is_named(
    upstream: str, listen: str, code: int, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["--data", str(tmp_path), "--upstream", upstream, "--listen", listen]) == code
    assert said in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []
