"""A service's folder for temporary files. The service may have removed it, or put a link or a file in its place."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from proto.wire.launch import SCRATCH_FOLDER


def provide(data_dir: Path) -> Path:
    """Return the folder for temporary files of the service with `data_dir`, made if it is not there.

    It belongs to the owner of `data_dir`, whoever makes it. A link or a file in its place is removed. The service and
    another process that does the same may be running. Raises OSError.
    """
    scratch = data_dir / SCRATCH_FOLDER
    data_dir.mkdir(parents=True, exist_ok=True)
    while True:
        with contextlib.suppress(FileExistsError):
            scratch.mkdir(mode=0o700)
        try:
            opened = os.open(scratch, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            break
        except FileNotFoundError:
            continue
        except NotADirectoryError:
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                scratch.unlink()
    try:
        owner, found = data_dir.stat(), os.fstat(opened)
        if os.geteuid() == 0 and found.st_uid != owner.st_uid:
            # Some file systems do not keep owners, and a container's root may not change them.
            with contextlib.suppress(OSError):
                os.chown(f"/proc/self/fd/{opened}", owner.st_uid, owner.st_gid)
    finally:
        os.close(opened)
    return scratch
