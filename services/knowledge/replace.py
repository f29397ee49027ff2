"""Changing one file in place of its old version, whole or not at all.

The new version is written beside the file, brought to the disk, and renamed over it, with the old one's mode and
owner; a crash leaves the old or the new file.  Writers of one file take turns, in this process and, by a lock on the
file, with others that ask for it; one that did not ask and wrote in between is noticed, and the change is made again
from what it wrote.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from services.knowledge.files import MAX_READ_BYTES, OutsideRoots, TooLarge, is_below, printable

_SUFFIX = ".linckia-new"
_PATIENCE_S = 10.0


class Contended(Exception):
    """Others kept writing to the file."""


def rewrite(path: str, roots: Sequence[str], change: Callable[[bytes], bytes]) -> bool:
    """Replace the contents of a regular file below `roots` by `change` of them; answers whether they differ.

    A symbolic link is followed to its target, which must be below the roots too, and stays a link.  Blocks.

    Raises:
        OSError: the file is not there, or may not be read or written.
        OutsideRoots, TooLarge: as `files.read`.
        Contended: the file never held still.
        Whatever `change` raises; nothing is written then.
    """
    give_up_at = time.monotonic() + _PATIENCE_S
    while time.monotonic() < give_up_at:
        real = os.path.realpath(path)
        if not is_below(real, roots):
            raise OutsideRoots(f"{printable(path)} is not below the roots")
        descriptor = os.open(real, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OutsideRoots(f"{printable(path)} is not a regular file")
            if status.st_size > MAX_READ_BYTES:
                raise TooLarge(f"{status.st_size} bytes, more than the {MAX_READ_BYTES} that are read")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Whoever held the lock before has renamed a new file into this place.
            if not _is_still(real, status):
                continue
            before = file.read()
            after = change(before)
            if after == before:
                return False
            if _swap(real, status, before, after):
                return True
    raise Contended(f"{printable(path)} is being written by others without pause")


def _is_still(path: str, status: os.stat_result) -> bool:
    try:
        now = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (now.st_dev, now.st_ino) == (status.st_dev, status.st_ino)


def _swap(path: str, status: os.stat_result, before: bytes, after: bytes) -> bool:
    """Rename a file with `after` over `path`, unless that no longer holds `before`."""
    folder, name = os.path.split(path)
    # One name for each file: what a crash left is overwritten by the next writer, who holds the lock.
    beside = os.path.join(folder, f".{name[:200]}{_SUFFIX}")
    Path(beside).unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(after)
            file.flush()
            if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(descriptor, status.st_uid, status.st_gid)
            os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
            os.fsync(descriptor)
        if hashlib.sha256(Path(path).read_bytes()).digest() != hashlib.sha256(before).digest():
            return False
        os.replace(beside, path)
    finally:
        Path(beside).unlink(missing_ok=True)
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
    return True
