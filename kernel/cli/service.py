"""`linckia service`: the kernel as a systemd unit of the user or of the system.

The unit starts `linckia serve`, waits until clients are served, and restarts it if it dies or sends no keep-alives
(`kernel.app.ServiceManager`). If the system kills one of Linckia's services for lack of memory, the kernel restarts it,
so systemd leaves the unit alone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from linckia.kernel.cli import EXIT_HELD, EXIT_USAGE, Failed, Usage
from linckia.kernel.cli.stdio import real_root
from linckia.kernel.cli.terminal import say

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
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    _systemctl("daemon-reload", system=arguments.system)
    _systemctl("enable", "--now", path.name, system=arguments.system)
    manage = "systemctl" if arguments.system else "systemctl --user"
    say(f"{path} is installed and started; see `{manage} status {path.stem}` and `linckia status`.")
    if not arguments.system:
        say("It runs while you are logged in; `loginctl enable-linger` makes it start with the machine.")
    return 0


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


def _systemctl(*words: str, system: bool) -> None:
    command = ["systemctl", *([] if system else ["--user"]), *words]
    if shutil.which("systemctl") is None:
        raise Failed("this machine has no systemctl: `linckia service show` prints the unit")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)} failed: {done.stderr.strip() or f'exit code {done.returncode}'}")
