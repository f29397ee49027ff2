"""Trace contexts as W3C traceparents, which go with a call wherever it leads."""

from __future__ import annotations

import os
import re

_TRACEPARENT = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def new_trace() -> str:
    """A traceparent of a new trace."""
    return f"00-{os.urandom(16).hex()}-{os.urandom(8).hex()}-01"


def accept_trace(value: object) -> str | None:
    """What a client sent as its traceparent, if that is what it is."""
    return value if isinstance(value, str) and _TRACEPARENT.fullmatch(value) else None
