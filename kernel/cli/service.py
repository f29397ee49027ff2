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
import shutil
import subprocess
import sys
from pathlib import Path

from linckia.kernel.cli import EXIT_HELD, EXIT_USAGE, Failed, Usage
from linckia.kernel.cli.stdio import real_root
from linckia.kernel.cli.terminal import say
from linckia.proto.durable import replace_file

SYSTEM_UNITS = Path("/etc/systemd/system")

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
        say(f"It runs while you are logged in; `loginctl enable-linger {_user()}` makes it start with the machine.")
    return 0


def _install(path: Path, text: str, *, system: bool) -> None:
    """Write the unit, enable and start it. If systemd refuses, everything is as before. Raises Failed, OSError."""
    _require_systemctl(system=system)
    earlier = path.read_bytes() if path.exists() else None
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, text.encode())
    try:
        _systemctl("daemon-reload", system=system)
        _systemctl("enable", "--now", path.name, system=system)
    except Failed as failure:
        if earlier is None:
            with contextlib.suppress(Failed):
                _systemctl("disable", "--now", path.name, system=system)
            path.unlink()
        else:
            replace_file(path, earlier)
        with contextlib.suppress(Failed):
            _systemctl("daemon-reload", system=system)
        state = "removed again" if earlier is None else "as before"
        raise Failed(f"{failure}\nNothing was installed: {path} is {state}") from None


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def unit(arguments: argparse.Namespace) -> str:
    """Return the text of the unit."""
    command = [sys.executable, "-P", "-m", "linckia.kernel.cli", "serve", *map(real_root, arguments.paths)]
    command += ["--data", str(arguments.data_dir)]
    command += ["--no-http"] if arguments.no_http else ["--http", arguments.http] if arguments.http else []
    return _UNIT.format(
        command=" ".join(map(_quoted, command)),
        hopeless=f"{EXIT_USAGE} {EXIT_HELD}",
        target="multi-user.target" if arguments.system else "default.target",
    )


def _quoted(word: str) -> str:
    """Quote a word of a command line for systemd.syntax(7)."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if escaped != word or any(map(str.isspace, word)) or "'" in word else word


def _remove(path: Path, *, system: bool) -> int:
    if not path.exists():
        raise Failed(f"{path} does not exist; nothing was changed")
    _require_systemctl(system=system)
    _systemctl("disable", "--now", path.name, system=system)
    path.unlink()
    _systemctl("daemon-reload", system=system)
    say(f"{path} is removed; the data directory is unchanged.")
    return 0


def _units(*, system: bool) -> Path:
    if system:
        return SYSTEM_UNITS
    configuration = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(configuration) if os.path.isabs(configuration) else Path.home() / ".config") / "systemd" / "user"


def _require_systemctl(*, system: bool) -> None:
    """Raise Failed, with the remedy, if systemd cannot be reached: nothing should be written then."""
    if shutil.which("systemctl") is None:
        raise Failed("this machine has no systemctl: `linckia service show` prints the unit")
    command = ["systemctl", *([] if system else ["--user"]), "show-environment"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    said = done.stderr.strip() or f"exit code {done.returncode}"
    if system:
        raise Failed(f"systemd does not answer ({said}); nothing was changed")
    raise Failed(
        f"your user has no running systemd ({said}); nothing was changed. Run `sudo loginctl enable-linger {_user()}`, "
        f"which starts one and keeps it running without a login, then `export XDG_RUNTIME_DIR=/run/user/{os.getuid()}` "
        "and the same command again. Or install it for the whole system: `sudo linckia service install --system`"
    )


def _systemctl(*words: str, system: bool) -> None:
    command = ["systemctl", *([] if system else ["--user"]), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)} failed: {done.stderr.strip() or f'exit code {done.returncode}'}")
