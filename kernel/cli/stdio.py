"""`linckia stdio`: gives its stdin and stdout to the kernel that holds the data directory, and waits.

The kernel speaks MCP on the two descriptors itself: nothing is relayed. Where no kernel runs it starts one, detached,
that ends with its last client. A kernel that dies is followed by another, which gets the session as it stood
(`services.front.transport.session_memory`). Standard library only: an MCP client waits for it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from linckia.kernel.cli import EXIT_HELD, Failed, Usage
from linckia.kernel.cli.terminal import complain
from linckia.proto.control.address import last_lines, log_dir
from linckia.proto.control.client import CallFailed, Client, KernelGone, NoKernel
from linckia.proto.json_types import JsonObject

if TYPE_CHECKING:
    import subprocess
    from types import FrameType

SERVE = (sys.executable, "-P", "-m", "linckia.kernel.cli", "serve")
"""What starts a kernel where none runs."""

START_TIMEOUT_S = 20.0
"""A kernel starts in about one second; this is for a machine that is very busy."""

POLL_S = 0.005
"""Between two tries to connect: small beside the start of a process."""

COMES_BACK_S = 10.0
"""How long a kernel that others look after is waited for when it has died, before one is started here."""

EARLY_DEATHS, EARLY_S = 5, 3.0
"""Where so many kernels in a row die so soon after they took the session, it is ended: they may die of it."""

LOG_LINES = 20
"""Of the kernel's log, shown where it could not start."""


def stdio(arguments: argparse.Namespace) -> int:
    """Returns when the MCP session has ended.  Raises Failed, Usage, ControlError."""
    data_dir: Path = arguments.data_dir
    roots = [real_root(path) for path in arguments.paths]
    with _as_they_were(0, 1):
        if os.isatty(0):
            complain("speaking MCP on this terminal, one JSON message a line; Ctrl-D ends")
        _serve(data_dir, roots, arguments)
    return 0


def _serve(data_dir: Path, roots: list[str], arguments: argparse.Namespace) -> None:
    """Until the session has ended, through the deaths of kernels.  Raises as `stdio`."""
    memory = os.memfd_create("linckia-session")
    log = log_dir(data_dir) / "kernel.log"
    early = 0
    patience_s = 0.0
    while True:
        client, attached = _join(data_dir, roots, arguments, memory, patience_s)
        joined_at = time.monotonic()
        with client:
            try:
                ended = client.wait_detached()
            except KernelGone:
                ended = "died"
        if ended in ("client", "stopped"):
            if ended == "stopped":
                complain("the kernel was ended; the session ends with it")
            return
        roots = attached["roots"]
        if ended == "replaced":
            complain("another kernel takes over; the session goes on there")
            patience_s = COMES_BACK_S
            continue
        early = early + 1 if time.monotonic() - joined_at < EARLY_S else 0
        if early > EARLY_DEATHS:
            raise Failed(
                f"{early} kernels in a row have died within {EARLY_S:.0f} s of taking the session; see {log}. "
                "Start the client's session again: what was acknowledged is on disk."
            )
        complain(f"the kernel has died (see {log}); the session goes on with the next")
        patience_s = 0.0 if attached["ephemeral"] else COMES_BACK_S


def real_root(path: str) -> str:
    """Raises Usage where there is no such folder."""
    try:
        real = os.path.realpath(os.path.expanduser(path), strict=True)
    except OSError as error:
        raise Usage(f"the root {path!r} does not exist ({error.strerror}); create it, or name another folder") from None
    if not os.path.isdir(real):
        raise Usage(f"the root {path!r} is a file; name the folder that holds it")
    return real


@contextlib.contextmanager
def _as_they_were(*descriptors: int) -> Iterator[None]:
    """Leave the descriptors in the mode they came in, whatever ends this process in order.

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
        # At once: the kernel sees the control connection close, and cancels the requests in flight.
        os._exit(0)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    try:
        yield
    finally:
        restore()


def _join(
    data_dir: Path, roots: list[str], arguments: argparse.Namespace, memory: int, patience_s: float
) -> tuple[Client, JsonObject]:
    """A connection whose kernel serves our descriptors, and its answer; started if none comes in `patience_s`."""
    start_at = time.monotonic() + patience_s
    give_up_at = start_at + START_TIMEOUT_S
    started: subprocess.Popen[bytes] | None = None
    while True:
        try:
            client = Client(data_dir)
        except NoKernel:
            if started is None and time.monotonic() >= start_at:
                started = _start(data_dir, roots, arguments)
        else:
            try:
                timeout_s = give_up_at - time.monotonic()
                attached = client.attach(
                    arguments.surface, roots or None, 0, 1, memory, read_only=arguments.read_only, timeout_s=timeout_s
                )
                return client, attached
            except KernelGone:
                # It was on its way out, or died while starting; nothing was read from our descriptors.
                client.close()
            except TimeoutError:
                raise Failed(f"the kernel did not answer within {START_TIMEOUT_S:.0f} s{_log_end(data_dir)}") from None
            except CallFailed as error:
                wrong = error.failure.get("kind") == "invalid_params"
                raise (Usage if wrong else Failed)(str(error)) from None
        code = started.poll() if started is not None else None
        if code == EXIT_HELD:
            # Another client's kernel was first, or an old one is not quite gone: join or start again.
            started = None
        elif code is not None:
            raise Failed(f"the kernel ended while starting, with exit code {code}{_log_end(data_dir)}")
        if time.monotonic() > give_up_at:
            raise Failed(f"no kernel could be reached within {START_TIMEOUT_S:.0f} s{_log_end(data_dir)}")
        time.sleep(POLL_S)


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
    command += ["--", *roots]
    with log:
        # A session of its own: what ends the client's process group must not end a kernel that others may have joined.
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


def _log_end(data_dir: Path) -> str:
    path = log_dir(data_dir) / "kernel.log"
    try:
        lines = last_lines(path, LOG_LINES)
    except OSError:
        return ""
    return f"; the end of {path}:\n  " + "\n  ".join(lines)
