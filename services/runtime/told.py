"""What a starting process is told, as JSON on an inherited descriptor, since every user could read arguments."""

from __future__ import annotations

import os
from typing import TypeVar

import msgspec

T = TypeVar("T")


def told(fd: int, tp: type[T]) -> T:
    """Read it from descriptor `fd`, and close that. Raises msgspec.DecodeError, OSError."""
    with os.fdopen(fd, "rb") as file:
        return msgspec.json.decode(file.read(), type=tp)
