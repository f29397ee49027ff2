"""Files, including their names, that are safely on disk when a function returns."""

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


def append(path: Path, content: bytes) -> None:
    """Append to `path`, which only its owner may access (0600), also if it is an old file. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with open(descriptor, "ab") as stream:
        if os.fstat(descriptor).st_mode & 0o077:
            os.fchmod(descriptor, 0o600)
        stream.write(content)


def replace_file(path: Path, content: bytes, *, sync: bool = True) -> None:
    """Replace `path` atomically, for its owner only (0600): after a power failure it has the old or the new content.

    Args:
        sync: False for files that are made durable together with many others.

    Raises OSError; the old content is kept.
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
