"""The unit of systemd: its text is one that systemd takes, and names what it was asked for."""

from __future__ import annotations

import getpass
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


FAKE = """#!/bin/sh
echo "$*" >>"$FAKE_LOG"
case "$*" in
    *"$FAKE_FAILS"*) echo "$FAKE_SAYS" >&2; exit 1 ;;
esac
"""


class Systemctl:
    """A program that stands for systemctl: it notes its calls, and fails at the one that is named."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "bin").mkdir()
        program = folder / "bin" / "systemctl"
        program.write_text(FAKE)
        program.chmod(0o755)
        self._log = folder / "calls"
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
        monkeypatch.setenv("FAKE_LOG", str(self._log))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        self.unit = folder / "config/systemd/user/linckia.service"
        self.fails("nothing")

    def fails(self, at: str, says: str = "Failed to connect to bus: No medium found") -> None:
        self._monkeypatch.setenv("FAKE_FAILS", at)
        self._monkeypatch.setenv("FAKE_SAYS", says)

    def calls(self) -> list[str]:
        """Return the calls since the last time."""
        found = self._log.read_text().splitlines() if self._log.exists() else []
        self._log.unlink(missing_ok=True)
        return found


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systemctl:
    return Systemctl(tmp_path, monkeypatch)


def install(tmp_path: Path, *options: str) -> int:
    return main(["service", "install", "--data", str(tmp_path / "data"), *options])


def test_installation_says_how_it_starts_with_the_machine(
    tmp_path: Path, systemctl: Systemctl, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install(tmp_path) == 0
    assert systemctl.calls() == [
        "--user show-environment", "--user daemon-reload", "--user enable --now linckia.service"
    ]  # fmt: skip
    assert "ExecStart=" in systemctl.unit.read_text()
    assert f"loginctl enable-linger {getpass.getuser()}" in capsys.readouterr().out


def test_without_a_bus_of_the_user_nothing_is_written_and_the_remedy_is_named(
    tmp_path: Path, systemctl: Systemctl, capsys: pytest.CaptureFixture[str]
) -> None:
    systemctl.fails("--user")
    assert install(tmp_path) == 1
    assert not systemctl.unit.exists()
    assert systemctl.calls() == ["--user show-environment"]
    said = capsys.readouterr().err
    assert "No medium found" in said
    for remedy in ("loginctl enable-linger", f"XDG_RUNTIME_DIR=/run/user/{os.getuid()}", "--system"):
        assert remedy in said


@pytest.mark.parametrize("step", ["daemon-reload", "enable"])
@pytest.mark.parametrize("earlier", [None, "[Unit]\nDescription=mine\n"])
def test_a_step_that_fails_leaves_everything_as_it_was(
    tmp_path: Path, systemctl: Systemctl, capsys: pytest.CaptureFixture[str], step: str, earlier: str | None
) -> None:
    if earlier is not None:
        systemctl.unit.parent.mkdir(parents=True)
        systemctl.unit.write_text(earlier)
    systemctl.fails(step, "Unit is masked.")
    assert install(tmp_path) == 1
    assert (systemctl.unit.read_text() if systemctl.unit.exists() else None) == earlier
    assert ("--user disable --now linckia.service" in systemctl.calls()) == (earlier is None)
    assert "Unit is masked" in capsys.readouterr().err


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
