"""Files that are on disk when a function returns, names included."""

from __future__ import annotations

import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: a new file needs its name on disk as well as its content. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes, *, sync: bool = True) -> None:
    """Make `path` hold `content`, for its owner alone (0600): after a power cut it is the old file or the new one.

    Args:
        sync: False for what is made durable together with much else.

    Raises OSError: it is the old one.
    """
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as stream:
        stream.write(content)
        if sync:
            stream.flush()
            os.fsync(descriptor)
    unfinished.rename(path)
    if sync:
        sync_folder(path.parent)
