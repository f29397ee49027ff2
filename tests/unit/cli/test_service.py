"""The unit of systemd: its text is one that systemd takes, and names what it was asked for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kernel.cli.__main__ import main
from kernel.cli.service import _quoted


def test_unit_names_folders_with_all_sorts_of_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    roots = [tmp_path / "my notes", tmp_path / "100% $HOME", tmp_path / 'a "quoted" one']
    for root in roots:
        root.mkdir()
    assert main(["service", "show", *map(str, roots), "--data", str(tmp_path / "data"), "--no-http"]) == 0
    text = capsys.readouterr().out
    assert f'serve "{roots[0]}"' in text
    assert "100%% $$HOME" in text
    assert '\\"quoted\\"' in text
    assert f"--data {tmp_path / 'data'} --no-http" in text
    if shutil.which("systemd-analyze"):
        unit = tmp_path / "linckia.service"
        unit.write_text(text)
        done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
        assert "linckia.service" not in done.stderr


def test_plain_words_are_left_as_they_are() -> None:
    assert _quoted("/home/me/notes") == "/home/me/notes"


def test_a_root_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["service", "show", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_what_is_not_installed_cannot_be_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert main(["service", "remove"]) == 1
    assert "systemd/user/linckia.service" in capsys.readouterr().err
