"""The kernel's log: JSON lines in DATA/logs/kernel.log, rotated, and lines for people on stderr, except routine ones.

If nobody watches stderr, because `linckia stdio` started the kernel, stderr is the log file itself, so that it receives
what Python prints when it crashes.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import logging.handlers
import os
import sys
from pathlib import Path

from proto.control.address import log_dir
from proto.control.terminal import complain, escaped
from proto.host.log_lines import JsonLines

ROTATE_BYTES = 8 * 1024 * 1024
KEEP = 3
"""Number of rotated files; with the current one, weeks of a normal kernel in at most 32 MiB."""

_RED = "\x1b[31m"
_COLOURS = {logging.DEBUG: "\x1b[2m", logging.WARNING: "\x1b[33m", logging.ERROR: _RED, logging.CRITICAL: _RED}

_log = logging.getLogger("linckia.kernel")


class HumanLines(logging.Formatter):
    """`12:34:56 supervisor  message`, coloured by level on a terminal."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.datetime.fromtimestamp(record.created)
        text = f"{at:%H:%M:%S} {record.name.removeprefix('linckia.'):<10}  {escaped(record.getMessage())}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        colour = _COLOURS.get(record.levelno, "") if self._colour else ""
        return f"{colour}{text}\x1b[0m" if colour else text


class Rotating(logging.handlers.RotatingFileHandler):
    """Redirects stderr to the new file after a rotation, if stderr is this log."""

    def __init__(self, path: Path, *, with_stderr: bool) -> None:
        super().__init__(path, maxBytes=ROTATE_BYTES, backupCount=KEEP, encoding="utf-8")
        self._with_stderr = with_stderr
        self._lost = 0
        self._take_stderr()

    def emit(self, record: logging.LogRecord) -> None:
        before = self._lost
        super().emit(record)
        if before and before == self._lost:
            self._lost = 0
            _log.warning("%d lines of this log may be missing: they could not be written", before)

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        # Reported once. If people read stderr, they see the lines themselves there.
        if not self._lost:
            with contextlib.suppress(OSError):
                complain(f"{self.baseFilename} cannot be written: {error.strerror}")
        self._lost += 1

    def doRollover(self) -> None:
        super().doRollover()
        self._take_stderr()

    def _take_stderr(self) -> None:
        if self._with_stderr and self.stream is not None:
            os.dup2(self.stream.fileno(), sys.stderr.fileno())


def open_log(data_dir: Path, level: str, *, watched: bool) -> None:
    """Send everything that this process logs to the kernel's log; from other libraries, only warnings and errors.

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
        if level != "debug":
            to_people.addFilter(lambda record: not hasattr(record, "routine"))
        root.addHandler(to_people)
    logging.getLogger("linckia").setLevel(level.upper())
    logging.captureWarnings(True)
