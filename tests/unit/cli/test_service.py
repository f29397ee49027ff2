"""The systemd unit: systemd accepts its text, and it contains the requested options."""

from __future__ import annotations

import getpass
import os
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
    # Systemd does complain about a line that is wrong.
    assert _complaints(tmp_path, text.replace("WatchdogSec=30", "WatchdogSec=often"), *options)


FAKE = """#!/bin/sh
echo "$*" >>"$FAKE_LOG"
shift  # --user
if [ -e "$FAKE_LOST" ]; then echo "$FAKE_SAYS" >&2; exit 1; fi
units="$XDG_CONFIG_HOME/systemd/user"
if [ "$1" = enable ]; then
    mkdir -p "$units/default.target.wants"
    ln -sf "$units/$3" "$units/default.target.wants/$3"
fi
case "$1" in
    "$FAKE_FAILS")
        case "$FAKE_SAYS" in *"Failed to connect"*) : >"$FAKE_LOST" ;; esac
        echo "$FAKE_SAYS" >&2; exit 1 ;;
    show-environment) echo "PATH=$PATH" ;;
    is-active) echo "$FAKE_STATE"; [ "$FAKE_STATE" = active ] ;;
esac
"""
NO_BUS = "Failed to connect to bus: No medium found"
NAMED_BUS = (
    "Failed to connect to user scope bus via local transport: $DBUS_SESSION_BUS_ADDRESS and $XDG_RUNTIME_DIR not "
    "defined (consider using --machine=<user>@.host --user to connect to bus of other user)"
)
MASKED = "Failed to start linckia.service: Unit linckia.service is masked."


class Systemctl:
    """A program in place of systemctl that logs its calls and fails from a given command on.

    Like the real one (252, in a container), `enable --now` creates its link before it fails for lack of a bus. Without
    a bus all later commands fail too.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "bin").mkdir()
        program = folder / "bin" / "systemctl"
        program.write_text(FAKE)
        program.chmod(0o755)
        self._log = folder / "calls"
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
        monkeypatch.setenv("FAKE_LOG", str(self._log))
        monkeypatch.setenv("FAKE_LOST", str(folder / "lost"))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        self.unit = folder / "config/systemd/user/linckia.service"
        self.link = self.unit.parent / "default.target.wants/linckia.service"
        self.fails("nothing")
        self.state("inactive")

    def fails(self, at: str, says: str = NO_BUS) -> None:
        self._monkeypatch.setenv("FAKE_FAILS", at)
        self._monkeypatch.setenv("FAKE_SAYS", says)

    def state(self, state: str) -> None:
        self._monkeypatch.setenv("FAKE_STATE", state)

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


def names_each_remedy(said: str) -> bool:
    remedies = (
        f"sudo loginctl enable-linger {getpass.getuser()}`",
        "log in again",
        f"export XDG_RUNTIME_DIR=/run/user/{os.getuid()}`",
        "sudo linckia service install --system`",
    )
    return all(remedy in said for remedy in remedies)


def test_installation_says_how_it_starts_with_the_machine(
    tmp_path: Path, systemctl: Systemctl, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install(tmp_path) == 0
    assert systemctl.calls() == [
        "--user show-environment",
        "--user is-active linckia.service",
        "--user daemon-reload",
        "--user enable --now linckia.service",
    ]
    assert "ExecStart=" in systemctl.unit.read_text()
    assert systemctl.link.readlink() == systemctl.unit
    assert f"`loginctl enable-linger {getpass.getuser()}`" in capsys.readouterr().out


def test_without_a_bus_of_the_user_nothing_is_written_and_the_remedy_is_named(
    tmp_path: Path, systemctl: Systemctl, capsys: pytest.CaptureFixture[str]
) -> None:
    systemctl.fails("show-environment")
    assert install(tmp_path) == 1
    assert not systemctl.unit.parent.exists()
    assert systemctl.calls() == ["--user show-environment"]
    said = capsys.readouterr().err
    assert NO_BUS in said
    assert names_each_remedy(said)


def test_in_a_chroot_nothing_is_written(
    tmp_path: Path, systemctl: Systemctl, capsys: pytest.CaptureFixture[str]
) -> None:
    ignoring = "Running in chroot, ignoring command 'show-environment'"
    (tmp_path / "bin/systemctl").write_text(f'#!/bin/sh\necho "{ignoring}" >&2\n')
    assert install(tmp_path) == 1
    assert not systemctl.unit.parent.exists()
    assert ignoring in capsys.readouterr().err


@pytest.mark.parametrize("step", ["daemon-reload", "enable"])
@pytest.mark.parametrize("says", [NO_BUS, NAMED_BUS, MASKED])
def test_a_step_that_fails_leaves_neither_unit_nor_link(
    tmp_path: Path, systemctl: Systemctl, capsys: pytest.CaptureFixture[str], step: str, says: str
) -> None:
    systemctl.fails(step, says)
    assert install(tmp_path) == 1
    assert [path for path in systemctl.unit.parent.rglob("*") if not path.is_dir()] == []
    said = capsys.readouterr().err
    assert says in said
    assert f"{systemctl.unit} is removed again" in said
    assert names_each_remedy(said) == (says != MASKED)


@pytest.mark.parametrize("step", ["daemon-reload", "enable"])
@pytest.mark.parametrize("says", [NO_BUS, MASKED])
@pytest.mark.parametrize("enabled", [False, True])
def test_a_step_that_fails_restores_the_earlier_unit(
    tmp_path: Path, systemctl: Systemctl, capsys: pytest.CaptureFixture[str], step: str, says: str, enabled: bool
) -> None:
    earlier = b"[Unit]\nDescription=mine \xff\r\n"
    systemctl.unit.parent.mkdir(parents=True)
    systemctl.unit.write_bytes(earlier)
    systemctl.unit.chmod(0o640)
    if enabled:
        systemctl.link.parent.mkdir()
        systemctl.link.symlink_to("../linckia.service")
    systemctl.fails(step, says)
    assert install(tmp_path) == 1
    assert systemctl.unit.read_bytes() == earlier
    assert systemctl.unit.stat().st_mode & 0o777 == 0o640
    assert (os.readlink(systemctl.link) if os.path.lexists(systemctl.link) else None) == (
        "../linckia.service" if enabled else None
    )
    assert f"{systemctl.unit} is as before" in capsys.readouterr().err


def test_a_unit_that_the_user_masked_stays_masked(tmp_path: Path, systemctl: Systemctl) -> None:
    systemctl.unit.parent.mkdir(parents=True)
    systemctl.unit.symlink_to("/dev/null")
    systemctl.fails("enable")
    assert install(tmp_path) == 1
    assert os.readlink(systemctl.unit) == "/dev/null"


@pytest.mark.parametrize("state", ["inactive", "active"])
def test_a_failed_installation_stops_only_what_it_may_have_started(
    tmp_path: Path, systemctl: Systemctl, state: str
) -> None:
    systemctl.state(state)
    systemctl.fails("enable", "Job for linckia.service failed")
    assert install(tmp_path) == 1
    undone = systemctl.calls()[4:]
    assert undone == [*(["--user stop linckia.service"] if state == "inactive" else []), "--user daemon-reload"]


@pytest.mark.parametrize("fails", ["show-environment", "disable"])
def test_removal_without_a_bus_keeps_the_unit_and_names_the_remedy(
    tmp_path: Path, systemctl: Systemctl, capsys: pytest.CaptureFixture[str], fails: str
) -> None:
    systemctl.unit.parent.mkdir(parents=True)
    systemctl.unit.write_text("[Unit]\n")
    systemctl.fails(fails)
    assert main(["service", "remove"]) == 1
    assert systemctl.unit.read_text() == "[Unit]\n"
    said = capsys.readouterr().err
    assert f"export XDG_RUNTIME_DIR=/run/user/{os.getuid()}`" in said
    assert "install --system" not in said


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


def test_a_missing_root_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["service", "show", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_a_unit_that_is_not_installed_cannot_be_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert main(["service", "remove"]) == 1
    assert "systemd/user/linckia.service" in capsys.readouterr().err
