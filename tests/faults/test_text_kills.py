"""A short run of `tests.faults.text_kills`: kills during edits and writes leave no torn file."""

from __future__ import annotations

import json
import subprocess
import sys


def test_kills_during_writes_leave_whole_files_a_consistent_index_and_the_trash() -> None:
    command = [sys.executable, "-m", "tests.faults.text_kills", "--kills", "30"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    said = json.loads(done.stdout)
    assert said["wrong"] == []
    assert said["kept in the trash"] > 0
