"""Changing one file below the roots by a function of its contents, whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from services.knowledge.notes.files import MAX_READ_BYTES, OutsideRoots, TooLarge, is_below, printable
from services.runtime.replace import CannotReplace, ChangedMeanwhile, FileLocks, replace_file

_ATTEMPTS = 20
"""Another program that writes to the file every time it is about to be replaced would have to mean it."""


class Contended(Exception):
    """The file was not changed: others kept writing to it, or it may not be replaced."""


def rewrite(path: str, roots: Sequence[str], change: Callable[[bytes], bytes]) -> bool:
    """Replace the contents of a regular file below `roots` by `change` of them; answers whether they differ.

    A symbolic link is followed to its target, which must be below the roots too, and stays a link.  Blocks.

    Raises:
        OSError: the file is not there, or may not be read or written.
        OutsideRoots, TooLarge: as `files.read`.
        Contended: the file never held still, or may not be replaced.
        Whatever `change` raises; nothing is written then.
    """
    for _ in range(_ATTEMPTS):
        real = Path(os.path.realpath(path))
        if not is_below(str(real), roots):
            raise OutsideRoots(f"{printable(path)} is not below the roots")
        status = real.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise OutsideRoots(f"{printable(path)} is not a regular file")
        if status.st_size > MAX_READ_BYTES:
            raise TooLarge(f"{status.st_size} bytes, more than the {MAX_READ_BYTES} that are read")
        try:
            with FileLocks().hold(real):
                before = real.read_bytes()
                after = change(before)
                if after == before:
                    return False
                replace_file(real, before, after)
                return True
        except ChangedMeanwhile:
            continue
        except CannotReplace as error:
            raise Contended(str(error)) from None
    raise Contended(f"{printable(path)} is being written by others without pause")
