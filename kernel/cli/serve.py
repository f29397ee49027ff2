"""`linckia serve`: the kernel itself.

The data directory is locked and its socket listens before anything slow is imported, so that clients can queue at once.
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
from collections.abc import Iterator
from functools import partial

from linckia.kernel import VERSION, data_format
from linckia.kernel.cli import EXIT_HELD, Failed, Usage
from linckia.kernel.cli.kernel_log import open_log
from linckia.kernel.cli.terminal import complain, say
from linckia.kernel.config import Config, load
from linckia.kernel.settings import ConfigError, Flags
from linckia.kernel.supervisor.spawn import Prestarted
from linckia.proto.control.address import AlreadyHeld, CannotHold, hold, log_dir, socket_path
from linckia.proto.control.client import CallFailed, Client, ControlError
from linckia.proto.front import OFF

MIN_DESCRIPTORS, ENOUGH_DESCRIPTORS = 256, 65536
"""Open files of the kernel: at rest it has 180."""

WAIT_S = 10.0
"""For a kernel that ends."""

TAKE_OVER_S = 30.0
"""For one that steps aside: its services finish what they have in hand."""

TAKE_OVERS = 3


log = logging.getLogger("linckia.kernel")


def serve(arguments: argparse.Namespace) -> int:
    """Until the kernel has ended in order.  Raises Usage, Failed."""
    try:
        config = load(flags_of(arguments), os.environ)
        _allow_descriptors()
        # Of a kernel that died, or that steps aside: in order, it is taken away.
        resumes = socket_path(config.data_dir).exists()
        with _held(config, ephemeral=arguments.ephemeral) as listener:
            data_format.claim(config.data_dir)
            try:
                open_log(config.data_dir, config.log_level, watched=not arguments.ephemeral)
            except OSError as error:
                raise CannotHold(
                    f"cannot write the log in {log_dir(config.data_dir)}: {error.strerror}; make room and see to its "
                    "permissions, or name another directory with --data"
                ) from None
            _run(config, listener, arguments, resumes=resumes)
    except ConfigError as error:
        raise Usage(str(error)) from None
    except AlreadyHeld as error:
        complain(error)
        return EXIT_HELD
    except CannotHold as error:
        raise Failed(str(error)) from None
    return 0


def _allow_descriptors() -> None:
    """As many open files as the machine allows: each service takes five, each local client three.  Raises Failed."""
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
    """The data directory (`hold`), taken over where its kernel only runs for the clients that started it.

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
                # One that a client started in between, or that did not end in time, is asked again.
                if not left:
                    raise
                _take_over(config, held)
                is_leaving = True
        yield listener


def _take_over(config: Config, held: AlreadyHeld) -> None:
    """Ask the kernel that holds the data directory to step aside.  Raises AlreadyHeld: it stays, and why."""
    try:
        with Client(config.data_dir) as client:
            client.step_aside([str(root) for root in config.roots], read_only=config.read_only)
        complain("taking over from the kernel that MCP clients started")
    except CallFailed as error:
        if error.failure.get("kind") == "forbidden":
            raise held from None
        raise AlreadyHeld(f"{config.data_dir} cannot be taken over: {error}") from None
    except ControlError:
        # It ends already.
        return


def _run(config: Config, listener: socket.socket, arguments: argparse.Namespace, *, resumes: bool) -> None:
    """Raises ConfigError, Failed."""
    prestarted = None
    # Where it cannot be, the front is started from nothing, and what is wrong is said then.
    with contextlib.suppress(OSError):
        prestarted = Prestarted(log_dir(config.data_dir), resumes=resumes)
    # A tenth of the start would go into looking for garbage where all is needed.  `kernel.app` switches it on again.
    gc.disable()
    # Not before: importing it takes half a second, which a start that finds the directory held need not take.
    import trio

    from linckia.proto.machine import limit_heaps

    # Before any thread: the few that there are need no heaps of their own, whose free ends never go back.
    limit_heaps(1)

    from linckia.kernel.app import leaves, run

    serving = partial(
        run, config, listener, ephemeral=arguments.ephemeral, prestarted=prestarted,
        on_ready=partial(announce, config),
    )  # fmt: skip
    try:
        trio.run(serving)
    except Exception as error:
        for leaf in leaves(error):
            if isinstance(leaf, ConfigError):
                raise leaf from None
        log.critical("the kernel failed by a defect", exc_info=error)
        raise Failed(
            f"the kernel failed by a defect: {next(leaves(error))!r}; {log_dir(config.data_dir) / 'kernel.log'} has "
            "the details. What was acknowledged is on disk; start it again."
        ) from None


def flags_of(arguments: argparse.Namespace) -> Flags:
    """What the command line says; an ephemeral kernel serves no HTTP, since several may run at once."""
    return Flags(
        roots=tuple(arguments.paths),
        read_only=arguments.read_only,
        data_dir=arguments.data,
        config_file=arguments.config,
        http="off" if arguments.no_http or arguments.ephemeral else arguments.http,
        token_file=arguments.token_file,
        log_level=arguments.log_level,
        packages=tuple(arguments.packages or ()),
    )


def _token(config: Config) -> str:
    if config.http is None:
        return "-"
    if config.http.token == OFF:
        return "off: every user and program of this machine has what a client has"
    return "`linckia status` shows it; more of them: `linckia token --help`"


def announce(config: Config, http_url: str | None, page_url: str | None) -> None:
    """Tell people, once clients can be served, where."""
    shown = (f"{root} (read only)" if root in config.read_only_roots else str(root) for root in config.roots)
    roots = ", ".join(shown) or "none: operations on files are refused"
    if page_url is not None and not sys.stderr.isatty():
        # A log may be read by others: what is behind the # lets in.
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
