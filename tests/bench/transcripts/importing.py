"""Imports 100 MB of session files on the command line: rate, memory of both ends, and the cost of an interruption."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.system.running import REPOSITORY, RunningKernel, running

BYTES = 100_000_000


def _write(folder: Path) -> int:
    """Write sessions like Claude Code: prose, calls, long results."""
    chance = random.Random(5)
    words = [f"word{n}" for n in range(5000)]
    folder.mkdir()
    total = session = 0
    while total < BYTES:
        session += 1
        parent: str | None = None
        with (folder / f"{session}.jsonl").open("w") as file:
            for n in range(2000):
                kind = ("user", "assistant", "user")[n % 3]
                said = " ".join(chance.choices(words, k=chance.choice((20, 60, 400))))
                content: Any = said
                message: dict[str, Any] = {"role": kind}
                if n % 3 == 1:
                    content = [{"type": "text", "text": said}, {"type": "tool_use", "id": f"t{session}-{n}",
                               "name": "Read", "input": {"path": f"/src/{n}.py"}}]  # fmt: skip
                    message |= {"id": f"m{session}-{n}", "model": "claude-x", "stop_reason": "tool_use"}
                elif n % 3 == 2:
                    content = [{"type": "tool_result", "tool_use_id": f"t{session}-{n - 1}", "content": said}]
                uuid = f"{session}-{n}"
                record = {"parentUuid": parent, "cwd": "/home/u/sea", "sessionId": str(session), "type": kind,
                          "message": message | {"content": content}, "uuid": uuid,
                          "timestamp": "2026-03-01T10:00:00.000Z"}  # fmt: skip
                parent = uuid
                total += file.write(json.dumps(record) + "\n")
    return total


def _peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024


def import_(folder: Path) -> None:
    """Import everything with one interruption, compared with only parsing the same files as JSON."""
    files = folder / "sessions"
    size = _write(files)
    began = time.perf_counter()
    for file in sorted(files.iterdir()):
        with file.open("rb") as lines:
            for line in lines:
                json.loads(line)
    peer = size / (time.perf_counter() - began) / 1e6
    with running(folder / "data", all_ready=False) as kernel:
        kernel.wait_ready("transcripts")
        command = [
            sys.executable,
            "-m",
            "kernel.cli",
            "import-chats",
            "--data",
            str(kernel.data_dir),
            str(files),
        ]
        began = time.perf_counter()
        first = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL)
        while _nodes(kernel) < 5000:
            time.sleep(0.05)
        first.send_signal(signal.SIGINT)
        first.wait()
        second = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
        assert second.stdout is not None
        peak = 0.0
        while second.poll() is None:
            try:
                peak = max(peak, _peak_mb(second.pid))
            except (OSError, StopIteration):
                # The process has just ended.
                break
            time.sleep(0.05)
        said = second.stdout.read()
        second.stdout.close()
        second.wait()
        took = time.perf_counter() - began
        nodes = _nodes(kernel)
        service, front = _peak_mb(kernel.service("transcripts")["pid"]), _peak_mb(kernel.process.pid)
        began = time.perf_counter()
        subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.DEVNULL)
        again = time.perf_counter() - began
    print(
        f"{size / 1e6:.0f} MB, interrupted after 5,000 nodes: {nodes} nodes in {took:.1f} s,"
        f" {size / took / 1e6:.1f} MB/s"
    )
    print(f"the command's own words for its second part: {said.strip()}")
    print(f"peak memory: the command {peak:.0f} MB, the service {service:.0f} MB, the kernel {front:.0f} MB")
    print(f"once more with nothing new: {again:.1f} s; json.loads of every line alone: {peer:.0f} MB/s,"
          f" {size / took / 1e6 / peer:.2f} of that")  # fmt: skip


def _nodes(kernel: RunningKernel) -> int:
    count: int = kernel.call("transcript_stats")["total_nodes"]
    return count
