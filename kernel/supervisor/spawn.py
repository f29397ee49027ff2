"""Starting a Python process from nothing: its environment, its descriptors, its session.

Processes are started from the thread that runs trio, the main thread: their tie to the kernel's life
(`PR_SET_PDEATHSIG`) is to the thread that started them, and a worker thread ends when it idles.

A client that starts Linckia waits for the kernel and for the first front, each of which loads for a fifth of a second.
So that front's process is started ahead, before the kernel has loaded itself: nothing is imported here that takes long.
"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from linckia import proto
from linckia.proto.birth import HEAPS
from linckia.proto.front import LIBRARIES

SERVICE = "linckia.services.runtime.main"
"""What becomes a service."""

AHEAD = "linckia.services.front.main"
"""What the first front loads ahead."""

MALLOC = {
    # glibc's defaults map and unmap each large message, which makes 1 MB messages 3 to 6 times slower.
    "MALLOC_MMAP_THRESHOLD_": "268435456",
    "MALLOC_TRIM_THRESHOLD_": "1073741824",
    "MALLOC_TOP_PAD_": "67108864",
    # One for all threads: of any other, what is free at its end never goes back, whatever is asked of it.
    HEAPS: "1",
}

PASSED = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TZDIR", "LD_LIBRARY_PATH", "LD_PRELOAD",
    "GLIBC_TUNABLES", "VIRTUAL_ENV", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE",
    "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "TOKENIZERS_PARALLELISM",
)  # fmt: skip
PASSED_PREFIXES = (
    "LC_", "PYTHON", "MALLOC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH_", "PYTORCH_", "ORT_", "CUDA_",
    "NVIDIA_",
)  # fmt: skip
"""What of the kernel's environment reaches every child: where things are, which language and zone, how libraries use
processors and memory. Not the settings, and no key that stands there for another program; what only one service may
see comes with its birth certificate."""


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child process."""
    base = {name: value for name, value in os.environ.items() if name in PASSED or name.startswith(PASSED_PREFIXES)}
    # Not resolved: in a checkout it is the folder of links by which the package has its name.
    code = str(Path(proto.__file__).parents[2])
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


class SpawnError(Exception):
    """The generation could not be started; says why."""


def spawn(
    module: str,
    descriptors: Sequence[int],
    birth: bytes,
    *,
    env: Mapping[str, str],
    log_fd: int,
    folder: Path,
    oom_score_adj: int,
) -> subprocess.Popen[bytes]:
    """Run `python -m module BIRTH_FD FD…` in a session of its own: the descriptors inherited, `birth` to be read.

    Raises:
        SpawnError: the operating system refused.
    """
    try:
        # Not as an argument: those can be read by every user of the machine.
        with os.fdopen(os.memfd_create("birth"), "wb") as certificate:
            certificate.write(birth)
            certificate.seek(0)
            process = _run(module, (certificate.fileno(), *descriptors), env=env, log_fd=log_fd, folder=folder)
    except (OSError, ValueError) as error:
        raise SpawnError(f"{module} could not be started: {error}") from error
    settle(process.pid, oom_score_adj)
    return process


def _run(
    module: str, descriptors: Sequence[int], *load: str, env: Mapping[str, str], log_fd: int, folder: Path
) -> subprocess.Popen[bytes]:
    """Raises OSError, ValueError."""
    return subprocess.Popen(
        # -P: no module is ever taken from the working folder.
        [sys.executable, "-P", "-m", module, *map(str, descriptors), *load],
        stdin=subprocess.DEVNULL,
        stdout=log_fd,
        stderr=log_fd,
        pass_fds=descriptors,
        env=environment(env),
        cwd=folder,
        start_new_session=True,
    )


class Ahead:
    """A front's process that loads, and waits to be told what it is.  It ends where the kernel does before that."""

    def __init__(self, folder: Path, *, resumes: bool = False) -> None:
        """`resumes`: its first clients are in the middle of their sessions.  Raises OSError."""
        self.link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.handoff = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.log = os.pipe()
        birth, self._birth = os.pipe()
        descriptors = (birth, self.link[1].fileno(), self.handoff[1].fileno())
        load = (AHEAD, *LIBRARIES) if resumes else (AHEAD,)
        self.process = _run(SERVICE, descriptors, *load, env={}, log_fd=self.log[1], folder=folder)
        os.close(birth)

    def give(self, birth: bytes) -> subprocess.Popen[bytes] | None:
        """Have it be what `birth` says; None where it is not there to be."""
        try:
            with os.fdopen(self._birth, "wb") as certificate:
                certificate.write(birth)
        except OSError:
            return None
        return self.process


def settle(pid: int, oom_score_adj: int) -> None:
    """What the kernel decides about a process of its own; nothing where it is gone already."""
    try:
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(oom_score_adj), encoding="ascii")
        # Dumping the core of a process with a model in it takes seconds, during which it is neither alive nor dead.
        _, hard = resource.prlimit(pid, resource.RLIMIT_CORE)
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, hard))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return
