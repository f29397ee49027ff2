"""Removes files that a service left, which may be nested too deeply for paths, inaccessible, or links elsewhere."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from proto.stores import opened_folder


def remove(path: Path) -> None:
    """Remove a file, a folder with its contents, or a link itself. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        empty(path)
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def empty(folder: Path) -> None:
    """Remove everything in a folder, but not the folder. Raises OSError."""
    with opened_folder(folder.parent) as parent:
        _open_up(folder.name, parent)
        with opened_folder(folder.name, parent) as top:
            while names := os.listdir(top):
                for name in names:
                    if _is_folder(name, top):
                        _flatten(name, top)
                        os.rmdir(name, dir_fd=top)
                    else:
                        os.unlink(name, dir_fd=top)


def _flatten(name: str, top: int) -> None:
    """Remove the files in a folder, and move its subfolders to the top."""
    _open_up(name, top)
    with opened_folder(name, top) as folder:
        for each in os.listdir(folder):
            if _is_folder(each, folder):
                _open_up(each, folder)
                os.rename(each, os.urandom(16).hex(), src_dir_fd=folder, dst_dir_fd=top)
            else:
                os.unlink(each, dir_fd=folder)


def _is_folder(name: str, folder: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)


def _open_up(name: str, folder: int) -> None:
    """Give its owner full access to a folder."""
    descriptor = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", 0o700)
    finally:
        os.close(descriptor)
