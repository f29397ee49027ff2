"""`linckia stdio`: passes its stdin and stdout to the kernel of the data directory, and waits.

The kernel's front speaks MCP on the two descriptors directly; nothing is relayed. If no kernel runs, a detached one is
started that ends with its last client. If the kernel dies, the next one continues the session
(`services.front.transport.session_memory`). This module uses only the standard library, since an MCP client is waiting.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kernel.cli import EXIT_HELD
from proto.control.address import last_lines, log_dir
from proto.control.client import CallFailed, Client, KernelGone, NoKernel
from proto.control.commands import Failed, Usage
from proto.control.terminal import complain
from proto.host.end_signals import end_signals
from proto.json_types import JsonObject
from proto.names import module

if TYPE_CHECKING:
    import subprocess
    from types import FrameType

R = TypeVar("R")

SERVE = (sys.executable, "-P", "-m", module("kernel.cli"), "serve")
"""Command that starts a kernel if none runs."""

START_TIMEOUT_S = 20.0
"""A kernel starts in about one second; this allows for a very busy machine."""

POLL_S = 0.005
"""Interval between attempts to connect: short compared to the start of a process."""

COMES_BACK_S = 10.0
"""How long to wait for a service manager to restart its kernel before starting one here."""

EARLY_DEATHS, EARLY_S = 5, 3.0
"""If this many kernels in a row die this soon after taking the session, end it: it may be what kills them."""

LOG_LINES = 20
"""Number of lines of the kernel's log to show if it could not start."""


def stdio(arguments: argparse.Namespace) -> int:
    """Return when the MCP session has ended. Raises Failed, Usage, ControlError.

    `at_end` of the arguments, if given, is called before a signal ends this process.
    """
    data_dir: Path = arguments.data_dir
    roots = [real_root(path) for path in arguments.paths]
    with _as_they_were(0, 1, at_end=getattr(arguments, "at_end", None)):
        if os.isatty(0):
            complain("speaking MCP on this terminal, one JSON message a line; Ctrl-D ends")
        _serve(data_dir, roots, arguments)
    return 0


def _serve(data_dir: Path, roots: list[str], arguments: argparse.Namespace) -> None:
    """Serve until the session has ended, across deaths of kernels. Raises the same errors as `stdio`."""
    memory = os.memfd_create("linckia-session")
    log = log_dir(data_dir) / "kernel.log"
    early = 0
    patience_s = 0.0

    def attach(client: Client, timeout_s: float) -> JsonObject:
        return client.attach(
            arguments.surface, roots or None, 0, 1, memory, read_only=arguments.read_only, timeout_s=timeout_s
        )

    while True:
        client, attached = join(data_dir, roots, arguments, attach, patience_s)
        joined_at = time.monotonic()
        with client:
            try:
                ended = client.wait_detached()
            except KernelGone:
                ended = "died"
        if ended in ("client", "stopped"):
            if ended == "stopped":
                complain("the kernel was stopped, which ends the session")
            return
        roots = attached["roots"]
        if ended == "replaced":
            complain("another kernel takes over and continues the session")
            patience_s = COMES_BACK_S
            continue
        early = early + 1 if time.monotonic() - joined_at < EARLY_S else 0
        if early > EARLY_DEATHS:
            raise Failed(
                f"{early} kernels in a row have died within {EARLY_S:.0f} s of taking the session; see {log}. "
                "Start the client's session again: acknowledged data is on disk."
            )
        complain(f"the kernel has died (see {log}); the next one continues the session")
        patience_s = 0.0 if attached["ephemeral"] else COMES_BACK_S


def real_root(path: str) -> str:
    """Return the real path of a root. Raises Usage if there is no such folder."""
    try:
        real = os.path.realpath(os.path.expanduser(path), strict=True)
    except OSError as error:
        raise Usage(f"the root {path!r} does not exist ({error.strerror}); create it, or name another folder") from None
    if not os.path.isdir(real):
        raise Usage(f"the root {path!r} is a file; name the folder that holds it")
    return real


@contextlib.contextmanager
def _as_they_were(*descriptors: int, at_end: Callable[[], None] | None = None) -> Iterator[None]:
    """Restore the original mode of the descriptors when this process ends in order.

    The kernel makes them non-blocking, and the mode belongs to the open file, which a terminal shares with its shell.
    """
    try:
        modes = {descriptor: os.get_blocking(descriptor) for descriptor in descriptors}
    except OSError:
        raise Usage("stdin or stdout is closed; `linckia stdio` speaks MCP on them") from None

    def restore() -> None:
        for descriptor, blocking in modes.items():
            with contextlib.suppress(OSError):
                os.set_blocking(descriptor, blocking)

    def end(number: int, frame: FrameType | None) -> None:
        restore()
        if at_end is not None:
            at_end()
        # Exit at once: the kernel notices that the control connection closes, and cancels requests in flight.
        os._exit(0)

    for number in end_signals(signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    try:
        yield
    finally:
        restore()


def join(
    data_dir: Path,
    roots: list[str],
    arguments: argparse.Namespace,
    use: Callable[[Client, float], R],
    patience_s: float = 0.0,
) -> tuple[Client, R]:
    """Return a connection to a kernel, and what `use`, called with the connection and a timeout, returned.

    A kernel is started if none appears within `patience_s`. Raises Failed, Usage, ControlError.
    """
    start_at = time.monotonic() + patience_s
    give_up_at = start_at + START_TIMEOUT_S
    started: subprocess.Popen[bytes] | None = None
    with _Turn(data_dir) as turn:
        while True:
            try:
                client = Client(data_dir)
            except NoKernel:
                if started is None and time.monotonic() >= start_at and turn.take():
                    started = _start(data_dir, roots, arguments)
            else:
                try:
                    timeout_s = give_up_at - time.monotonic()
                    return client, use(client, timeout_s)
                except KernelGone:
                    # It was ending, or died while starting. Nothing was read from our descriptors.
                    client.close()
                except TimeoutError:
                    raise Failed(
                        f"the kernel did not answer within {START_TIMEOUT_S:.0f} s{log_end(data_dir)}"
                    ) from None
                except CallFailed as error:
                    wrong = error.failure.get("kind") == "invalid_params"
                    raise (Usage if wrong else Failed)(str(error)) from None
            code = started.poll() if started is not None else None
            if code == EXIT_HELD:
                # Another client's kernel was faster, or an old one has not quite ended: join it or start again.
                started = None
            elif code is not None:
                raise Failed(f"the kernel ended while starting, with exit code {code}{log_end(data_dir)}")
            if time.monotonic() > give_up_at:
                raise Failed(f"no kernel could be reached within {START_TIMEOUT_S:.0f} s{log_end(data_dir)}")
            time.sleep(POLL_S)


class _Turn:
    """The turn to start a kernel, which one client has at a time, until it has joined a kernel or ended.

    All clients notice the death of a kernel at the same moment. If each started one, the processes that find the data
    directory held would delay the one that serves.
    """

    def __init__(self, data_dir: Path) -> None:
        self._folder = log_dir(data_dir)
        self._lock: int | None = None

    def __enter__(self) -> _Turn:
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)

    def take(self) -> bool:
        """Return whether it is this client's turn."""
        if self._lock is not None:
            return True
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            # The attempt to start a kernel reports the problem.
            return True
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
        except OSError:
            # A file system without locks: several may start one, and the data directory admits one.
            pass
        self._lock = lock
        return True


def _start(data_dir: Path, roots: list[str], arguments: argparse.Namespace) -> subprocess.Popen[bytes]:
    import subprocess

    command = [*SERVE, "--ephemeral", "--data", str(data_dir)]
    if arguments.config:
        command += ["--config", arguments.config]
    if arguments.read_only:
        command.append("--read-only")
    try:
        log_dir(data_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
        log = (log_dir(data_dir) / "kernel.log").open("ab")
    except OSError as error:
        raise Failed(f"cannot use {data_dir} as data directory: {error.strerror}; name another with --data") from error
    if arguments.only_mounts:
        command.append("--only-mounts")
    for name in arguments.mcp_files or ():
        command += ["--mcp", os.path.abspath(os.path.expanduser(name))]
    command += ["--", *roots]
    with log:
        # In its own session, so that signals to the client's process group do not end a kernel that others may use.
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


def log_end(data_dir: Path) -> str:
    """Return the last lines of the kernel's log, to be appended to a message."""
    path = log_dir(data_dir) / "kernel.log"
    try:
        lines = last_lines(path, LOG_LINES)
    except OSError:
        return ""
    return f"; the end of {path}:\n  " + "\n  ".join(lines)
