"""The format of all logs: JSON lines with time, level, logger, message and further fields.

Output that is not logged (of libraries, of programs, of a crash) is in the logs as it was written.
"""

from __future__ import annotations

import datetime
import json
import logging
from typing import Any

_ORDINARY = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def line(level: str, logger: str, message: str, at: float, **fields: object) -> str:
    """Return one line without its end. `at` is Unix time; the line has RFC 3339, UTC."""
    time = datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    found = {"time": time, "level": level, "logger": logger, "message": message, **fields}
    return json.dumps(found, ensure_ascii=False, default=str)


def parsed(text: str) -> dict[str, Any] | None:
    """Return the fields of a line in this format; None for other output."""
    if not text.startswith("{"):
        return None
    try:
        fields = json.loads(text)
    except ValueError:
        return None
    known = isinstance(fields, dict) and all(isinstance(fields.get(name), str) for name in ("time", "level", "message"))
    return fields if known else None


class JsonLines(logging.Formatter):
    """Formats records as lines, with their `extra` fields, the traceback as `error`, and the given `fields`."""

    def __init__(self, **fields: object) -> None:
        super().__init__()
        self._fields = fields

    def format(self, record: logging.LogRecord) -> str:
        extra = {key: value for key, value in vars(record).items() if key not in _ORDINARY}
        if record.exc_info:
            extra["error"] = self.formatException(record.exc_info)
        return line(record.levelname.lower(), record.name, record.getMessage(), record.created, **self._fields, **extra)
