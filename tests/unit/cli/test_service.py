"""The unit of systemd: its text is one that systemd takes, and names what it was asked for."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from linckia.kernel.cli.__main__ import main
from linckia.kernel.cli.service import _quoted


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


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("options", [["--system"], []])
def test_systemd_takes_each_line_of_the_unit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    root = tmp_path / 'a "quoted" 100% $HOME'
    root.mkdir()
    assert main(["service", "show", str(root), "--data", str(tmp_path / "data"), *options]) == 0
    text = capsys.readouterr().out
    assert f"WantedBy={'multi-user' if options else 'default'}.target" in text
    assert _complaints(tmp_path, text, *options) == []
    # What it would say of a line that is wrong.
    assert _complaints(tmp_path, text.replace("WatchdogSec=30", "WatchdogSec=often"), *options)


def _complaints(folder: Path, text: str, *options: str) -> list[str]:
    unit = folder / "linckia.service"
    unit.write_text(text)
    (folder / "run").mkdir(exist_ok=True, mode=0o700)
    command = ["systemd-analyze", *([] if options else ["--user"]), "verify", str(unit)]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder / "run")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return [line for line in done.stderr.splitlines() if "linckia.service" in line]


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
