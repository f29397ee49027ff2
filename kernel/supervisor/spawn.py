"""Starting a Python process from nothing: its environment, its descriptors, its session.

Processes are started from the thread that runs trio, the main thread: their tie to the kernel's life
(`PR_SET_PDEATHSIG`) is to the thread that started them, and a worker thread ends when it idles.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import proto
from kernel.supervisor.placement import SpawnError
from proto.memory import HEAPS

MALLOC = {
    # Large messages are allocated and freed all the time; glibc's defaults map and unmap each one, which makes 1 MB
    # messages 3 to 6 times slower.
    "MALLOC_MMAP_THRESHOLD_": "268435456",
    "MALLOC_TRIM_THRESHOLD_": "1073741824",
    "MALLOC_TOP_PAD_": "67108864",
    # One for all threads: of any other, what is free at its end never goes back, whatever is asked of it.
    HEAPS: "1",
}

OWN_PREFIX = "LINCKIA_"
"""Settings, secrets among them, are the kernel's; a service gets its own with its birth certificate."""


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child process."""
    base = {name: value for name, value in os.environ.items() if not name.startswith(OWN_PREFIX)}
    code = str(Path(proto.__file__).resolve().parents[1])
    others = [os.path.abspath(path) for path in base.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {
        **base,
        **MALLOC,
        "PYTHONPATH": os.pathsep.join([code, *others]),
        # What was printed before a SIGKILL must be in the log, and the stack of a crash.
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        **extra,
    }


def spawn(
    module: str, fd: int, birth: bytes, *, env: Mapping[str, str], log_fd: int, folder: Path, oom_score_adj: int
) -> subprocess.Popen[bytes]:
    """Run `python -m module FD BIRTH_FD` in a session of its own, with `fd` inherited and `birth` to be read.

    Raises:
        SpawnError: the operating system refused.
    """
    try:
        # Not as an argument: those can be read by every user of the machine.
        with os.fdopen(os.memfd_create("birth"), "wb") as certificate:
            certificate.write(birth)
            certificate.seek(0)
            birth_fd = certificate.fileno()
            # -P: no module is ever taken from the working folder.
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(fd), str(birth_fd)],
                stdin=subprocess.DEVNULL,
                stdout=log_fd,
                stderr=log_fd,
                pass_fds=(fd, birth_fd),
                env=environment(env),
                cwd=folder,
                start_new_session=True,
            )
    except (OSError, ValueError) as error:
        raise SpawnError(f"{module} could not be started: {error}") from error
    settle(process.pid, oom_score_adj)
    return process


def settle(pid: int, oom_score_adj: int) -> None:
    """What the kernel decides about a process of its own; nothing where it is gone already."""
    try:
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(oom_score_adj), encoding="ascii")
        # Dumping the core of a process with a model in it takes seconds, during which it is neither alive nor dead.
        _, hard = resource.prlimit(pid, resource.RLIMIT_CORE)
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, hard))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return
