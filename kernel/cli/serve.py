"""`linckia serve`: the kernel itself, and its log.

The data directory is locked and its socket listens before anything slow is imported, so that clients can queue at once.
The log is JSON lines in DATA/logs/kernel.log, rotated, and lines for people on stderr.  Where no person watches stderr
(`linckia stdio` started the kernel), stderr is the log file itself: what Python prints as it dies is found there.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import logging
import logging.handlers
import os
import socket
import sys
from functools import partial
from pathlib import Path

from kernel import VERSION
from kernel.cli import EXIT_HELD, Failed, Usage
from kernel.config import Config, load
from kernel.control.address import AlreadyHeld, CannotHold, hold, log_dir, socket_path
from kernel.settings import ConfigError, Flags

ROTATE_BYTES = 8 * 1024 * 1024
KEEP = 3
"""Rotated files that are kept: with the one in use, weeks of an ordinary kernel in at most 32 MiB."""

_RED = "\x1b[31m"
_COLOURS = {logging.DEBUG: "\x1b[2m", logging.WARNING: "\x1b[33m", logging.ERROR: _RED, logging.CRITICAL: _RED}

_ORDINARY = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

log = logging.getLogger("linckia.kernel")


def serve(arguments: argparse.Namespace) -> int:
    """Until the kernel has ended in order.  Raises Usage, Failed."""
    try:
        config = load(flags_of(arguments), os.environ)
        with hold(config.data_dir) as listener:
            open_log(config.data_dir, config.log_level, watched=not arguments.ephemeral)
            _run(config, listener, arguments)
    except ConfigError as error:
        raise Usage(str(error)) from None
    except AlreadyHeld as error:
        print(f"linckia: {error}", file=sys.stderr)
        return EXIT_HELD
    except CannotHold as error:
        raise Failed(str(error)) from None
    return 0


def _run(config: Config, listener: socket.socket, arguments: argparse.Namespace) -> None:
    """Raises ConfigError, Failed."""
    # A tenth of the start would go into looking for garbage where all is needed.  `kernel.app` switches it on again.
    gc.disable()
    # Not before: importing it takes half a second, which a start that finds the directory held need not take.
    import trio

    from proto.machine import limit_heaps

    # Before any thread: the few that there are need no heaps of their own, whose free ends never go back.
    limit_heaps(1)

    from kernel.app import leaves, run

    packages = arguments.packages or ()
    ready = partial(announce, config)
    try:
        trio.run(partial(run, config, listener, ephemeral=arguments.ephemeral, packages=packages, on_ready=ready))
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
    )


def announce(config: Config, http_url: str | None, page_url: str | None) -> None:
    """Tell people, once clients can be served, where."""
    shown = (f"{root} (read only)" if root in config.read_only_roots else str(root) for root in config.roots)
    roots = ", ".join(shown) or "none: operations on files are refused"
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


class JsonLines(logging.Formatter):
    """One JSON object a line: time (RFC 3339, UTC), level, logger, message, `extra` fields, a traceback as `error`."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _ORDINARY}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class HumanLines(logging.Formatter):
    """`12:34:56 supervisor  message`, coloured by level on a terminal."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.datetime.fromtimestamp(record.created)
        text = f"{at:%H:%M:%S} {record.name.removeprefix('linckia.'):<10}  {record.getMessage()}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        colour = _COLOURS.get(record.levelno, "") if self._colour else ""
        return f"{colour}{text}\x1b[0m" if colour else text


class Rotating(logging.handlers.RotatingFileHandler):
    """Takes stderr along to the new file, where stderr is this log."""

    def __init__(self, path: Path, *, with_stderr: bool) -> None:
        super().__init__(path, maxBytes=ROTATE_BYTES, backupCount=KEEP, encoding="utf-8")
        self._with_stderr = with_stderr
        self._take_stderr()

    def doRollover(self) -> None:
        super().doRollover()
        self._take_stderr()

    def _take_stderr(self) -> None:
        if self._with_stderr and self.stream is not None:
            os.dup2(self.stream.fileno(), sys.stderr.fileno())


def open_log(data_dir: Path, level: str, *, watched: bool) -> None:
    """Send everything that is logged in this process to the kernel's log; of other libraries only warnings and worse.

    Args:
        watched: whether a person may read stderr.

    Raises OSError: the log cannot be written.
    """
    folder = log_dir(data_dir)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    to_file = Rotating(folder / "kernel.log", with_stderr=not watched)
    to_file.setFormatter(JsonLines())
    root = logging.getLogger()
    root.addHandler(to_file)
    root.setLevel(logging.WARNING)
    if watched:
        to_people = logging.StreamHandler(sys.stderr)
        to_people.setFormatter(HumanLines(colour=sys.stderr.isatty() and not os.environ.get("NO_COLOR")))
        root.addHandler(to_people)
    logging.getLogger("linckia").setLevel(level.upper())
    logging.captureWarnings(True)
