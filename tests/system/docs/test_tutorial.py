"""The tutorial works to the letter for somebody who has just cloned Linckia."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.docs.pages import matches, steps
from tests.system.running import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TUTORIAL = REPOSITORY / "docs" / "tutorial.md"
COMMAND_TIMEOUT_S = 180
END = "----- end of the command -----"


class Shell:
    """One bash for all commands, as in a terminal."""

    def __init__(self, folder: Path, home: Path) -> None:
        kept = ("LANG", "LC_ALL", "TERM", "TMPDIR")
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=folder,
            # No other kernel of this machine may have the port.
            env={
                **{name: os.environ[name] for name in kept if name in os.environ},
                "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(home), "LINCKIA_HTTP": "127.0.0.1:0",
                "LINCKIA_PYTHON": sys.executable,
            },
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def run(self, command: str) -> str:
        """Run a command and return its output."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\necho '{END}'\n")
        self._process.stdin.flush()
        printed = []
        for line in self._process.stdout:
            if line.rstrip("\n").endswith(END):
                printed.append(line.rstrip("\n").removesuffix(END))
                return "".join(printed)
            printed.append(line)
        raise AssertionError(f"the shell ended at {command!r}: {''.join(printed)}")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(
            "linckia stop > /dev/null 2>&1; linckia stop --data ~/tutorial/restored > /dev/null 2>&1\n"
        )
        self._process.stdin.close()
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()


def checkout(folder: Path) -> None:
    """A clone with the packages of this environment; other tests install them."""
    folder.mkdir()
    for name in ("proto", "kernel", "services", "scripts"):
        shutil.copytree(REPOSITORY / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, folder / name)
    environment = folder / ".venv"
    if "LINCKIA_TUTORIAL_FROM_NOTHING" in os.environ:
        return
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    packages = next(environment.glob("lib/python*/site-packages"))
    (packages / "all.pth").write_text(f"{folder}\n{Path(pytest.__file__).parents[1]}\n")
    wanted = f"{folder}\n{(folder / 'pyproject.toml').read_text()}{(folder / 'scripts/constraints.txt').read_text()}"
    (environment / "linckia-stamp").write_text(wanted)


def test_every_command_prints_what_the_tutorial_shows(tmp_path: Path) -> None:
    checkout(tmp_path / "linckia")
    (tmp_path / "home").mkdir()
    shell = Shell(tmp_path, tmp_path / "home")
    try:
        for command, expected in steps(TUTORIAL):
            printed = shell.run(command)
            assert matches(expected, printed), f"$ {command}\n{printed}\n\nexpected:\n{expected}"
    finally:
        shell.close()
    # It cleans up after itself.
    left = [path.relative_to(tmp_path / "home") for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert left == []
