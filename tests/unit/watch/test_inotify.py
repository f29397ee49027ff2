"""A queue of events is given back to the operating system, whether it was closed or its process was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from services.watch.inotify import Inotify, parse, system_limit

HOLDER = """
import os, sys
from services.watch.inotify import Inotify
queues = [Inotify() for _ in range(int(sys.argv[1]))]
for queue in queues:
    queue.add(os.open(sys.argv[2], os.O_RDONLY))
print("open", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_closed_queue_is_given_back_at_once(tmp_path: Path) -> None:
    for _ in range(system_limit("max_user_instances") + 10):
        queue = Inotify()
        folder = os.open(tmp_path, os.O_RDONLY)
        queue.add(folder)
        (tmp_path / "file").touch()
        assert b"file" in [event.name for event in parse(queue.read())]
        os.close(folder)
        queue.close()


@pytest.mark.slow
def test_the_queues_of_a_killed_process_are_given_back(tmp_path: Path) -> None:
    at_once = max(1, system_limit("max_user_instances") // 3)
    for _ in range(5):
        held = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(at_once), str(tmp_path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        with held:
            assert held.stdout is not None
            assert held.stderr is not None
            assert held.stdout.readline() == "open\n", held.stderr.read()
            held.send_signal(signal.SIGKILL)
        # The limit of the user would be reached in the fourth round.
        queues = [Inotify() for _ in range(at_once)]
        for queue in queues:
            queue.close()
