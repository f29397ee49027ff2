"""`linckia service`: the kernel as a systemd unit of the user or of the system.

The unit starts `linckia serve`, waits until clients are served, and restarts it if it dies or sends no keep-alives
(`kernel.app.ServiceManager`). If the system kills one of Linckia's services for lack of memory, the kernel restarts it,
so systemd leaves the unit alone.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pwd
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from kernel.cli import EXIT_HELD, EXIT_USAGE
from kernel.cli.stdio import real_root
from proto.control.commands import Failed, Usage
from proto.control.terminal import say
from proto.host.durable import replace_file
from proto.names import module

SYSTEM_UNITS = Path("/etc/systemd/system")

_NO_BUS = re.compile("Failed to connect to .*bus")
"""What systemctl says if it cannot reach systemd; newer versions name the bus."""

_RUNNING = frozenset({"active", "activating", "reloading", "refreshing"})
"""States (`systemctl is-active`) of a unit that a failed installation must not stop."""


class _Unreachable(Failed):
    """systemctl cannot connect to systemd."""


_UNIT = """\
[Unit]
Description=Linckia, a back end for AI agents
Documentation=man:systemd.service(5)
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart={command}
# Do not restart after `linckia stop`.
Restart=on-failure
RestartSec=1
# Restarting would fix neither a wrong setting nor a data directory that another kernel holds.
RestartPreventExitStatus={hopeless}
WatchdogSec=30
# Services finish calls in flight.
TimeoutStopSec=45
KillMode=mixed
LimitNOFILE=65536
# If the system kills a service for lack of memory, the kernel restarts it.
OOMPolicy=continue

[Install]
WantedBy={target}
"""


def service(arguments: argparse.Namespace) -> int:
    """Install, remove, or show the unit. Raises Usage, Failed, OSError."""
    path = _units(system=arguments.system) / f"{arguments.name}.service"
    if arguments.action == "remove":
        if arguments.paths or arguments.http or arguments.no_http:
            raise Usage("`linckia service remove` takes no PATH, --http or --no-http")
        return _remove(path, system=arguments.system)
    text = unit(arguments)
    if arguments.action == "show":
        say(*text.splitlines())
        return 0
    _install(path, text, system=arguments.system)
    manage = "systemctl" if arguments.system else "systemctl --user"
    say(f"{path} is installed and started; see `{manage} status {path.stem}` and `linckia status`.")
    if not arguments.system:
        say(f"It runs while you are logged in; `{_enable_linger()}` makes it start with the machine.")
    return 0


def _install(path: Path, text: str, *, system: bool) -> None:
    """Write the unit, enable and start it. If any step fails, everything is as before. Raises Failed, OSError."""
    _require_systemctl("install", system=system)
    existed = os.path.lexists(path)
    state = _run("is-active", path.name, system=system).stdout.strip()
    restore_unit = _restorer(path)
    # Without a bus, `systemctl enable` may create this link before it fails, and `systemctl disable` may be unable to
    # remove it.
    restore_link = _restorer(path.parent / f"{_target(system=system)}.wants" / path.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, text.encode())
    try:
        with contextlib.ExitStack() as undo:
            # Undone in reverse order.
            undo.callback(_run, "daemon-reload", system=system)
            undo.callback(restore_unit)
            undo.callback(restore_link)
            _systemctl("daemon-reload", system=system)
            if state not in _RUNNING:
                undo.callback(_run, "stop", path.name, system=system)
            _systemctl("enable", "--now", path.name, system=system)
            undo.pop_all()
    except Failed as failure:
        advice = _advice("install", system=system) if isinstance(failure, _Unreachable) else ""
        outcome = "as before" if existed else "removed again"
        raise Failed(f"{failure}\nNothing was installed: {path} is {outcome}. {advice}".rstrip()) from None


def _restorer(path: Path) -> Callable[[], None]:
    """Return a function that restores what `path` is now: a link, a file with its content and mode, or nothing."""
    if path.is_symlink():
        target = path.readlink()

        def relink() -> None:
            path.unlink(missing_ok=True)
            path.symlink_to(target)

        return relink
    if path.exists():
        content, mode = path.read_bytes(), stat.S_IMODE(path.stat().st_mode)

        def rewrite() -> None:
            replace_file(path, content)
            path.chmod(mode)

        return rewrite
    return lambda: path.unlink(missing_ok=True)


def _enable_linger() -> str:
    """Return the command that lets this user's units run without a login."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    return f"loginctl enable-linger {shlex.quote(user)}"


def unit(arguments: argparse.Namespace) -> str:
    """Return the text of the unit."""
    command = [sys.executable, "-P", "-m", module("kernel.cli"), "serve", *map(real_root, arguments.paths)]
    command += ["--data", str(arguments.data_dir)]
    command += ["--no-http"] if arguments.no_http else ["--http", arguments.http] if arguments.http else []
    return _UNIT.format(
        command=" ".join(map(_quoted, command)),
        hopeless=f"{EXIT_USAGE} {EXIT_HELD}",
        target=_target(system=arguments.system),
    )


def _target(*, system: bool) -> str:
    return "multi-user.target" if system else "default.target"


def _quoted(word: str) -> str:
    """Quote a word of a command line for systemd.syntax(7)."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if escaped != word or any(map(str.isspace, word)) or "'" in word else word


def _remove(path: Path, *, system: bool) -> int:
    if not path.exists():
        raise Failed(f"{path} does not exist; nothing was changed")
    _require_systemctl("remove", system=system)
    try:
        _systemctl("disable", "--now", path.name, system=system)
    except _Unreachable as failure:
        raise Failed(f"{failure}\n{path} is not removed. {_advice('remove', system=system)}".rstrip()) from None
    path.unlink()
    _systemctl("daemon-reload", system=system)
    say(f"{path} is removed; the data directory is unchanged.")
    return 0


def _units(*, system: bool) -> Path:
    if system:
        return SYSTEM_UNITS
    configuration = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(configuration) if os.path.isabs(configuration) else Path.home() / ".config") / "systemd" / "user"


def _require_systemctl(action: str, *, system: bool) -> None:
    """Raise Failed, with the remedy, if systemd cannot be reached: nothing should be written then."""
    if shutil.which("systemctl") is None:
        raise Failed("this machine has no systemctl: `linckia service show` prints the unit")
    done = _run("show-environment", system=system)
    # In a chroot systemctl ignores the command and succeeds. A running systemd has at least a PATH to show.
    if done.returncode == 0 and done.stdout:
        return
    whose = "systemd does not answer" if system else "your user has no running systemd"
    raise Failed(f"{whose} ({_complaint(done)}); nothing was changed. {_advice(action, system=system)}".rstrip())


def _advice(action: str, *, system: bool) -> str:
    """Say how to reach systemd, or do without it, for `linckia service ACTION`."""
    advice = []
    if not system:
        advice.append(
            f"Run `sudo {_enable_linger()}`, which starts a systemd of your user and keeps it running without a login. "
            f"Then log in again, or run `export XDG_RUNTIME_DIR=/run/user/{os.getuid()}`, and repeat the command."
        )
        if action == "install":
            advice.append("Or install a unit of the system: `sudo linckia service install --system`.")
    if action == "install":
        advice.append("In a container without systemd, run `linckia serve` instead.")
    return " ".join(advice)


def _run(*words: str, system: bool) -> subprocess.CompletedProcess[str]:
    command = ["systemctl", *([] if system else ["--user"]), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _complaint(done: subprocess.CompletedProcess[str]) -> str:
    return done.stderr.strip() or f"exit code {done.returncode}"


def _systemctl(*words: str, system: bool) -> None:
    """Run systemctl. Raises Failed, and _Unreachable if it could not connect to systemd."""
    done = _run(*words, system=system)
    if done.returncode != 0:
        kind = _Unreachable if _NO_BUS.search(done.stderr) else Failed
        raise kind(f"{' '.join(done.args)} failed: {_complaint(done)}")
