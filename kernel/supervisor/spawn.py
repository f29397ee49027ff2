"""Starts a Python process from scratch: its environment, descriptors and session.

Processes are started from the main thread, which runs trio. `PR_SET_PDEATHSIG`, which ends them with the kernel, refers
to the thread that started them, and a worker thread ends when it is idle.

A client that starts Linckia waits for the kernel and the first front, each of which takes a fifth of a second to load.
So the front's process is started before the kernel has finished loading. This module imports nothing slow.
"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from proto.host.environment import environment
from proto.names import module

SERVICE = module("services.runtime.main")
"""Module that runs a service."""

FRONT_MODULE = module("services.front.main")
"""Module that the first front imports in advance."""


class SpawnError(Exception):
    """The generation could not be started; the message says why."""


def spawn(
    module: str,
    descriptors: Sequence[int],
    launch: bytes,
    *,
    env: Mapping[str, str],
    log_fd: int,
    folder: Path,
    oom_score_adj: int,
) -> subprocess.Popen[bytes]:
    """Run `python -m module CONFIG_FD FD…` in its own session. It inherits the descriptors and reads `launch`.

    Raises:
        SpawnError: the operating system refused.
    """
    try:
        # Not passed as an argument, which every user of the machine could read.
        with os.fdopen(os.memfd_create("launch"), "wb") as file:
            file.write(launch)
            file.seek(0)
            process = _run(module, (file.fileno(), *descriptors), env=env, log_fd=log_fd, folder=folder)
    except (OSError, ValueError) as error:
        raise SpawnError(f"{module} could not be started: {error}") from error
    settle(process.pid, oom_score_adj)
    return process


def _run(
    module: str, descriptors: Sequence[int], *load: str, env: Mapping[str, str], log_fd: int, folder: Path
) -> subprocess.Popen[bytes]:
    """Start the process. Raises OSError, ValueError."""
    return subprocess.Popen(
        # -P: never import a module from the working folder.
        [sys.executable, "-P", "-m", module, *map(str, descriptors), *load],
        stdin=subprocess.DEVNULL,
        stdout=log_fd,
        stderr=log_fd,
        pass_fds=descriptors,
        env=environment(env),
        cwd=folder,
        start_new_session=True,
    )


class Prestarted:
    """A front's process that loads in advance and waits for its configuration. It ends if the kernel ends first."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError."""
        self.link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.handoff = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.log = os.pipe()
        launch, self._launch = os.pipe()
        descriptors = (launch, self.link[1].fileno(), self.handoff[1].fileno())
        self.process = _run(SERVICE, descriptors, FRONT_MODULE, env={}, log_fd=self.log[1], folder=folder)
        os.close(launch)

    def configure(self, launch: bytes) -> subprocess.Popen[bytes] | None:
        """Give the process its configuration; returns None if the process no longer exists."""
        try:
            with os.fdopen(self._launch, "wb") as file:
                file.write(launch)
        except OSError:
            return None
        return self.process


def settle(pid: int, oom_score_adj: int) -> None:
    """Set what the kernel decides about a process, if it still exists."""
    try:
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(oom_score_adj), encoding="ascii")
        # Dumping the core of a process with a loaded model takes seconds, in which it is neither alive nor dead.
        _, hard = resource.prlimit(pid, resource.RLIMIT_CORE)
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, hard))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return
