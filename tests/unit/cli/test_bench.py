"""Benchmarks on a machine without the programs that they compare with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from proto.host import extras
from tests.bench.parts.programs import require

REPOSITORY = Path(__file__).resolve().parents[3]


def programs(folder: Path, *names: str) -> str:
    """A PATH with these programs only."""
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("benchmark", "there", "packages"),
    [
        (("grep_files",), (), "ripgrep"),
        (("documents", "grep"), ("restic", "borg"), "ripgrep"),
        (("documents", "versions"), ("rg",), "restic borgbackup"),
        (("documents", "versions"), ("restic",), "borgbackup"),
    ],
)
def test_benchmark_names_the_packages_to_install_before_it_starts(
    tmp_path: Path, benchmark: tuple[str, ...], there: tuple[str, ...], packages: str
) -> None:
    (tmp_path / "temporary").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", f"tests.bench.{benchmark[0]}", *benchmark[1:]],
        cwd=REPOSITORY,
        env={**os.environ, "PATH": programs(tmp_path, *there), "TMPDIR": str(tmp_path / "temporary")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == f"Debian, Ubuntu: apt install {packages}"
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "temporary").iterdir()) == []


def test_installed_programs_do_not_stop_the_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", programs(tmp_path, "rg", "borg"))
    require("rg", "borg")
    with pytest.raises(SystemExit, match="compares with restic, not found"):
        require("rg", "restic")


@pytest.mark.slow
@pytest.mark.skipif(extras.gpu_present(), reason="this machine has a GPU")
def test_benchmark_of_the_gpu_says_that_there_is_none() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.gpu"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "scripts/bench gpu: nothing can be measured: this machine has no NVIDIA GPU (there is no /dev/nvidia0)\n"
    )
