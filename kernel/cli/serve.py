"""`linckia serve`: runs the kernel.

The data directory is locked and its socket listens before anything slow is imported, so that clients can already queue.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import resource
import socket
import sys
from collections.abc import Callable, Iterator
from functools import partial

from kernel import VERSION
from kernel.cli import EXIT_HELD
from kernel.cli.care import data_format
from kernel.cli.kernel_log import open_log
from kernel.cli.settings.layers import Flags
from kernel.cli.settings.loading import load
from kernel.configure.config import Config, ConfigError
from kernel.supervisor.spawn import Prestarted
from proto.control.address import AlreadyHeld, CannotHold, hold, log_dir, socket_path
from proto.control.client import CallFailed, Client, ControlError
from proto.control.commands import Failed, Usage
from proto.control.terminal import complain, say
from proto.wire.front import OFF

MIN_DESCRIPTORS, ENOUGH_DESCRIPTORS = 256, 65536
"""Limits on open files for the kernel; it has 180 when idle."""

WAIT_S = 10.0
"""How long to wait for a kernel that is ending."""

TAKE_OVER_S = 30.0
"""How long to wait for a kernel that steps aside while its services finish calls in flight."""

TAKE_OVERS = 3


log = logging.getLogger("linckia.kernel")


def serve(arguments: argparse.Namespace) -> int:
    """Run until the kernel has ended in order. Raises Usage, Failed."""
    try:
        read_settings = partial(load, flags_of(arguments), os.environ)
        config = read_settings()
        _allow_descriptors()
        with _held(config, ephemeral=arguments.ephemeral) as listener:
            data_format.claim(config.data_dir)
            try:
                open_log(config.data_dir, config.log_level, watched=not arguments.ephemeral)
            except OSError as error:
                raise CannotHold(
                    f"cannot write the log in {log_dir(config.data_dir)}: {error.strerror}; free disk space and check "
                    "permissions, or name another directory with --data"
                ) from None
            for warning in config.warnings:
                log.warning("%s", warning)
            _run(config, listener, read_settings, flags_of(arguments), ephemeral=arguments.ephemeral)
    except ConfigError as error:
        raise Usage(str(error)) from None
    except AlreadyHeld as error:
        complain(error)
        return EXIT_HELD
    except CannotHold as error:
        raise Failed(str(error)) from None
    return 0


def _allow_descriptors() -> None:
    """Raise the limit on open files to what the machine allows: 5 per service, 3 per local client. Raises Failed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = ENOUGH_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, ENOUGH_DESCRIPTORS)
    if most < MIN_DESCRIPTORS:
        raise Failed(
            f"this shell allows a process {most} open files, and the kernel needs {MIN_DESCRIPTORS}: raise the limit "
            "(`ulimit -n`, `LimitNOFILE=` of a systemd unit, or /etc/security/limits.conf), and start again"
        )
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@contextlib.contextmanager
def _held(config: Config, *, ephemeral: bool) -> Iterator[socket.socket]:
    """Hold the data directory (`hold`), taking it over from a kernel that runs only for the clients that started it.

    Raises AlreadyHeld, CannotHold.
    """
    tries = 1 if ephemeral else TAKE_OVERS
    with contextlib.ExitStack() as stack:
        is_leaving = False
        for left in reversed(range(tries)):
            try:
                listener = stack.enter_context(
                    hold(config.data_dir, wait_s=TAKE_OVER_S if is_leaving else WAIT_S, is_leaving=is_leaving)
                )
                break
            except AlreadyHeld as held:
                # Ask again if a client has started another kernel, or this one did not end in time.
                if not left:
                    raise
                _take_over(config, held)
                is_leaving = True
        yield listener


def _take_over(config: Config, held: AlreadyHeld) -> None:
    """Ask the kernel that holds the data directory to step aside. Raises AlreadyHeld if it refuses, with the reason."""
    try:
        with Client(config.data_dir) as client:
            client.step_aside([str(root) for root in config.roots], read_only=config.read_only)
        complain("taking over from the kernel that MCP clients started")
    except CallFailed as error:
        if error.failure.get("kind") == "forbidden":
            raise held from None
        raise AlreadyHeld(f"{config.data_dir} cannot be taken over: {error}") from None
    except ControlError:
        # It is already ending.
        return


def _run(
    config: Config, listener: socket.socket, read_settings: Callable[[], Config], flags: Flags, *, ephemeral: bool
) -> None:
    """Run the kernel. Raises ConfigError, Failed."""
    prestarted = None
    # If this fails, the front starts from scratch later, and the problem is reported then.
    with contextlib.suppress(OSError):
        prestarted = Prestarted(log_dir(config.data_dir))
    # During start-up there is little garbage, and collecting it takes a tenth of the time. `kernel.app` re-enables it.
    gc.disable()
    # Imported late: it takes half a second, which a start that finds the directory held can save.
    import trio

    from proto.host.machine import limit_heaps

    # Before any thread starts: the few threads need no heaps of their own, whose free ends are never returned.
    limit_heaps(1)

    from kernel.app import run
    from kernel.cli.settings.editing import Settings

    serving = partial(
        run, config, listener, ephemeral=ephemeral, prestarted=prestarted,
        on_ready=partial(announce, config), read_settings=read_settings, settings=Settings(flags, os.environ),
    )  # fmt: skip
    try:
        trio.run(serving)
    except Exception as error:
        for leaf in _leaves(error):
            if isinstance(leaf, ConfigError):
                raise leaf from None
        log.critical("the kernel failed because of a defect", exc_info=error)
        raise Failed(
            f"the kernel failed because of a defect: {next(_leaves(error))!r}; see "
            f"{log_dir(config.data_dir) / 'kernel.log'}. Acknowledged data is on disk; start the kernel again."
        ) from None


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the individual errors inside nested exception groups, which nurseries create."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def flags_of(arguments: argparse.Namespace) -> Flags:
    """Return the command line's settings. An ephemeral kernel serves no HTTP, since several may run at once."""
    return Flags(
        roots=tuple(arguments.paths),
        read_only=arguments.read_only,
        data_dir=arguments.data,
        config_file=arguments.config,
        http="off" if arguments.no_http or arguments.ephemeral else arguments.http,
        token_file=arguments.token_file,
        log_level=arguments.log_level,
        packages=tuple(arguments.packages or ()),
        mcp_files=tuple(arguments.mcp_files or ()),
        only_mounts=arguments.only_mounts,
    )


def _token(config: Config) -> str:
    if config.http is None:
        return "-"
    if config.http.token == OFF:
        return "off: every user and program on this machine has a client's access"
    return "shown by `linckia status`; for others, see `linckia token --help`"


def announce(config: Config, http_url: str | None, page_url: str | None) -> None:
    """Print where clients can connect, once they can."""
    shown = (f"{root} (read only)" if root in config.read_only_roots else str(root) for root in config.roots)
    roots = ", ".join(shown) or "none: operations on files are refused"
    if page_url is not None and not sys.stderr.isatty():
        # Others may read the log, and the part after the # grants access.
        page_url = page_url.partition("#")[0]
    say(
        f"Linckia {VERSION} is ready (process {os.getpid()})",
        f"  MCP over HTTP   {http_url or 'off'}",
        f"  operator's page {page_url or 'off'}",
        f"  token           {_token(config)}",
        f"  MCP over stdio  linckia stdio --data {config.data_dir}",
        f"  control         {socket_path(config.data_dir)}",
        f"  roots           {roots}",
        "Ctrl-C or `linckia stop` ends it in order.",
        to=sys.stderr,
    )
