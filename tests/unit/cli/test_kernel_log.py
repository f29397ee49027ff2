"""The kernel's log is rotated, and takes along what Python itself prints where that is the log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import logging, sys
from pathlib import Path

import pytest
from kernel.cli import kernel_log
kernel_log.ROTATE_BYTES = 10_000
kernel_log.open_log(Path(sys.argv[1]), "info", watched=False)
for number in range(1000):
    logging.getLogger("linckia.kernel").info("line %d %s", number, "x" * 100)
print("the last words of Python", file=sys.stderr)
"""


def test_its_files_are_bounded_and_stderr_goes_to_the_newest(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path)], cwd=Path(__file__).parents[3], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    files = sorted((tmp_path / "logs").iterdir())
    assert [file.name for file in files] == ["kernel.log", "kernel.log.1", "kernel.log.2", "kernel.log.3"]
    assert all(file.stat().st_size <= 11_000 for file in files)
    assert files[0].read_text().endswith("the last words of Python\n")
    assert '"line 999 ' in files[0].read_text()


WATCHED = """
import logging, sys
from pathlib import Path

import pytest
from kernel.cli import kernel_log
from kernel.router.ports import ROUTINE
kernel_log.open_log(Path(sys.argv[1]), sys.argv[2], watched=True)
log = logging.getLogger("linckia.supervisor")
log.info("echo is starting", extra=ROUTINE)
log.info("echo is in backoff")
"""


@pytest.mark.parametrize(("level", "shown"), [("info", 1), ("debug", 2)])
def test_routine_start_messages_are_not_printed_on_a_terminal(tmp_path: Path, level: str, shown: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(tmp_path), level],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(done.stderr.splitlines()) == shown
    assert done.stderr.endswith("echo is in backoff\n")
    assert len((tmp_path / "logs" / "kernel.log").read_text().splitlines()) == 2
