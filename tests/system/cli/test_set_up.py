"""The set-up on first use: real virtual environments, for a project that needs no package and so no network."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"

PYPROJECT = """
[project]
dependencies = []
optional-dependencies = { openvino = [] }
[tool.linckia.setup]
alone = []
"""

PROGRAM = "import sys; print('ran', sys.argv[1:])\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small checkout with the real scripts, and a command line that prints its arguments.

    The user stands in a folder that has a package of the same name, which must not be taken for ours.
    """
    (tmp_path / "linckia").mkdir()
    (tmp_path / "linckia" / "__init__.py").write_text("raise SystemExit('the wrong one')\n")
    root = tmp_path / "check out"
    shutil.copytree(SCRIPTS, root / "scripts", symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "pyproject.toml").write_text(PYPROJECT)
    (root / "kernel" / "cli").mkdir(parents=True)
    for path, text in (("kernel/__init__.py", ""), ("kernel/cli/__init__.py", ""), ("kernel/cli/__main__.py", PROGRAM)):
        (root / path).write_text(text)
    (root / "services").mkdir()
    (root / "services" / "later.py").write_text("")
    return root


def environment() -> dict[str, str]:
    """Without the way to this checkout."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def start(checkout: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(checkout / "scripts" / "linckia"), *arguments],
        cwd=checkout.parent,
        env={**environment(), "LINCKIA_PYTHON": sys.executable, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(checkout: Path, *arguments: str, **variables: str) -> tuple[int, str, str]:
    process = start(checkout, *arguments, **variables)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def test_concurrent_first_uses_set_up_once_and_print_nothing_to_stdout(checkout: Path) -> None:
    both = [start(checkout, "status", "with space"), start(checkout, "two")]
    answers = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert [out for out, _ in answers] == ["ran ['status', 'with space']\n", "ran ['two']\n"]
    assert sum("making" in err for _, err in answers) == 1
    # Compiled beforehand, since an MCP client waits for the first start.
    assert list((checkout / "services" / "__pycache__").glob("later.*.pyc"))
    assert run(checkout, "again") == (0, "ran ['again']\n", "")
    (checkout / "pyproject.toml").write_text(PYPROJECT + "# changed\n")
    assert run(checkout, "after a change")[:2] == (0, "ran ['after a change']\n")

    link = checkout.parent / "linked"
    link.symlink_to(checkout / "scripts" / "linckia")
    done = subprocess.run([link, "linked"], env=environment(), capture_output=True, text=True, check=False)
    assert done.stdout == "ran ['linked']\n"

    moved = checkout.with_name("moved")
    checkout.rename(moved)
    assert run(moved, "moved")[:2] == (0, "ran ['moved']\n")


@pytest.mark.sample(1)
@pytest.mark.parametrize("moment", ["pyvenv.cfg", "bin/python", "bin/pip"])
def test_an_interrupted_set_up_is_mended_by_the_next_start(checkout: Path, moment: str) -> None:
    process = start(checkout, "x")
    give_up_at = time.monotonic() + 60
    while not (checkout / ".venv" / moment).exists():
        assert time.monotonic() < give_up_at
        assert process.poll() is None
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert run(checkout, "mended")[:2] == (0, "ran ['mended']\n")


def test_without_a_python_that_is_new_enough_it_says_what_to_install(checkout: Path, tmp_path: Path) -> None:
    old = tmp_path / "bin"
    old.mkdir()
    for name in ("python3", "python3.11", "python3.12", "python3.13", "python3.14"):
        (old / name).write_text("#!/bin/sh\nexit 1\n")
        (old / name).chmod(0o755)
    path = f"{old}:/usr/bin:/bin"
    code, out, err = run(checkout, "x", PATH=path, LINCKIA_PYTHON="")
    assert (code, out) == (1, "")
    assert "Python 3.11 or newer is needed" in err
    assert "apt install" in err
