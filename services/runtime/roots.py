"""Files below the roots, by their real paths: the only ones that a service reads or writes."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence


class OutsideRoots(Exception):
    """It is not a regular file, or a link leads out of the roots; the message names it."""


def is_below(real: str, roots: Sequence[str]) -> bool:
    """Whether a real path is a root or lies below one."""
    return any(real == root or real.startswith(root.rstrip(os.sep) + os.sep) for root in roots)


def open_regular(path: str, roots: Sequence[str]) -> tuple[int, os.stat_result]:
    """An open descriptor of a regular file below `roots`, and its status.

    Never blocks on a pipe, never follows a link out of the roots. Raises OSError, OutsideRoots.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OutsideRoots(f"{printable(path)} is not a regular file")
        if not is_below(real_path_of(descriptor, path), roots):
            raise OutsideRoots(f"{printable(path)} leads out of the roots")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status


def real_path_of(descriptor: int, path: str) -> str:
    """The real path of an open file: from the operating system where `/proc` is there, so no rename can intervene."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return os.path.realpath(path)


def is_text_name(path: str) -> bool:
    """Whether a path is valid UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(path: str) -> str:
    """A path that can be shown whatever its bytes are."""
    return os.fsencode(path).decode("utf-8", "replace")
