"""`linckia serve`: the kernel itself.

The data directory is locked and its socket listens before anything slow is imported, so that clients can queue at once.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
from collections.abc import Iterator
from functools import partial

from kernel.cli import EXIT_HELD, Failed, Usage
from kernel.cli.kernel_log import open_log
from kernel.config import Config, load
from kernel.control.address import log_dir, socket_path
from kernel.control.hold import AlreadyHeld, CannotHold, Held, hold
from kernel.settings import ConfigError, Flags
from kernel.version import VERSION

log = logging.getLogger("linckia.kernel")


def serve(arguments: argparse.Namespace) -> int:
    """Until the kernel has ended in order.  Raises Usage, Failed."""
    try:
        config = load(flags_of(arguments), os.environ)
        with hold(config.data_dir) as held:
            open_log(config.data_dir, config.log_level, watched=not arguments.ephemeral)
            _run(config, held, ephemeral=arguments.ephemeral, conformance=arguments.conformance)
    except ConfigError as error:
        raise Usage(str(error)) from None
    except AlreadyHeld as error:
        print(f"linckia: {error}", file=sys.stderr)
        return EXIT_HELD
    except CannotHold as error:
        raise Failed(str(error)) from None
    return 0


def _run(config: Config, held: Held, *, ephemeral: bool, conformance: bool) -> None:
    """Raises ConfigError, Failed."""
    # A tenth of the start would go into looking for garbage among a million objects that are all needed.  The kernel
    # switches the collector on again once it is up.
    gc.disable()
    # Not before: importing it takes half a second, which a start that finds the directory held need not take.
    import trio

    from proto.memory import limit_heaps

    # Before any thread, and so before what else is loaded: the few that there are need no heaps of their own, whose
    # free ends never go back.
    limit_heaps(1)

    from kernel.app import run

    start = partial(
        run,
        config,
        held.listener,
        ephemeral=ephemeral,
        conformance=conformance,
        on_ready=partial(announce, config),
    )
    try:
        trio.run(start)
    except Exception as error:
        for leaf in _leaves(error):
            if isinstance(leaf, ConfigError):
                raise leaf from None
        log.critical("the kernel failed by a defect", exc_info=error)
        raise Failed(
            f"the kernel failed by a defect: {next(_leaves(error))!r}; {log_dir(config.data_dir) / 'kernel.log'} has "
            "the details. What was acknowledged is on disk; start it again."
        ) from None


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors themselves: each nursery that one passes through wraps it in a group."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def flags_of(arguments: argparse.Namespace) -> Flags:
    """What the command line says; an ephemeral kernel serves no HTTP, since several may run at once."""
    return Flags(
        roots=tuple(arguments.paths),
        data_dir=arguments.data,
        config_file=arguments.config,
        http="off" if arguments.no_http or arguments.ephemeral else arguments.http,
        token_file=arguments.token_file,
        log_level=arguments.log_level,
    )


def announce(config: Config, http_url: str | None, page_url: str | None) -> None:
    """Tell people, once clients can be served, where."""
    roots = ", ".join(map(str, config.roots)) or "none: operations on files are refused"
    print(
        f"Linckia {VERSION} is ready (process {os.getpid()})\n"
        f"  MCP over HTTP   {http_url or 'off'}\n"
        f"  operator's page {page_url or 'off'}\n"
        f"  MCP over stdio  linckia stdio --data {config.data_dir}\n"
        f"  control         {socket_path(config.data_dir)}\n"
        f"  roots           {roots}\n"
        "Ctrl-C or `linckia stop` ends it in order.",
        file=sys.stderr,
        flush=True,
    )
