"""`linckia service`: the kernel as a unit of systemd, of the user or of the system.

The unit starts `linckia serve`, waits until clients are served, and starts it again when it has died or gives no sign
of life (`kernel.app.Manager`).  A service of Linckia's that is killed for want of memory is the kernel's to restart, so
systemd leaves the unit alone then.
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
# `linckia stop` is obeyed.
Restart=on-failure
RestartSec=1
# A wrong setting stays wrong, and another kernel's data directory stays that kernel's.
RestartPreventExitStatus={hopeless}
WatchdogSec=30
# Services finish what they have in hand.
TimeoutStopSec=45
KillMode=mixed
LimitNOFILE=65536
# The kernel restarts a service that was killed for want of memory.
OOMPolicy=continue

[Install]
WantedBy={target}
"""


def service(arguments: argparse.Namespace) -> int:
    """Install, remove, or show the unit.  Raises Usage, Failed, OSError."""
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
    say(f"{path} is installed and started; `{manage} status {path.stem}` and `linckia status` show it.")
    if not arguments.system:
        say("It runs while you are logged in; `loginctl enable-linger` lets it run from the start of the machine on.")
    return 0


def unit(arguments: argparse.Namespace) -> str:
    """The text of the unit."""
    command = [sys.executable, "-P", "-m", "linckia.kernel.cli", "serve", *map(real_root, arguments.paths)]
    command += ["--data", str(arguments.data_dir)]
    command += ["--no-http"] if arguments.no_http else ["--http", arguments.http] if arguments.http else []
    return _UNIT.format(
        command=" ".join(map(_quoted, command)),
        hopeless=f"{EXIT_USAGE} {EXIT_HELD}",
        target="multi-user.target" if arguments.system else "default.target",
    )


def _quoted(word: str) -> str:
    """A word of a command line as systemd.syntax(7) reads it."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if escaped != word or any(map(str.isspace, word)) or "'" in word else word


def _remove(path: Path, *, system: bool) -> int:
    if not path.exists():
        raise Failed(f"there is no {path}; nothing was changed")
    _systemctl("disable", "--now", path.name, system=system)
    path.unlink()
    _systemctl("daemon-reload", system=system)
    say(f"{path} is removed; the data directory stays as it is.")
    return 0


def _units(*, system: bool) -> Path:
    if system:
        return SYSTEM_UNITS
    configuration = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(configuration) if os.path.isabs(configuration) else Path.home() / ".config") / "systemd" / "user"


def _systemctl(*words: str, system: bool) -> None:
    command = ["systemctl", *([] if system else ["--user"]), *words]
    if shutil.which("systemctl") is None:
        raise Failed("there is no systemctl on this machine: `linckia service show` prints the unit")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)} failed: {done.stderr.strip() or f'exit code {done.returncode}'}")
