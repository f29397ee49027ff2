"""The copy of a database as it was before its tables were migrated: the way back, should the new version not serve.

It stands beside the database as `NAME.before-vN`, and is removed at a start after `KEPT_S`. To go back: stop Linckia,
move the copy over the database, remove `NAME-wal` and `NAME-shm`, and start the version that wrote it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from pathlib import Path

import apsw

from proto.durable import sync_folder

KEPT_S = 7 * 86_400


def keep(connection: apsw.Connection, path: Path, version: int) -> None:
    """Copy the open database at `path` before it becomes `version`; blocks. The copy is whole, or not there.

    Raises apsw.Error, OSError: the disk cannot take it, or a page is damaged.
    """
    part = path.with_name(f"{path.name}.before-v{version}.part")
    mode = stat.S_IMODE(path.stat().st_mode)
    os.close(os.open(part, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, mode))
    try:
        with contextlib.closing(apsw.Connection(str(part))) as copy:
            with copy.backup("main", connection, "main") as steps:
                steps.step()
            # Otherwise the copy has a log of its own as soon as it is looked at.
            copy.pragma("journal_mode", "delete")
        part.replace(part.with_suffix(""))
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def forget(path: Path) -> None:
    """Remove the copies of the database at `path` that have been kept for long enough."""
    for copy in path.parent.glob(f"{path.name}.before-v*"):
        with contextlib.suppress(OSError):
            if copy.stat().st_mtime < time.time() - KEPT_S:
                copy.unlink()
