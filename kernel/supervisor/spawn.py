"""Starting a Python process from nothing: its environment, its descriptors, its session, and its log.

Processes are started from the thread that runs trio, the main thread: their tie to the kernel's life
(`PR_SET_PDEATHSIG`) is to the thread that started them, and a worker thread ends when it idles.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import trio

import proto
from kernel.supervisor.placement import SpawnError
from proto.machine import HEAPS

MALLOC = {
    # glibc's defaults map and unmap each large message, which makes 1 MB messages 3 to 6 times slower.
    "MALLOC_MMAP_THRESHOLD_": "268435456",
    "MALLOC_TRIM_THRESHOLD_": "1073741824",
    "MALLOC_TOP_PAD_": "67108864",
    # One for all threads: of any other, what is free at its end never goes back, whatever is asked of it.
    HEAPS: "1",
}

PIECE_BYTES, PIECE_PAUSE_S = 65_536, 0.005
"""What is taken of a log at once, and the time between two pieces: a service that floods its log waits for itself."""
PIECES_AT_ONCE = 16
"""The most that a pipe holds: a mebibyte, unless root allows more."""

LAST_WORDS_BYTES = 4096
LAST_WORDS_CHARACTERS = 300

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
            birth_fd = certificate.fileno()
            # -P: no module is ever taken from the working folder.
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *map(str, (birth_fd, *descriptors))],
                stdin=subprocess.DEVNULL,
                stdout=log_fd,
                stderr=log_fd,
                pass_fds=(birth_fd, *descriptors),
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


class ServiceLog:
    """What a service writes, in a file that cannot fill the disk; `fd` is its stdout and stderr, a pipe to here.

    What it writes faster than `run` takes waits in the pipe, and the writer with it. The file is renamed to
    `NAME.log.1` before it gets past its limit. It is the log of one generation after the other.
    """

    def __init__(self, folder: Path, name: str, max_bytes: int) -> None:
        self.path = folder / f"{name}.log"
        self._older = folder / f"{name}.log.1"
        self._max_bytes = max_bytes
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._pipe, self.fd = os.pipe()
        os.set_blocking(self._pipe, False)
        self._tail = b""
        self._open()

    def _open(self) -> None:
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._file).st_size

    async def run(self) -> None:
        """Take what is written, piece by piece, until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._pipe)
            self._take()
            await trio.sleep(PIECE_PAUSE_S)

    def _take(self) -> bool:
        try:
            data = os.read(self._pipe, PIECE_BYTES)
        except OSError:
            # Nothing is there, or it is closed.
            return False
        # The supervisor's own lines are not the last words of a process.
        self._tail = (self._tail + data)[-LAST_WORDS_BYTES:]
        self._write(data)
        return True

    def _take_all(self) -> None:
        # A process that writes on and on is not waited for.
        for _ in range(PIECES_AT_ONCE):
            if not self._take():
                return

    def _write(self, data: bytes) -> None:
        # A full disk must not stop the supervisor from supervising.
        with contextlib.suppress(OSError):
            if self._size and self._size + len(data) > self._max_bytes:
                with contextlib.suppress(FileNotFoundError):
                    self.path.replace(self._older)
                full = self._file
                self._open()
                os.close(full)
            self._size += os.write(self._file, data)

    def note(self, text: str) -> None:
        """A line of the supervisor's own."""
        self._take_all()
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        self._write(f"{stamp} supervisor: {text}\n".encode())

    def last_words(self) -> str:
        """The last line with words in it that was written since this was last asked, shortened: asked at the death of a
        generation, for its cause."""
        self._take_all()
        # From memory: on a full disk they are not in the file.
        text, self._tail = self._tail.decode("utf-8", "replace"), b""
        # A group of exceptions is written in a frame, which ends below all that it says.
        lines = [line.strip("| \t") for line in text.splitlines() if any(map(str.isalnum, line))]
        return lines[-1][-LAST_WORDS_CHARACTERS:] if lines else ""

    def close(self) -> None:
        self._take_all()
        for fd in (self._pipe, self.fd, self._file):
            os.close(fd)
        self._pipe = self._file = -1
