"""Files and directories below the roots: the only ones that are read and written, by their real paths."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from proto.errors import InvalidParams, OperationError
from services.runtime.roots import OutsideRoots, is_below, real_path_of


def existing(path: str, field: str, roots: Sequence[str]) -> str:
    """The real path of a file or directory that is there; a relative one is looked for in each root.

    Raises:
        InvalidParams: it is not below a root.
        OperationError: nothing is there.
    """
    _check(path, field, roots)
    candidates = [path] if path.startswith("/") else [os.path.join(root, path) for root in roots]
    for candidate in candidates:
        real = os.path.realpath(candidate)
        if is_below(real, roots) and os.path.lexists(real):
            return real
    if not is_below(os.path.realpath(candidates[0]), roots):
        raise outside(path, field, roots)
    raise OperationError(f"File not found: {path}", field=field)


def examined(path: str, field: str, roots: Sequence[str]) -> tuple[str, bool]:
    """`existing`, and whether it is a directory."""
    real = existing(path, field, roots)
    return real, os.path.isdir(real)


def to_be_written(path: str, field: str, roots: Sequence[str]) -> Path:
    """The real path of a file or directory that may not be there yet.  Raises InvalidParams."""
    _check(path, field, roots)
    candidate = path if path.startswith("/") else os.path.join(roots[0], path)
    real = os.path.realpath(candidate)
    if not is_below(real, roots):
        raise outside(path, field, roots)
    return Path(real)


def _check(path: str, field: str, roots: Sequence[str]) -> None:
    if not path or "\0" in path:
        raise InvalidParams(f"parameter `{field}` is no path", field=field)
    if not roots:
        raise outside(path, field, roots)


def outside(path: str, field: str, roots: Sequence[str]) -> InvalidParams:
    return InvalidParams(
        f"parameter `{field}`: {path[:200]} is not below a root ({', '.join(roots) or 'there is none'}); "
        "roots are named when the kernel is started: linckia serve PATH…",
        field=field,
    )


def open_folder(path: str, roots: Sequence[str]) -> int:
    """An open descriptor of a directory below the roots.  Raises OSError, OutsideRoots."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not is_below(real_path_of(descriptor, path), roots):
            raise OutsideRoots(f"{path} leads out of the roots")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_beside(folder: int, name: str) -> tuple[int, os.stat_result]:
    """An open descriptor of a regular file in an open directory; never blocks on a pipe, never follows a link.

    Raises OSError, OutsideRoots.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW
    descriptor = os.open(name, flags, dir_fd=folder)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OutsideRoots(f"{name} is not a regular file")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status
