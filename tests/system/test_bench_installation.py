"""`scripts/bench installation` measures a kernel of its own and leaves nothing behind, however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.running import REPOSITORY, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

COMMAND = (sys.executable, "-m", "tests.bench.installation", "--json", "--notes", "20", "--files", "300")


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(folder), "LINCKIA_DATA": str(folder / "own")}


def test_it_prints_figures_and_removes_what_it_made(tmp_path: Path) -> None:
    done = subprocess.run(
        COMMAND, cwd=REPOSITORY, env=environment(tmp_path), capture_output=True, text=True, timeout=300, check=True
    )
    found = json.loads(done.stdout)
    assert (found["notes"], found["files"]) == (20, 300)
    assert 0 < found["notes_words_s"] <= found["notes_s"]
    assert 0 < found["search_p50_ms"] <= found["search_p99_ms"]
    assert found["files_s"] > 0
    assert 2**25 < found["memory_at_rest_bytes"] <= found["memory_at_work_bytes"]
    assert found["installation_bytes"] > 2**28
    assert found["processor"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_stops_its_kernel_and_removes_its_folder(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        COMMAND, cwd=REPOSITORY, env=environment(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_until(lambda: list(tmp_path.glob("linckia-bench-*/data/kernel.sock")))
    process.send_signal(number)
    assert process.wait(60) != 0
    assert list(tmp_path.iterdir()) == []
